"""Commands that reproduce a run, the settings of several runs, or several comparisons."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from acdc.recipes import load
from acdc.recipes.load import write_value
from acdc.recipes.schema import Recipe
from acdc.report.groups import Group
from acdc.report.read import Run, folder_name, read_comparison, same_names
from acdc.runs.quality import PERPLEXITY


def commands(run: Run) -> list[str]:
    """Return `acdc train` with the differences from the shipped recipe; if there is none, the file is needed."""
    if run.recipe is None:
        return []
    shipped = run.recipe.name in load.shipped()
    words = ["acdc", "train", run.recipe.name if shipped else f"{run.recipe.name}.toml"]
    for setting in changed_settings(run.recipe, load.read(run.recipe.name)) if shipped else ():
        words += ["--set", setting]
    if run.quality is PERPLEXITY and run.config.root:
        words += ["--data", Path(run.config.root).name]
    words += ["--out", "runs/again"]
    return [shlex.join(words), "acdc report runs/again"]


def first_commands(settings: Sequence[Group]) -> list[str]:
    """Return the command of the first run of each setting."""
    return [line for group in settings for line in commands(group.runs[0])[:1]]


def changed_settings(recipe: Recipe, base: Recipe) -> list[str]:
    """Return the settings to `--set` on `base`, a shipped recipe, to get `recipe`."""
    ours, usual, changed = recipe.to_dict(), base.to_dict(), []
    for table, part in ours.items():
        if table in ("name", "about", "paper"):
            continue
        for key, value in _keys(part).items():
            if value is None or value == _keys(usual[table]).get(key):
                continue
            setting = f"{table}.{key}={write_value(value)}"
            same = recipe.method.name == base.method.name  # another method may have other defaults
            if table != "method" or not (same and _is_default(setting, base)):
                changed.append(setting)
    return changed


def _keys(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings of a table: the options of a model, data set or method, and the common keys."""
    return {**{key: value for key, value in part.items() if key != "options"}, **part.get("options", {})}


def _is_default(setting: str, base: Recipe) -> bool:
    """Return True if the method does this by default."""
    try:
        one, other = load.read(base.name, [setting]).build_method(), base.build_method()
    except ValueError:
        return False
    return one is not None and other is not None and one.name == other.name and one.config() == other.config()


def comparison_commands(runs: Sequence[Run]) -> list[str]:
    """Return the commands of the comparisons that runs belong to; of several, with their folders and the report's."""
    folders = list(dict.fromkeys(run.folder.resolve().parent for run in runs if run.cell))
    commands = {folder: found.commands for folder in folders if (found := read_comparison(folder))}
    if len(folders) < 2:
        return [line for lines in commands.values() for line in lines]
    same = same_names(folders)
    outs = {folder: shlex.quote(f"runs/{folder_name(folder, qualified=folder in same)}") for folder in folders}
    lines = [f"{line} --out {outs[folder]}" for folder, lines in commands.items() for line in lines]
    return [*lines, f"acdc report {' '.join(outs.values())}"]
