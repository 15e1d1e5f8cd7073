"""The paper's value for what was trained, where it has one."""

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from acdc.recipes import load
from acdc.recipes.schema import PaperRow, Recipe
from acdc.recipes.toml import write_value

# How a run computes, as against what. "accumulate" cuts batches into parts, and "ema" makes another model beside it.
_WHATEVER = {
    "data": ("bad_limit",),
    "train": ("accumulate", "precision", "ema", "channels_last", "threads", "deterministic", "compile", "cuda_graphs"),
}
_MODELS = {"sparse": "sparse", "baseline": "dense", "dense": "twin", "finetuned": "finetuned"}  # a run's file, a row's


class Accuracy(NamedTuple):
    """In %."""

    value: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.value:g}{f' ± {self.std:g}' if self.std else ''} %"


def settings_of(row: PaperRow) -> list[str]:
    """What to --set on the shipped recipe for a row of the paper."""
    return [f"{key}={value if isinstance(value, str) else write_value(value)}" for key, value in row.set.items()]


def row_for(recipe: Recipe) -> PaperRow | None:
    """The row of the shipped recipe's [[paper]] tables that is this very experiment, whatever ran it how."""
    if recipe.name not in load.shipped():
        return None
    wanted = _decides(recipe)
    said = recipe.method.sparsity
    rows = [row for row in _read(recipe.name).paper if (row.set.get("method.sparsity") or None) in (None, said)]
    return next((row for row in rows if _decides(_read(recipe.name, *settings_of(row))) == wanted), None)


def accuracies(row: PaperRow) -> dict[str, Accuracy]:
    """By the file, without its ending, in which a run keeps the model. The one deviation is that of the main model."""
    main = "sparse" if row.sparse is not None else "baseline"
    return {
        file: Accuracy(value, row.std if file == main else None)
        for file, model in _MODELS.items()
        if (value := getattr(row, model)) is not None
    }


def beside(recipe: Recipe, file: str) -> str | None:
    """What to print beside the model in this file of a run: "79.1 ± 0.07 %", say."""
    row = row_for(recipe)
    found = accuracies(row).get(Path(file).stem) if row else None
    return str(found) if found else None


@cache
def _read(name: str, *settings: str) -> Recipe:
    """A shipped recipe; reading one takes a while."""
    return load.read(name, settings)


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
