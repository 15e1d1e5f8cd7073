"""The paper's value for what was trained, where it has one."""

from acdc.train import reading
from acdc.train.recipe import PaperRow, Recipe


def row_for(recipe: Recipe) -> PaperRow | None:
    """The row of the shipped recipe's [[paper]] tables whose settings are this run's."""
    default = _shipped(recipe.name) or recipe
    return next((row for row in default.paper if _matches(recipe, row, default)), None)


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


def _matches(recipe: Recipe, row: PaperRow, default: Recipe) -> bool:
    """Every setting in which the paper's rows differ is as this row, or else the recipe as shipped, has it."""
    ours, usual = recipe.to_dict(), default.to_dict()
    for key in {key for other in default.paper for key in other.set}:
        table, _, name = key.partition(".")
        wanted = row.set[key] if key in row.set else _value(usual, table, name)
        if _plain(_value(ours, table, name)) != _plain(wanted):
            return False
    return True


def _shipped(name: str) -> Recipe | None:
    return reading.read(name) if name in reading.shipped() else None


def _value(tables: dict, table: str, name: str) -> object:
    part = tables[table]
    return part[name] if name in part else part.get("options", {}).get(name)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
