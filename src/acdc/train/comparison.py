"""Begin or resume a comparison: check all its runs together, and claim its folder and theirs.

Every run is a folder of its own, so that a comparison that was stopped resumes where it was.
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
    """Prepare every cell as `acdc check` does; return all that is wrong and not `known` yet, and the warnings."""
    problems: dict[str, list[str]] = {}  # each with the variants it is true of
    warnings: dict[str, list[str]] = {}
    loaded: dict[str, LoadedData | UsageError] = {}

    def load_once(recipe: Recipe, options: RunOptions) -> LoadedData:
        """Load each data set once, also one that cannot be loaded."""
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
    """Return each text once, with the variants it is true of, unless it is true of all."""
    return [text if {*of} == names else f"{', '.join(dict.fromkeys(of))}: {text}" for text, of in texts.items()]


def check_folder(out: Path, base: Recipe | None, cells: Sequence[Cell]) -> list[str]:
    """Return why this comparison can neither begin nor resume in this folder."""
    held = ComparisonFolder(out).read()
    if held is None:
        return [f"--out {out}: {reason}; type another folder"] if (reason := folder.why_not(out)) else []
    sound = [cell for cell in cells if not cell.mistakes]
    now = _recipes(sound)
    problems = [
        f"--out {out}: {name} began with other settings there ({changed}); type another folder"
        for name, recipe in held.runs.items()
        if name in now and (changed := differences.first(recipe, now[name]))
    ]
    if base and sound and (held.recipe, held.epochs) != (base.name, base.epochs):
        there = f"{held.recipe} over {held.epochs} epochs is compared there"
        problems.append(f"--out {out}: {there}, not {base.name} over {base.epochs}; type another folder")
    return problems


def claim_folder(out: Path, base: Recipe, cells: Sequence[Cell], command: str) -> list[Job]:
    """Claim a new folder, or the one this very comparison began in, and make a folder for each cell."""
    held = ComparisonFolder(out).read()
    if held is None:
        out.mkdir(parents=True, exist_ok=True)
        started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        held = Comparison(recipe=base.name, epochs=base.epochs, started=started)
    joined = replace(  # more methods, sparsities or seeds may join
        held,
        commands=tuple(dict.fromkeys([*held.commands, command])),
        runs={**held.runs, **_recipes(cells)},
        cells={**held.cells, **{cell.name: cell.record() for cell in cells}},
    )
    ComparisonFolder(out).write(joined)
    for cell in cells:
        make_folder(cell.recipe, out / cell.name)
    return [Job(cell.name, out / cell.name, tuple(differences.free(cell.variant.settings)[0])) for cell in cells]


def _recipes(cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the cells' recipes by name, as a file holds them."""
    return json.loads(json.dumps({cell.name: cell.recipe.to_dict() for cell in cells}))
