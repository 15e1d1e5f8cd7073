"""The paper's value for what was trained, where it has one."""

from acdc.train import reading
from acdc.train.recipe import PaperRow, Recipe
from acdc.train.toml import write_value


def settings_of(row: PaperRow) -> list[str]:
    """What to --set on the shipped recipe for a row of the paper."""
    return [f"{key}={value if isinstance(value, str) else write_value(value)}" for key, value in row.set.items()]


def row_for(recipe: Recipe) -> PaperRow | None:
    """The row of the shipped recipe's [[paper]] tables that is this very experiment, whatever ran it how."""
    if recipe.name not in reading.shipped():
        return None
    rows = reading.read(recipe.name).paper
    return next((row for row in rows if _same(recipe, reading.read(recipe.name, settings_of(row)))), None)


def beside(recipe: Recipe, file: str) -> str | None:
    """What to print beside the model in this file of a run: "79.1 ± 0.07 %", say."""
    row = row_for(recipe)
    if row is None:
        return None
    value, std = {
        "sparse.safetensors": (row.sparse, row.std),
        "baseline.safetensors": (row.dense, row.std if row.sparse is None else None),
        "dense.safetensors": (row.twin, None),
        "finetuned.safetensors": (row.finetuned, None),
    }.get(file, (None, None))
    return None if value is None else f"{value:g}{f' ± {std:g}' if std else ''} %"


def _same(one: Recipe, other: Recipe) -> bool:
    """In all that decides the result; precision, seeds and where batches are cut into parts do not count."""

    def decides(recipe: Recipe) -> tuple:
        method, train = recipe.build_method(), recipe.train
        built = (method.name, method.config()) if method else None
        parts = (recipe.model, recipe.data, recipe.optimizer, recipe.rate, built, recipe.epochs)
        return *parts, train.batch_size, train.label_smoothing

    return decides(one) == decides(other)
