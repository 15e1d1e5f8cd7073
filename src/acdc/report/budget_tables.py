"""Text tables of several training budgets: a row for each method and sparsity, a column for each budget."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from acdc import formatting as fmt
from acdc.report import group_tables
from acdc.report.budgets import Budget, Line, Panel, Point
from acdc.report.tables import Table, or_dash

_ACCURACY = (
    "Test accuracy in %, mean ± standard deviation (n − 1) over seeds, last epoch; without ± a single seed. Click a "
    "column to sort by it."
)
_FLOPS = (
    "Theoretical training FLOPs, by the rule on each method’s card, as fractions of dense training over as many epochs."
)


def accuracy(panels: Sequence[Panel], budgets: Sequence[Budget]) -> Table:
    """List test accuracy over every budget."""
    return _table("budget", "Accuracy against budget", panels, budgets, _accuracy, _ACCURACY)


def training_flops(panels: Sequence[Panel], budgets: Sequence[Budget]) -> Table:
    """List training FLOPs over every budget."""
    flops: Callable[[Point], str] = lambda point: or_dash(point.dense_epochs, lambda _: _times(point))  # noqa: E731
    return _table("budget-flops", "Training FLOPs by budget", panels, budgets, flops, _FLOPS)


def methods(budgets: Sequence[Budget]) -> list[Table]:
    """List, for each budget, every method at every sparsity with all that was measured."""
    return [
        replace(
            group_tables.methods(budget.standings),
            name=f"several-{budget.epochs}",
            title=f"Methods over {budget.epochs} epochs",
        )
        for budget in budgets
    ]


def _table(
    name: str, title: str, panels: Sequence[Panel], budgets: Sequence[Budget], cell: Callable[[Point], str], note: str
) -> Table:
    rows, seen = list[list[str]](), set[str]()
    for panel in panels:
        for line in panel.lines:
            if line.is_dense and line.name in seen:  # it is in every panel
                continue
            seen.add(line.name)
            at = {point.budget.epochs: cell(point) for point in line.points}
            zeros = "none" if line.is_dense else panel.level.title.removesuffix(" zeros")
            rows.append([line.name, zeros, *(at.get(budget.epochs, "–") for budget in budgets), _seeds(line)])
    rows.sort(key=lambda row: row[1] == "none")
    header = ["method", "zeros", *(f"{budget.epochs} epochs" for budget in budgets), "seeds"]
    return Table(name, title, header, rows, note, text=2, sortable=True)


def _accuracy(point: Point) -> str:
    return fmt.mean_std(point.standing.score.values)


def _times(point: Point) -> str:
    return fmt.times(point.standing.training.mean)


def _seeds(line: Line) -> str:
    counts = sorted({len(point.standing.group.runs) for point in line.points})
    return "–".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
