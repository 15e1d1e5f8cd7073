"""The commands that would make a run again."""

import shlex
from collections.abc import Mapping
from typing import Any

from acdc.recipes import load
from acdc.recipes.load import write_value
from acdc.recipes.schema import Recipe
from acdc.report.read import Run

_LEFT_OUT = ("name", "about", "paper")


def commands(run: Run) -> list[str]:
    """`acdc train` with what differs from the recipe as it is shipped; where none has its name, the file is needed."""
    if run.recipe is None:
        return []
    shipped = run.recipe.name in load.shipped()
    words = ["acdc", "train", run.recipe.name if shipped else f"{run.recipe.name}.toml"]
    for setting in settings(run.recipe, load.read(run.recipe.name)) if shipped else ():
        words += ["--set", setting]
    words += ["--out", "runs/again"]
    return [shlex.join(words), "acdc report runs/again"]


def settings(recipe: Recipe, base: Recipe) -> list[str]:
    """What to `--set` on `base`, a shipped recipe, to get `recipe`."""
    ours, usual, found = recipe.to_dict(), base.to_dict(), []
    for table, part in ours.items():
        if table in _LEFT_OUT:
            continue
        for key, value in _keys(part).items():
            if value != _keys(usual[table]).get(key) and value is not None:
                found.append(f"{table}.{key}={write_value(value)}")
    return [setting for setting in found if not (setting.startswith("method.") and _says_nothing(setting, base))]


def _keys(part: Mapping[str, Any]) -> dict[str, Any]:
    """What a model, a data set or a method has of its own stands beside the keys that all have."""
    return {**{key: value for key, value in part.items() if key != "options"}, **part.get("options", {})}


def _says_nothing(setting: str, base: Recipe) -> bool:
    """Whether it is what the method does anyway."""
    try:
        one, other = load.read(base.name, [setting]).build_method(), base.build_method()
    except ValueError:
        return False
    return one is not None and other is not None and one.name == other.name and one.config() == other.config()
