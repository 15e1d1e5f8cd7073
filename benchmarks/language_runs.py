"""Runs of `acdc train` on text, kept under results/language by recipe.

python -m benchmarks.language_runs RUN [RUN ...] --commit HASH    keep run folders beside those that are kept
python -m benchmarks.language_runs                                draw the figures of what is kept again

What is kept of a recipe: runs.tar.xz with every run's settings, metrics, phases, result and log, without weights;
loss.svg and parameters.svg, drawn from it. `python -m benchmarks.tables` then writes the tables of docs/language.md.
"""

import argparse
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from acdc.io import write_bytes
from acdc.report.groups import check_same_data
from acdc.report.read import ReportError, Run, expand, folder_name, read_runs
from acdc.runs.json_files import RecordError
from acdc.runs.quality import PERPLEXITY
from benchmarks import keeping, language_figures
from benchmarks.console import run, say
from benchmarks.language_groups import Experiment, experiment_of, recipe_of, row_length
from benchmarks.record import RESULTS


def place_of(recipe: str, results: Path = RESULTS) -> Path:
    """Return the folder of a recipe's kept runs."""
    return results / "language" / recipe


# Keeping


def keep(sources: Sequence[Path], commit: str, results: Path = RESULTS) -> list[Path]:
    """Keep complete runs beside those of the same recipe that are kept already: all of these, or none.

    A run is kept by its folder's name; one that is kept already is not replaced.
    """
    with tempfile.TemporaryDirectory() as place:
        problems, recipes = list[str](), set[str]()
        for source in expand(sources):
            try:
                recipe = _recipe_name(source)
                if recipe not in recipes:
                    _unpack(place_of(recipe, results), Path(place, recipe))
                    recipes.add(recipe)
                _add(source, Path(place, recipe), commit)
            except (OSError, ReportError, RecordError) as error:
                problems.append(str(error))
        for recipe in sorted(recipes):
            try:
                _check_comparable(_read(Path(place, recipe)))
            except ReportError as error:
                problems.append(str(error))
        if problems:
            raise ValueError("\n".join(["nothing is kept:", *problems]))
        for recipe in sorted(recipes):
            runs = {folder.name: folder for folder in _folders(Path(place, recipe))}
            packed = Path(place, f"{recipe}.{keeping.ARCHIVE}")
            keeping.pack(packed, runs)
            place_of(recipe, results).mkdir(parents=True, exist_ok=True)
            write_bytes(place_of(recipe, results) / keeping.ARCHIVE, packed.read_bytes())
    return [place_of(recipe, results) for recipe in sorted(recipes)]


def _recipe_name(source: Path) -> str:
    """Return the name of a complete run's recipe; dense training in a recipe of its own belongs to the other."""
    if not (source / "result.json").is_file():
        raise ReportError(f"{source}: no result.json; only complete runs are kept")
    (one,) = read_runs([source])
    if one.quality is not PERPLEXITY:
        raise ReportError(f"{source}: not trained on text; python -m benchmarks.runs keeps runs on images")
    row_length(one)  # which the tables need
    return recipe_of(one).name.removesuffix("-dense")


def _add(source: Path, folder: Path, commit: str) -> None:
    name = folder_name(source).replace("/", "-")  # the folder of a seed has its parent's name before its own
    if (folder / name).exists():
        raise ReportError(f"{source}: a run {name} is kept or named already; rename the folder to keep both")
    keeping.copy_run(source, folder / name, commit)


def _check_comparable(kept: Sequence[Run]) -> None:
    """Raise if runs were not measured on the same text in the same tokens: their perplexities cannot be compared."""
    check_same_data(kept)
    if other := next((one for one in kept if one.config.data.text != kept[0].config.data.text), None):
        raise ReportError(f"{kept[0].name} and {other.name} were trained on different texts; keep one of them")


# Reading


def read_all(results: Path = RESULTS) -> list[Experiment]:
    """Return what is kept of each recipe, the largest model first."""
    archives = sorted(place_of("", results).glob(f"*/{keeping.ARCHIVE}"))
    found = [read_experiment(archive.parent) for archive in archives]
    return sorted(found, key=lambda one: max(entry.size for entry in one.entries), reverse=True)


def read_experiment(target: Path) -> Experiment:
    with tempfile.TemporaryDirectory() as place:
        _unpack(target, Path(place))
        return experiment_of(target.name, _read(Path(place)))


def _unpack(target: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if (target / keeping.ARCHIVE).is_file():
        with tarfile.open(target / keeping.ARCHIVE) as archive:
            archive.extractall(folder, filter="data")


def _read(folder: Path) -> list[Run]:
    return read_runs(_folders(folder))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir())


# The command


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.language_runs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders that `acdc train` wrote")
    parser.add_argument("--commit", metavar="HASH", help="of the code that ran what is kept")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if options.runs and not options.commit:
        parser.error("to keep runs, say which code ran them: add --commit HASH")
    try:
        for target in keep(options.runs, options.commit, options.results) if options.runs else ():
            say(f"kept: {target / keeping.ARCHIVE}")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    for experiment in read_all(options.results):
        for path in language_figures.draw(experiment, place_of(experiment.name, options.results)):
            say(f"drawn: {path}")
    say("now run python -m benchmarks.tables")
    return 0


if __name__ == "__main__":
    run(main)
