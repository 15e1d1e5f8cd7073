"""The comparison in numbers: a line for each method at each sparsity, mean and standard deviation over seeds.

The console's table, result.json, the page's tables and its figures all read these.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acdc.report import facts, words
from acdc.report.comparison import agreement
from acdc.report.comparison.levels import Level, dense, levels
from acdc.report.facts import Model
from acdc.report.several import Group


@dataclass(frozen=True)
class Spread:
    """Over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        """Of the sample (n − 1); 0 where there is one value alone."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    def __bool__(self) -> bool:
        return bool(self.values)


@dataclass(frozen=True, kw_only=True)
class Row:
    group: Group
    level: Level  # the first that it stands in
    accuracy: Spread
    zeros: Spread
    inference: Spread  # FLOPs, as fractions of the dense model's
    training: Spread  # FLOPs, as fractions of dense training over the reference's epochs
    epochs: int
    twin: Spread  # accuracy of the method's own dense twin, where it leaves one
    with_twin: Spread  # top-1 agreement of the sparse model and that twin
    with_dense: Spread  # and with the dense run of the same seed; for dense runs, with those of other seeds

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.group.runs]


def reference(groups: Sequence[Group]) -> int:
    """Epochs of the dense training that costs are set against: the comparison's own, or the longest run's."""
    runs = [run for group in groups for run in group.runs]
    said = {run.cell.epochs if run.cell else None for run in runs}
    only = said.pop() if len(said) == 1 else None
    return only if only is not None else max(run.planned for run in runs)


def rows(groups: Sequence[Group]) -> list[Row]:
    """The sparsest first, then the most accurate; dense training last."""
    epochs, agreed = reference(groups), agreement.found(groups)
    at = {group.number: level for level in reversed(levels(groups)) for group in level.groups}
    made = [_row(group, at[group.number], epochs, agreed) for group in groups]
    return sorted(made, key=lambda row: (dense(row.group), -(row.level.sparsity or 0), -row.accuracy.mean))


def _row(group: Group, level: Level, epochs: int, agreed: Mapping[int, agreement.Agreed]) -> Row:
    def over(role: str, value: Callable[[Model], float | None]) -> Spread:
        return Spread(tuple(group.values(role, value)))

    spent = [
        model.training * run.planned / epochs
        for run in group.runs
        if (model := facts.of_role(run, group.main)) and model.training is not None
    ]
    return Row(
        group=group,
        level=level,
        accuracy=over(group.main, lambda model: model.accuracy),
        zeros=over(group.main, lambda model: model.sparsity),
        inference=over(group.main, lambda model: model.ratio),
        training=Spread(tuple(spent)),
        epochs=group.runs[0].planned,
        twin=over("twin", lambda model: model.accuracy),
        with_twin=Spread(agreed[group.number].twin),
        with_dense=Spread(agreed[group.number].dense),
    )


def leaders(made: Sequence[Row]) -> list[Row]:
    """The sparse methods that end highest, the best first: several, where they are too close to tell apart."""
    sparse = sorted((row for row in made if not dense(row.group)), key=lambda row: -row.accuracy.mean)
    ranked = sparse or sorted(made, key=lambda row: -row.accuracy.mean)
    images = ranked[0].group.runs[0].images
    return [row for row in ranked if words.alike(row.accuracy.values, ranked[0].accuracy.values, images)]


def names(level: Level, found: Sequence[Row]) -> str:
    """Of those too close to tell apart, that too."""
    said = words.listed([level.name(row.group) for row in found])
    return f"{said}, too close to tell apart" if len(found) > 1 else said


def as_json(made: Iterable[Row]) -> list[dict[str, Any]]:
    """What result.json of a comparison holds."""
    return [
        {
            "method": row.group.method,
            "asked": row.group.asked,
            "seeds": row.seeds,
            "epochs": row.epochs,
            "values": list(row.accuracy.values),
            **_told("test_accuracy", row.accuracy, std="std"),
            **_told("sparsity", row.zeros),
            **_told("inference", row.inference),
            **_told("training", row.training),
            **_told("twin_accuracy", row.twin),
            **_told("agreement_with_twin", row.with_twin),
            **_told("agreement_with_dense", row.with_dense),
        }
        for row in made
    ]


def _told(name: str, spread: Spread, std: str | None = None) -> dict[str, float | None]:
    """One value alone has no deviation; none at all is not there."""
    several = len(spread.values) > 1
    return {name: spread.mean, std or f"{name}_std": spread.std if several else None} if spread else {}
