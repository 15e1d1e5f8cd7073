"""The paper's values for what was trained, where it has any."""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from acdc import data
from acdc.recipes import load
from acdc.recipes.schema import PaperRow, Recipe

# Settings of how a run computes, not what. "accumulate" splits batches, and "ema" adds another model.
_DO_NOT_DECIDE = {
    "data": ("bad_limit",),
    "train": (
        "accumulate", "precision", "ema", "channels_last", "threads", "deterministic", "compile", "cuda_graphs",
        "parallel",
    ),
}  # fmt: skip
_MODELS = {"sparse": "sparse", "baseline": "dense", "dense": "twin", "finetuned": "finetuned"}  # a run's file, a row's


class Published(NamedTuple):
    """An accuracy in %, or a perplexity, with its deviation where the paper gives one."""

    value: float
    std: float | None
    symbol: str = " %"

    def __str__(self) -> str:
        return f"{self.value:g}{f' ± {self.std:g}' if self.std else ''}{self.symbol}"


def settings_of(row: PaperRow) -> list[str]:
    """Return what to --set on the shipped recipe for a row of the paper."""
    return [f"{key}={value if isinstance(value, str) else load.write_value(value)}" for key, value in row.set.items()]


def row_for(recipe: Recipe) -> PaperRow | None:
    """Return the [[paper]] row of the shipped recipe that is the same experiment, however it was run; or None."""
    if recipe.name not in load.shipped():
        return None
    deciding = _decides(recipe)
    sparsity = recipe.method.sparsity
    rows = [row for row in _read(recipe.name).paper if (row.set.get("method.sparsity") or None) in (None, sparsity)]
    return next((row for row in rows if _decides(_read(recipe.name, *settings_of(row))) == deciding), None)


def results(recipe: Recipe, row: PaperRow) -> dict[str, Published]:
    """Return a row's results by the name, without suffix, of the file in which a run keeps the model.

    They are accuracies, or perplexities for text. The deviation is that of the main model.
    """
    main = "sparse" if row.sparse is not None else "baseline"
    symbol = "" if data.describe(recipe.data.name).kind == "text" else " %"
    return {
        file: Published(value, row.std if file == main else None, symbol)
        for file, model in _MODELS.items()
        if (value := getattr(row, model)) is not None
    }


def beside(recipe: Recipe, file: str) -> str | None:
    """Return the paper's result to print beside the model in this file of a run, such as "79.1 ± 0.07 %"."""
    row = row_for(recipe)
    published = results(recipe, row).get(Path(file).stem) if row else None
    return str(published) if published else None


@cache
def _read(name: str, *settings: str) -> Recipe:
    """Read a shipped recipe and cache it, since that takes a while."""
    return load.read(name, settings)


def _decides(recipe: Recipe) -> dict[str, Any]:
    """Return every setting that may affect the result, leaving out those known not to."""
    settings, method = recipe.to_dict(), recipe.build_method()
    for table in ("name", "about", "paper", "run"):
        del settings[table]
    for table, keys in _DO_NOT_DECIDE.items():
        for key in keys:
            settings[table].pop(key, None)  # those of sharded runs are not in others
    if recipe.data.first_size is None:
        del settings["data"]["full_size_by"], settings["data"]["size_step"]
    if not recipe.train.distill:
        del settings["train"]["distill_temperature"]
    settings["train"]["epochs"], settings["rate"] = recipe.epochs, asdict(recipe.stretched_rate())
    del settings["train"]["times"]
    settings["method"] = (method.name, method.config()) if method else None
    return settings
