"""The paper's value for what was trained, where it has one."""

from functools import cache
from typing import Any

from acdc.train import reading
from acdc.train.recipe import PaperRow, Recipe
from acdc.train.toml import write_value

# How a run computes, as against what. "accumulate" cuts batches into parts, and "ema" makes another model beside it.
_WHATEVER = {
    "data": ("bad_limit",),
    "train": ("accumulate", "precision", "ema", "channels_last", "threads", "deterministic", "compile", "cuda_graphs"),
}


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


def _decides(recipe: Recipe) -> dict[str, Any]:
    """All that decides the result: whatever a recipe says, apart from what is known not to."""
    said, method = recipe.to_dict(), recipe.build_method()
    for table in ("name", "about", "paper", "run"):
        del said[table]
    for table, keys in _WHATEVER.items():
        for key in keys:
            del said[table][key]
    if not recipe.train.distill:
        del said["train"]["distill_temperature"]
    said["train"]["epochs"] = recipe.epochs
    said["method"] = (method.name, method.config()) if method else None
    return said
