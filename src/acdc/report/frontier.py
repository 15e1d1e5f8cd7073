"""Accuracy against training FLOPs: which setting gives most for what it costs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from acdc.report import facts, plot, words
from acdc.report.several import Group, legend_of
from acdc.report.theme import LIGHT, Chart

_MARKS = {"sparse": "o", "baseline": "s", "twin": "^", "finetuned": "D", "other": "o"}
_WORDS = {"sparse": "sparse", "baseline": "dense", "twin": "dense twin", "finetuned": "fine-tuned twin"}


@dataclass(frozen=True)
class Point:
    group: Group
    role: str
    cost: float  # training FLOPs, as a fraction of the dense run of as many epochs
    accuracy: float
    std: float
    seeds: int

    @property
    def name(self) -> str:
        return f"{self.group.label}, {_WORDS[self.role]}"


def points(found: Sequence[Group]) -> list[Point]:
    """Costs are set against the longest dense run of the lot, so that a shorter run is a cheaper one."""
    longest = max(run.planned for group in found for run in group.runs)
    made = []
    for group in found:
        for role in _WORDS:
            pairs = [
                (model.training * run.planned / longest, model.accuracy)
                for run in group.runs
                if (model := facts.of_role(run, role)) and model.training is not None
            ]
            if pairs:
                accuracies = [accuracy for _, accuracy in pairs]
                std = statistics.stdev(accuracies) if len(pairs) > 1 else 0.0
                cost = statistics.fmean(cost for cost, _ in pairs)
                made.append(Point(group, role, cost, statistics.fmean(accuracies), std, len(pairs)))
    return made


def best(found: Sequence[Point]) -> list[Point]:
    """Those that nothing cheaper equals, from the cheapest on."""
    front: list[Point] = []
    for point in sorted(found, key=lambda point: (point.cost, -point.accuracy)):
        if not front or point.accuracy > front[-1].accuracy:
            front.append(point)
    return front


def frontier(found: Sequence[Group]) -> Chart | None:
    made = points(found)
    if len(made) < 2:
        return None
    front = best(made)
    top, cheap = front[-1], front[0]
    title = f"{top.name}, is the most accurate at {words.times(top.cost)} of the training FLOPs"
    if cheap is not top:
        other = words.gap(cheap.accuracy, top.accuracy, f"{top.name} ({words.times(top.cost)})")
        title = f"At {words.times(cheap.cost)} of the training FLOPs, {cheap.name}, ends {other}"

    def draw(narrow: bool) -> Figure:
        legend = 17 * len(found)
        width, right = (plot.NARROW, 24) if narrow else (plot.WIDE, 40)
        figure = plot.new(width, (296 if narrow else 376) + legend)
        height = 228 if narrow else 306
        axes = plot.panel(figure, "test accuracy (%)", left=38, right=right, top=24 + legend, height=height)
        axes.plot(
            [p.cost for p in front], [100 * p.accuracy for p in front], color=LIGHT["line"], linewidth=5, zorder=1
        )
        for point in made:
            axes.errorbar(
                point.cost,
                100 * point.accuracy,
                yerr=100 * point.std if point.std else None,
                fmt=_MARKS[point.role],
                color=point.group.colour,
                markersize=8,
                elinewidth=1.2,
                capsize=3,
                zorder=3,
            )
            axes.annotate(
                f"{_WORDS[point.role]} {100 * point.accuracy:.1f}",
                (point.cost, 100 * point.accuracy),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
                fontsize=9.5,
                color=point.group.colour,
            )
        axes.margins(y=0.14)
        costs = [point.cost for point in made]
        axes.set_xlim(max(0, min(costs) - 0.06), max(costs) + (0.3 if narrow else 0.12))
        axes.set_xlabel("training FLOPs (fraction of the longest dense run)")
        legend_of(figure, found, narrow)
        return figure

    listed = "; ".join(
        f"{p.name}: {words.percent(p.accuracy)}{f' ± {100 * p.std:.1f}' if p.seeds > 1 else ''} at {words.times(p.cost)}"
        for p in made
    )
    alt = f"Accuracy against training FLOPs; the pale line joins what nothing cheaper equals. {listed}."
    return Chart("frontier", title, alt, draw, wide=True)
