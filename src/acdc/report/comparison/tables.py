"""The comparison's tables: the console and the page show the same cells."""

import statistics
from collections.abc import Sequence

from acdc.report import words
from acdc.report.comparison.rows import Row, Spread, reference
from acdc.report.pairs import unchecked
from acdc.report.several import Group, settings_of
from acdc.report.tables import Table, flatten

AGREEMENT = (
    "Top-1 agreement: the share of test images to which two models give the same class, in %. Own twin: the sparse "
    "model and the dense model of the same run (AC/DC's last dense phase, the dense start of methods that prune "
    "later). Dense run: the sparse model and the dense run of the same seed; in the line of dense training, dense runs "
    "of different seeds with each other: how far two dense models agree anyway."
)


HEADER = ("method", "zeros, %", "test accuracy, %", "inference FLOPs", "training FLOPs", "epochs", "seeds")


def methods(made: Sequence[Row]) -> Table:
    """One line for each method at each sparsity."""
    epochs = reference([row.group for row in made])
    twins = any(row.twin for row in made)
    header = ["method", "zeros, %", "test accuracy, %", "inference FLOPs", "training FLOPs", "seeds", "epochs"]
    rows = [
        [
            row.group.name,
            _percent(row.zeros),
            words.spread(row.accuracy.values),
            _times(row.inference),
            _times(row.training),
            str(len(row.group.runs)),
            str(row.epochs),
            *([words.spread(row.twin.values)] if twins else []),
            _time(row.group),
        ]
        for row in made
    ]
    note = (
        "Mean ± standard deviation (n − 1) over seeds, of the last epoch. FLOPs in theory: inference as a fraction of "
        f"the dense model’s, training by the rule of each method’s card as a fraction of {epochs} epochs of dense "
        "training: AC/DC’s is the paper’s, and methods that need the gradients of more weights cost more. Time is "
        "of the whole run. Click a column to sort by it."
    )
    header += [*(["dense twin, %"] if twins else []), "time"]
    return Table("several", "Methods", header, rows, note, sortable=True)


def agreement(made: Sequence[Row]) -> Table | None:
    """Of sparse models and dense ones."""
    known = [row for row in made if row.with_twin or row.with_dense]
    if not known:
        return None
    rows = [
        [
            row.group.name,
            _percent(row.zeros),
            words.spread(row.with_twin.values),
            words.spread(row.with_dense.values),
            str(max(len(row.with_twin.values), len(row.with_dense.values))),
        ]
        for row in known
    ]
    header = ["method", "zeros, %", "with its own twin, %", "with the dense run, %", "pairs"]
    sources = {one.source for row in known for run in row.group.runs for one in run.kept.values()}
    note = f"{AGREEMENT} Mean ± std over seeds. {unchecked(sources)}".rstrip()
    return Table("agreement", "Sparse–dense agreement", header, rows, note, sortable=True)


def shared(groups: Sequence[Group]) -> Table:
    """Settings that all runs have."""
    flat = [flatten(settings_of(group)) for group in groups]
    same = {key: value for key, value in flat[0].items() if all(other.get(key) == value for other in flat)}
    rows = [[key, value] for key, value in same.items()]
    return Table("settings", "Settings of all runs", ["setting", "value"], rows, text=2)


def own(groups: Sequence[Group]) -> Table:
    """And those that they do not share."""
    flat = [flatten(settings_of(group)) for group in groups]
    keys = [key for key in dict.fromkeys(key for one in flat for key in one) if len({one.get(key) for one in flat}) > 1]
    rows = [
        [group.label, "; ".join(f"{key} = {one[key]}" for key in keys if key in one)]
        for group, one in zip(groups, flat, strict=True)
    ]
    return Table("own", "Settings of each method", ["method", "settings"], rows, text=2)


def _percent(spread: Spread) -> str:
    """As many seeds as make a difference: sparsity asked for is the same in all."""
    if spread.std < 5e-5:
        return words.fixed(100 * spread.mean, 2)
    return f"{words.fixed(100 * spread.mean, 2)} ± {words.fixed(100 * spread.std, 2)}"


def _times(spread: Spread) -> str:
    if not spread:
        return "–"
    return f"{spread.mean:.3f}x" + (f" ± {spread.std:.3f}" if spread.std >= 5e-4 else "")


def _time(group: Group) -> str:
    seconds = [run.result.seconds for run in group.runs if run.result and run.result.seconds is not None]
    return words.duration(statistics.fmean(seconds)) if seconds else "–"


def plain_rows(made: Sequence[Row]) -> list[Sequence[str]]:
    """For the console: what a terminal has room for."""
    return [
        (row.group.name, _percent(row.zeros), words.spread(row.accuracy.values), f"{row.inference.mean:.2f}x",
         f"{row.training.mean:.2f}x" if row.training else "–", str(row.epochs), str(len(row.group.runs)))
        for row in made
    ]  # fmt: skip
