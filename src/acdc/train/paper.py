"""The paper's value for what was trained, where it has one."""

from functools import cache

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
    wanted = _decides(recipe)
    rows = [row for row in _read(recipe.name).paper if row.set.get("method.sparsity") in (None, recipe.method.sparsity)]
    return next((row for row in rows if _decides(_read(recipe.name, *settings_of(row))) == wanted), None)


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


@cache
def _read(name: str, *settings: str) -> Recipe:
    """A shipped recipe; reading one takes a while."""
    return reading.read(name, settings)


def _decides(recipe: Recipe) -> tuple:
    """All that decides the result; precision, seeds and where batches are cut into parts do not count."""
    method, train = recipe.build_method(), recipe.train
    built = (method.name, method.config()) if method else None
    parts = (recipe.model, recipe.data, recipe.optimizer, recipe.rate, built, recipe.epochs)
    return *parts, train.batch_size, train.label_smoothing, train.distill
