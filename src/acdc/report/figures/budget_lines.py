"""Figures of accuracy against the training budget: a panel for each sparsity, a line for each method.

One has epochs along x and one training FLOPs, both on logarithmic scales.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from acdc import formatting as fmt
from acdc.report.budgets import Budget, Line, Panel, Point, join_all, panels_of, requested_panels
from acdc.report.figures.annotate import label_ends
from acdc.report.figures.axes import ALONE, NARROW, WIDE, add_panels, set_label, set_score_scale
from acdc.report.figures.chart import Chart
from acdc.report.figures.frontier import best
from acdc.report.figures.theme import LIGHT, SMALL, Style, method_styles
from acdc.report.standings import leaders
from acdc.runs.quality import ACCURACY

_LETTER = 6.0  # pixels, on average
_APART = 3.0  # pixels between the marks of methods at one budget, so that their error bars can be told apart
_BESIDE = 20  # pixels from the ends of an axis to the first and the last mark
_DASHED = (0, (5, 2))  # dense training, for reference
_ROUND = (1, 2, 5)  # the numbers of a logarithmic axis, times powers of ten


@dataclass(frozen=True)
class _Axis:
    """What a figure has along x."""

    label: str
    value: Callable[[Point], float | None]  # None: the point is not drawn
    ticks: Callable[[float, float], dict[float, str]]  # between the ends of the axis
    spread: bool  # methods share their x, and are drawn side by side


def accuracy_by_epochs(budgets: Sequence[Budget]) -> Chart | None:
    """Draw accuracy against the epochs of training, with the steps below them."""
    counted = all(budget.steps is not None for budget in budgets)
    label = f"training budget (epochs{'; below: steps' if counted else ''})"
    names = {float(one.epochs): f"{one.epochs}\n{one.steps:,}" if counted else str(one.epochs) for one in budgets}
    axis = _Axis(label, lambda point: float(point.budget.epochs), lambda low, high: names, spread=True)
    panels = _drawable(budgets, axis)
    return _chart("budget", _range_title(panels, budgets), "epochs of training", panels, axis) if panels else None


def accuracy_by_flops(budgets: Sequence[Budget]) -> Chart | None:
    """Draw accuracy against training FLOPs, in dense epochs, over a pale line of what nothing cheaper equals."""
    axis = _Axis("training FLOPs (in dense epochs)", lambda point: point.dense_epochs, _round_ticks, spread=False)
    panels = _drawable(budgets, axis)
    return _chart("budget-flops", _frontier_title(panels), "training FLOPs", panels, axis) if panels else None


def _drawable(budgets: Sequence[Budget], axis: _Axis) -> list[Panel]:
    """Return the panels with a method that has two points or more, without points that have no place along x."""
    panels = []
    for panel in panels_of(budgets):
        lines = [Line(one.name, one.is_dense, [p for p in one.points if axis.value(p)]) for one in panel.lines]
        if any(len(line.points) > 1 for line in lines if not line.is_dense or panel.level.sparsity is None):
            panels.append(Panel(panel.level, [line for line in lines if line.points]))
    return panels


def _chart(name: str, title: str, against: str, panels: Sequence[Panel], axis: _Axis) -> Chart:
    points = [point for panel in panels for line in panel.lines for point in line.points]
    styles = method_styles([point.standing.group for point in points])
    longest = max(len(_short(line)) for panel in panels for line in panel.lines)
    bars = any(len(point.standing.score.values) > 1 for point in points)
    low, *_, high = sorted(axis.value(point) or 0.0 for point in points)

    def draw(width: int) -> Figure:
        height = max(250, 14 * max(len(panel.lines) for panel in panels))
        sizes = {"left": 36, "right": min(24 + _LETTER * longest, 160), "below": 80 if bars else 66}
        levels = [panel.level for panel in panels]
        figure, all_axes = add_panels(width, levels, "test accuracy (%)", heights=[height] * len(panels), **sizes)
        for panel, axes in zip(panels, all_axes, strict=True):
            axes.set_xlabel(axis.label + ("\nbars: ± std over seeds" if bars else ""))
            axes.set_xscale("log")
            beside = (high / low) ** (_BESIDE / (axes.bbox.width - 2 * _BESIDE))
            axes.set_xlim(low / beside, high * beside)
            _set_ticks(axes, axis.ticks(low / beside, high * beside))
            _draw_panel(axes, panel, axis, styles)
        return figure

    alt = (
        f"Test accuracy against {against}, on a logarithmic scale: a line for each method, means over seeds with ± one "
        f"standard deviation. {' '.join(_describe(panel, axis) for panel in panels)}"
    )
    drawn = lambda narrow: draw(NARROW if narrow else WIDE)  # noqa: E731
    return Chart(name, title, alt, drawn, wide=True, draw_alone=partial(draw, ALONE))


def _draw_panel(axes: Axes, panel: Panel, axis: _Axis, styles: Mapping[str, Style]) -> None:
    points = [point for line in panel.lines for point in line.points]
    scale, floor = _set_scale(axes, points)
    if not axis.spread:
        front = _frontier(panel)
        place = [axis.value(point) or 0 for point in front], [scale(point.standing.score.mean) for point in front]
        axes.plot(*place, color=LIGHT["line"], linewidth=6, zorder=1)
    ends, drawn = [], sorted(panel.lines, key=lambda line: line.is_dense)
    for index, line in enumerate(drawn):
        aside = _APART * (index - (len(drawn) - 1) / 2) if axis.spread else 0.0
        for stretch in _stretches(line, panel):
            _draw_line(axes, stretch, axis, styles[line.name], scale, floor, aside)
        ends.append((scale(line.points[-1].standing.score.mean), _short(line), styles[line.name].colour))
    places = label_ends(axes, ends, apart=14, dx=20)
    for line, y in zip(drawn, places, strict=True):
        style, x = styles[line.name], 1 + 12 / axes.bbox.width
        look = {"color": style.colour, "markersize": 5.5, "transform": axes.transAxes, "clip_on": False}
        axes.plot([x], [y], style.mark, **look, **_hollow(line))


def _stretches(line: Line, panel: Panel) -> list[Line]:
    """Cut a line at budgets that others have and it lacks: a chord over them would show accuracies nobody measured."""
    order = sorted({point.budget.epochs for one in panel.lines for point in one.points})
    stretches: list[list[Point]] = []
    for point in line.points:
        place = order.index(point.budget.epochs)
        if place and stretches and stretches[-1][-1].budget.epochs == order[place - 1]:
            stretches[-1].append(point)
        else:
            stretches.append([point])
    return [Line(line.name, line.is_dense, points) for points in stretches]


def _draw_line(
    axes: Axes, line: Line, axis: _Axis, style: Style, scale: Callable[[float], float], floor: float, aside: float
) -> None:
    """Draw a line with error bars and marks, `aside` pixels from their x; a triangle is a mark below the axes."""
    to_x = lambda x: _moved(axes, x, aside)  # noqa: E731
    xs = [to_x(axis.value(point) or 1.0) for point in line.points]
    means = [point.standing.score.mean for point in line.points]
    look = {"color": style.colour, "zorder": 2.5 if line.is_dense else 3}
    dash = _DASHED if line.is_dense else style.dash
    axes.plot(xs, [scale(mean) for mean in means], linestyle=dash, linewidth=1.5, **look)
    for x, point in zip(xs, line.points, strict=True):
        accuracy = point.standing.score
        low, high = (scale(min(1.0, accuracy.mean + sign * accuracy.std)) for sign in (-1, 1))
        axes.plot([x, x], [low, high], linewidth=1.1, **look)
        if accuracy.mean < floor:
            edge = 5 / axes.bbox.height
            axes.plot([x], [edge], "v", transform=axes.get_xaxis_transform(), markersize=7, **look, **_hollow())
        else:
            axes.plot([x], [scale(accuracy.mean)], style.mark, markersize=5.5, **look, **_hollow(line))


def _hollow(line: Line | None = None) -> dict[str, Any]:
    return {"markerfacecolor": LIGHT["page"], "markeredgewidth": 1.5} if line is None or line.is_dense else {}


def _moved(axes: Axes, x: float, pixels: float) -> float:
    across, up = axes.transData.transform((x, axes.get_ylim()[0]))
    return float(axes.transData.inverted().transform((across + pixels, up))[0])


def _set_scale(axes: Axes, points: Sequence[Point]) -> tuple[Callable[[float], float], float]:
    """Scale y from the lowest run to the highest; return the scale, and the accuracy below which nothing fits.

    On a scale in %, a method that collapsed is shown at the edge and compresses nothing; one of the error has room.
    """
    means = sorted(point.standing.score.mean for point in points)
    middle = statistics.median(means)
    floor = _lowest_in_sight(means) if middle < 0.9 else means[0]
    seen = [point.standing.score.values for point in points if point.standing.score.mean >= floor]
    low, high = min(map(min, seen)), max(map(max, seen))
    scale = set_score_scale(axes, (low, middle, high), points[0].standing.group.images, ACCURACY)
    if means[0] < floor:
        set_label(axes, f"{axes.get_title('left')}, ▽: below")
    return scale, floor


def _lowest_in_sight(means: Sequence[float]) -> float:
    """Return the lowest mean, in rising order, but for a few that are farther below than the others are apart."""
    for index in range(len(means) // 3, 0, -1):
        if means[index] - means[index - 1] > means[-1] - means[index]:
            return means[index]
    return means[0]


def _set_ticks(axes: Axes, names: dict[float, str]) -> None:
    """Write the names of an x axis at their places, without those that would touch the one before them."""
    shown, end = dict[float, str](), float("-inf")
    for x, name in sorted(names.items()):
        middle = float(axes.transData.transform((x, axes.get_ylim()[0]))[0])
        half = 0.3 * SMALL * max(map(len, name.split("\n"))) + 2
        if middle - half >= end:
            shown[x], end = name, middle + half
    axes.set_xticks([*shown], [*shown.values()])
    axes.xaxis.set_minor_locator(NullLocator())


def _round_ticks(low: float, high: float) -> dict[float, str]:
    powers = [10.0**power for power in range(-4, 7)]
    return {one * power: f"{one * power:g}" for power in powers for one in _ROUND if low <= one * power <= high}


# Words


def _short(line: Line) -> str:
    return fmt.shorten(line.name, 22)


def _range_title(panels: Sequence[Panel], budgets: Sequence[Budget]) -> str:
    """State the highest accuracy over the shortest budget and over the longest, at each sparsity."""
    parts = []
    for panel in requested_panels(panels):
        tops = [leaders(at)[0] for budget in (budgets[0], budgets[-1]) if (at := panel.at(budget))]
        ends = [f"{fmt.percent(top.score.mean)} ({top.group.name})" for top in tops]
        parts.append(f"{panel.where}{' to '.join(ends)}")
    return f"Highest accuracy over {budgets[0].epochs} to {budgets[-1].epochs} epochs: {'; '.join(parts)}"


def _frontier(panel: Panel) -> list[Point]:
    """Return the points of sparse methods that none cheaper equals; of all methods, if there are no others."""
    sparse = [line for line in panel.lines if not line.is_dense] or panel.lines
    points = [point for line in sparse for point in line.points]
    return best(points, lambda point: point.dense_epochs or 0.0, lambda point: point.standing.rank)


def _frontier_title(panels: Sequence[Panel]) -> str:
    """State which methods are on the frontier, and over how many epochs."""
    parts = []
    for panel in requested_panels(panels):
        epochs: dict[str, list[str]] = {}
        for point in _frontier(panel):
            epochs.setdefault(point.standing.group.name, []).append(str(point.budget.epochs))
        named = ", ".join(f"{name} over {join_all(of)} epochs" for name, of in epochs.items())
        parts.append(f"{panel.where}{named}")
    return f"What no cheaper sparse training equals: {'; '.join(parts)}"


def _describe(panel: Panel, axis: _Axis) -> str:
    lines = []
    for line in panel.lines:
        points = (f"{fmt.mean_std(p.standing.score.values)} at {axis.value(p):.3g}" for p in line.points)
        lines.append(f"{line.name} {', '.join(points)}")
    return f"{fmt.capitalize(panel.level.title)}: {'; '.join(lines)}."
