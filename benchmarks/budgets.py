"""Sweeps over training budgets kept under results/comparisons/budgets, their tables and figures.

python -m benchmarks.budgets cifar10 runs/budget-5 runs/budget-10     keep folders of `acdc compare-methods`
python -m benchmarks.budgets cifar10                                  show what is kept, and draw its figures again

Each budget is kept like any comparison, in a folder named by its epochs; budget.svg and budget-flops.svg are drawn from
all that are kept. The variant "chosen" is AC/DC as `ACDC(sparsity, epochs)` makes it; the others are its rivals.
"""

import argparse
import json
import os
import statistics
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acdc import methods
from acdc.io import write_bytes
from acdc.report import write
from acdc.runs import records
from acdc.runs.folder import ComparisonFolder
from acdc.runs.json_files import require
from benchmarks import comparisons, keeping
from benchmarks.comparisons import Comparison, Table
from benchmarks.console import print_table, run, say
from benchmarks.record import RESULTS

OURS, PRUNED_LATE = "chosen", "GMP"  # the default, and the method it must beat on average
FIGURES = {"budget": "epochs of training", "budget-flops": "training FLOPs"}

Sweep = dict[int, Comparison]
"""Kept comparisons by their epochs, in rising order."""


# Keeping


def place_of(name: str, results: Path = RESULTS) -> Path:
    """Return the folder of a kept sweep."""
    return results / "comparisons" / "budgets" / name


def keep(
    sources: Sequence[Path], name: str, results: Path = RESULTS, commit: str | None = None, note: str | None = None
) -> Path:
    """Keep comparisons of one recipe, each over its own number of epochs, beside those that are kept already.

    What would be refused is refused before anything is written.
    """
    target, by_epochs, recipes = place_of(name, results), dict[int, Path](), dict[str, str]()
    for epochs, kept in read_sweep(target).items():
        recipes[kept["recipe"]] = str(target / str(epochs))
    for source in sources:
        comparison = require(records.Comparison, ComparisonFolder(source).file)
        if (other := by_epochs.setdefault(comparison.epochs, source)) != source:
            raise ValueError(f"{other} and {source} are both over {comparison.epochs} epochs; keep one of them")
        recipes.setdefault(comparison.recipe, str(source))
        comparisons.check_keeping(source, target / str(comparison.epochs))
    if len(recipes) > 1:
        (one, here), (other, there) = list(recipes.items())[:2]
        raise ValueError(f"{here} is of {one} and {there} of {other}; keep each recipe by a name of its own")
    for epochs, source in sorted(by_epochs.items()):
        comparisons.keep(source, f"budgets/{name}/{epochs}", results, commit, note, figure=False)
    draw(target)
    return target


def draw(target: Path) -> list[Path]:
    """Draw the figures of a kept sweep from its archives; a single budget has none."""
    epochs = list(read_sweep(target))
    if len(epochs) < 2:
        return []
    drawn = []
    with tempfile.TemporaryDirectory() as folder:
        sources = [Path(folder, f"budget-{one}") for one in epochs]
        for one, source in zip(epochs, sources, strict=True):
            with tarfile.open(target / str(one) / keeping.ARCHIVE) as archive:
                archive.extractall(source, filter="data")
        for name in FIGURES:
            path, _ = write.make(sources, Path(folder, f"{name}.svg"), "svg", name)
            write_bytes(target / path.name, path.read_bytes())
            drawn.append(target / path.name)
    return drawn


def read_sweep(target: Path) -> Sweep:
    """Return what is kept of a sweep."""
    files = sorted(target.glob("*/result.json"), key=lambda file: int(file.parent.name))
    return {int(file.parent.name): json.loads(file.read_text(encoding="utf-8")) for file in files}


def read_all(results: Path = RESULTS) -> dict[str, Sweep]:
    """Return all kept sweeps by name."""
    folders = sorted(path for path in place_of("", results).glob("*") if path.is_dir())
    return {folder.name: sweep for folder in folders if (sweep := read_sweep(folder))}


# Tables


@dataclass(frozen=True)
class Cell:
    """All methods at one sparsity over one budget, by name; without those whose training decides the zeros."""

    sparsity: float
    epochs: int
    methods: dict[str, dict[str, Any]]

    def mean(self, name: str) -> float | None:
        """Return a method's mean accuracy in %, if it was trained."""
        return 100 * statistics.fmean(self.methods[name]["values"]) if name in self.methods else None

    def best_other(self) -> tuple[str, float] | None:
        """Return the most accurate of our rivals with its mean accuracy."""
        rivals = [name for name, one in self.methods.items() if name != OURS and one["asked"] is not None]
        means = {name: mean for name in rivals if (mean := self.mean(name)) is not None}
        best = max(means, key=means.__getitem__, default=None)
        return (best, means[best]) if best is not None else None

    @property
    def where(self) -> str:
        return f"{self.sparsity:.0%} over {self.epochs} epochs"


def cells_of(sweep: Sweep) -> list[Cell]:
    """Return every requested sparsity over every budget."""
    shares = sorted({one["asked"] for kept in sweep.values() for one in kept["methods"] if one["asked"] is not None})
    cells = []
    for share in shares:
        for epochs, kept in sweep.items():
            these = {one["name"]: one for one in kept["methods"] if one["asked"] == share or not one["sparsity"]}
            if any(one["asked"] is not None for one in these.values()):
                cells.append(Cell(share, epochs, these))
    return cells


def table(name: str, sweep: Sweep) -> Table:
    """Tabulate accuracy and training FLOPs of each method: a row for each sparsity and budget."""
    cells = cells_of(sweep)
    order = {name: _order(one) for cell in cells for name, one in cell.methods.items()}
    names = sorted(order, key=order.__getitem__)
    counts = [(name, len(one["values"])) for cell in cells for name, one in cell.methods.items()]
    usual = statistics.mode([n for name, n in counts if name == OURS] or [n for _, n in counts] or [0])
    header, body = ["zeros", "epochs", *names], []
    for cell in cells:
        row = [f"{cell.sparsity:.0%}", str(cell.epochs)]
        row += [_cell(cell.methods[name], usual) if name in cell.methods else "–" for name in names]
        body.append([*row, _difference(cell)] if OURS in names else row)
    if OURS in names:
        header.append(f"{OURS} − best other")
    first = next(iter(sweep.values()))
    return f"{name}: {first['recipe']}, {len(sweep)} budgets", header, body, _note(sweep, usual)


def _order(one: dict[str, Any]) -> tuple[bool, bool, int]:
    """Return the place of a method: the default first, then methods as `acdc ls` has them, variants, dense training."""
    known = methods.names()
    place = known.index(one["method"]) if one["method"] in known else len(known)
    return one["asked"] is None, one["name"] != OURS, place


def _cell(one: dict[str, Any], usual: int) -> str:
    n = len(one["values"])
    seeds = f", {n} seed{'s' * (n > 1)}" if n != usual else ""
    return f"{comparisons.percent(one['values'])} ({one['training']:.2f}x{seeds})"


def _difference(cell: Cell) -> str:
    ours, best = cell.mean(OURS), cell.best_other()
    return f"{_signed(ours - best[1])} ({best[0]})" if ours is not None and best else "–"


def _signed(points: float) -> str:
    return f"{points:+.2f}".replace("-", "−")


def summary(sweep: Sweep) -> str:
    """State how the default compares with the best other method of each row, and with GMP; "" without a default."""
    to_best, to_gmp = list[tuple[float, str]](), list[float]()
    for cell in cells_of(sweep):
        ours, best, gmp = cell.mean(OURS), cell.best_other(), cell.mean(PRUNED_LATE)
        if ours is not None and best is not None:
            to_best.append((ours - best[1], cell.where))
        if ours is not None and gmp is not None:
            to_gmp.append(ours - gmp)
    if not to_best:
        return ""
    (lowest, where), average = min(to_best), statistics.fmean(gap for gap, _ in to_best)
    over = f"on average over {len(to_best)} rows, lowest {_signed(lowest)} at {where}"
    text = f"{OURS} − best other: {_signed(average)} {over}."
    if to_gmp:
        text += f" {OURS} − {PRUNED_LATE}: {_signed(statistics.fmean(to_gmp))} on average over {len(to_gmp)} rows."
    return text


def _note(sweep: Sweep, usual: int) -> str:
    """Return where and with what a sweep was measured, how to read it, and what is missing."""
    places = list(dict.fromkeys(keeping.place(kept) for kept in sweep.values()))
    notes = list(dict.fromkeys(kept["note"] for kept in sweep.values() if kept.get("note")))
    what = (
        f"Test accuracy of the last epoch in %, mean ± std over {usual} seeds unless it says otherwise; in brackets "
        "training FLOPs, of dense training over as many epochs."
    )
    left = [
        f"Not trained yet over {epochs} epochs: {comparisons.describe_missing(kept)}."
        for epochs, kept in sweep.items()
        if kept["missing"]
    ]
    return " ".join(filter(None, [*places, what, summary(sweep), *notes, *left]))


# Pages


def figures(name: str, results: Path, page: Path) -> str:
    """Return the kept figures of a sweep as Markdown for a page."""
    lines = []
    for figure, against in FIGURES.items():
        path = place_of(name, results) / f"{figure}.svg"
        if path.is_file():
            alt = f"Test accuracy against {against}, a line for each method, a panel for each sparsity"
            lines.append(f"![{alt}]({os.path.relpath(path, page.parent)})\n")
    return "\n".join(lines)


def blocks(results: Path, page: Path) -> str:
    """Return the tables and figures of all kept sweeps, for a page of docs/."""
    return "\n".join(_block(name, sweep, results, page) for name, sweep in read_all(results).items())


def _block(name: str, sweep: Sweep, results: Path, page: Path) -> str:
    _, header, rows, note = table(name, sweep)
    first = next(iter(sweep.values()))
    lines = [f"**{first['recipe']}**\n", _line(header), "|---" * len(header) + "|", *map(_line, rows), ""]
    return "\n".join([*lines, figures(name, results, page), f"<sub>{note}</sub>"]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.budgets", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("name", help="what the sweep is called under results/comparisons/budgets")
    parser.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="written by acdc compare-methods, one a budget"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--commit", help="commit of the code that ran")
    parser.add_argument("--note", help="what a reader of the table should know")
    options = parser.parse_args(arguments)
    target = place_of(options.name, options.results)
    if options.folders:
        try:
            say(f"kept: {keep(options.folders, options.name, options.results, options.commit, options.note)}")
        except (OSError, ValueError) as error:
            parser.error(str(error))
    elif read_sweep(target):
        say(f"drawn: {', '.join(map(str, draw(target)))}")
    else:
        parser.error(f"nothing is kept in {target}; type the folders to keep after the name")
    print_table(*table(options.name, read_sweep(target)))
    return 0


if __name__ == "__main__":
    run(main)
