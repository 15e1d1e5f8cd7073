"""The start or resumption of a comparison: checks all its runs together, and claims its folder and theirs.

Every run has its own folder, so that a comparison that was stopped resumes where it was.
"""

import datetime
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from acdc.errors import UsageError
from acdc.recipes.schema import Recipe
from acdc.runs import differences, folder
from acdc.runs.folder import ComparisonFolder
from acdc.runs.records import Comparison
from acdc.train.cells import Cell
from acdc.train.jobs import Job, make_folder
from acdc.train.loading import LoadedData
from acdc.train.prepare import RunOptions, load_data, prepare


def check_cells(cells: Sequence[Cell], options: RunOptions, known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Prepare every cell as `acdc check` does; return all problems that are not `known` yet, and the warnings."""
    problems: dict[str, list[str]] = {}  # each with the variants it applies to
    warnings: dict[str, list[str]] = {}
    loaded: dict[str, LoadedData | UsageError] = {}

    def load_once(recipe: Recipe, options: RunOptions) -> LoadedData:
        """Load each data set once, even one that cannot be loaded."""
        key = repr((recipe.data, recipe.train.batch_size))
        if key not in loaded:
            try:
                loaded[key] = load_data(recipe, options)
            except UsageError as error:
                loaded[key] = error
        if isinstance(data := loaded[key], UsageError):
            raise data
        return data

    for cell in {(cell.variant.name, cell.sparsity): cell for cell in cells}.values():
        name, wrong = cell.variant.name, list(map(str, cell.mistakes))
        try:
            prepared = prepare(
                cell.recipe,
                options,
                mistakes=cell.mistakes,
                problems=wrong,
                load=load_once,
                method_table=cell.variant.method,
            )
        except UsageError as error:
            for text in error.problems:
                if text not in known:
                    problems.setdefault(text, []).append(name)
            continue
        for text in prepared.warnings:
            warnings.setdefault(text, []).append(name)
    for data in loaded.values():
        if not isinstance(data, UsageError):
            data.close()
    names = {cell.variant.name for cell in cells}
    return _with_names(problems, names), _with_names(warnings, names)


def _with_names(texts: Mapping[str, Sequence[str]], names: Set[str]) -> list[str]:
    """Return each text once, with the variants it applies to, unless it applies to all."""
    return [text if {*of} == names else f"{', '.join(dict.fromkeys(of))}: {text}" for text, of in texts.items()]


def check_folder(out: Path, base: Recipe | None, cells: Sequence[Cell]) -> list[str]:
    """Return why this comparison can neither start nor resume in this folder."""
    existing = ComparisonFolder(out).read()
    if existing is None:
        return [f"--out {out}: {reason}; choose another folder"] if (reason := folder.why_not(out)) else []
    sound = [cell for cell in cells if not cell.mistakes]
    now = _recipes(sound)
    problems = [
        f"--out {out}: {name} was started there with other settings ({changed}); choose another folder"
        for name, recipe in existing.runs.items()
        if name in now and (changed := differences.first(recipe, now[name]))
    ]
    if base and sound and (existing.recipe, existing.epochs) != (base.name, base.epochs):
        there = f"it holds a comparison of {existing.recipe} over {existing.epochs} epochs"
        problems.append(f"--out {out}: {there}, not of {base.name} over {base.epochs}; choose another folder")
    return problems


def claim_folder(out: Path, base: Recipe, cells: Sequence[Cell], command: str) -> list[Job]:
    """Claim a new folder, or the one that this comparison started in, and create a folder for each cell."""
    existing = ComparisonFolder(out).read()
    if existing is None:
        out.mkdir(parents=True, exist_ok=True)
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        existing = Comparison(recipe=base.name, epochs=base.epochs, started=started)
    joined = replace(  # more methods, sparsities or seeds may join
        existing,
        commands=tuple(dict.fromkeys([*existing.commands, command])),
        runs={**existing.runs, **_recipes(cells)},
        cells={**existing.cells, **{cell.name: cell.record() for cell in cells}},
    )
    ComparisonFolder(out).write(joined)
    for cell in cells:
        make_folder(cell.recipe, out / cell.name)
    return [Job(cell.name, out / cell.name, tuple(differences.free(cell.variant.settings)[0])) for cell in cells]


def _recipes(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the cells' recipes by name, as stored in a file."""
    return json.loads(json.dumps({cell.name: cell.recipe.to_dict() for cell in cells}))
