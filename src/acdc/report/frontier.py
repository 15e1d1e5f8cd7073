"""Accuracy against training FLOPs: which setting gives most for what it costs."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from acdc.report import facts, plot, words
from acdc.report.overlay import LEGEND, legend_of
from acdc.report.several import Group
from acdc.report.theme import LIGHT, Chart

_MARKS = {"sparse": "o", "baseline": "s", "finetuned": "D"}
_WORDS = {"sparse": "sparse", "baseline": "dense", "finetuned": "dense twin, fine-tuned"}


@dataclass(frozen=True)
class Point:
    group: Group
    role: str
    cost: float  # training FLOPs, as a fraction of the dense run of as many epochs
    values: tuple[float, ...]  # accuracies, one for each seed

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.values)

    @property
    def std(self) -> float:
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0

    @property
    def name(self) -> str:
        return f"{self.group.label}, {_WORDS[self.role]}"

    @property
    def said(self) -> str:
        return words.percent(self.accuracy) + (f" ± {words.fixed(100 * self.std)}" if len(self.values) > 1 else "")


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
                cost = statistics.fmean(cost for cost, _ in pairs)
                made.append(Point(group, role, cost, tuple(accuracy for _, accuracy in pairs)))
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
    images = found[0].runs[0].images

    def draw(narrow: bool) -> Figure:
        legend, height = LEGEND * (len(found) + 1) + 4, 228 if narrow else 306
        figure = plot.new(plot.NARROW if narrow else plot.WIDE, height + 68 + legend)
        axes = plot.panel(figure, "test accuracy (%)", left=38, right=24, top=24 + legend, height=height)
        scale = plot.accuracy_scale(axes, [point.accuracy for point in made], images)
        heights = [scale(point.accuracy) for point in front]
        axes.plot([p.cost for p in front], heights, color=LIGHT["line"], linewidth=5, zorder=1)
        for point in made:
            style = {"color": point.group.colour, "zorder": 3}
            if point.std:
                low, high = (scale(min(1, point.accuracy + sign * point.std)) for sign in (-1, 1))
                axes.plot([point.cost, point.cost], [low, high], linewidth=1.2, **style)
            hollow = {} if point.role == "sparse" else {"markerfacecolor": LIGHT["page"], "markeredgewidth": 1.8}
            axes.plot([point.cost], [scale(point.accuracy)], _MARKS[point.role], markersize=8, **style, **hollow)
        for point in front:
            place = (point.cost, scale(point.accuracy))
            style = {"fontsize": 9.5, "color": point.group.colour, "va": "bottom", "ha": "right"}
            text = words.fixed(100 * point.accuracy)
            axes.annotate(text, place, xytext=(-7, 4), textcoords="offset points", annotation_clip=False, **style)
        costs = [point.cost for point in made]
        pad = 0.08 * (max(costs) - min(costs)) + 0.02
        axes.set_xlim(min(costs) - pad, max(costs) + pad)
        axes.set_xlabel("training FLOPs (fraction of the longest dense run)")
        legend_of(figure, found, narrow)
        y = 1 - (10 + LEGEND * len(found)) / figure.bbox.height
        figure.text(6 / figure.bbox.width, y, _roles(made), va="center", fontsize=10, color=LIGHT["muted"])
        return figure

    listed = "; ".join(f"{p.name}: {p.said} at {words.times(p.cost)}" for p in made)
    alt = f"Accuracy against training FLOPs; the pale line joins what nothing cheaper equals. {listed}."
    return Chart("frontier", words.sentence(_title(made, images)), alt, draw, wide=True)


def _title(made: Sequence[Point], images: int | None) -> str:
    """The best sparse model against the best dense one, or the best of all."""
    sparse, dense = ([point for point in made if point.role == role] for role in ("sparse", "baseline"))
    if not sparse or not dense:
        top = max(made, key=lambda point: point.accuracy)
        return f"{top.group.label} is the most accurate, at {words.times(top.cost)} of the training FLOPs"
    best_sparse, best_dense = (max(part, key=lambda point: point.accuracy) for part in (sparse, dense))
    doubt = words.doubt(best_sparse.values, best_dense.values, images)
    gap = words.gap(best_sparse.accuracy, best_dense.accuracy, "the best dense model", doubt=doubt)
    ratio = words.times(best_sparse.cost / best_dense.cost)
    return f"{best_sparse.group.label} ends {gap}, with {ratio} of its training FLOPs"


def _roles(made: Sequence[Point]) -> str:
    signs = {"sparse": "●", "baseline": "□", "finetuned": "◇"}
    return "   ".join(f"{sign} {_WORDS[role]}" for role, sign in signs.items() if any(p.role == role for p in made))
