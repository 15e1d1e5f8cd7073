"""The commands that would make a run again."""

import shlex
from collections.abc import Mapping
from typing import Any

from acdc.report.read import Run
from acdc.train import reading
from acdc.train.recipe import Recipe

_LEFT_OUT = ("name", "about", "paper")


def commands(run: Run) -> list[str]:
    """`acdc train` with what differs from the recipe as it is shipped; where none has its name, the file is needed."""
    if run.recipe is None:
        return []
    shipped = run.recipe.name in reading.shipped()
    words = ["acdc", "train", run.recipe.name if shipped else f"{run.recipe.name}.toml"]
    base = reading.read(run.recipe.name) if shipped else None
    for setting in settings(run.recipe, base) if base else ():
        words += ["--set", setting]
    words += ["--out", "runs/again"]
    return [shlex.join(words), "acdc report runs/again"]


def settings(recipe: Recipe, base: Recipe) -> list[str]:
    """What to `--set` on `base` to get `recipe`."""
    ours, usual, found = recipe.to_dict(), base.to_dict(), []
    for table, part in ours.items():
        if table in _LEFT_OUT:
            continue
        for key, value in _keys(part).items():
            if value != _keys(usual[table]).get(key) and value is not None:
                found.append(f"{table}.{key}={_toml(value)}")
    return found


def _keys(part: Mapping[str, Any]) -> dict[str, Any]:
    """A model's and a data set's own options stand beside the keys that all have."""
    return {**{key: value for key, value in part.items() if key != "options"}, **part.get("options", {})}


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(part) for part in value)}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f'"{key}" = {_toml(part)}' for key, part in value.items()) + " }"
    return repr(value)
