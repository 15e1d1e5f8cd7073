"""Figures of accuracy against cost: the best settings, or the best methods at each sparsity, for their cost."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc import formatting as fmt
from acdc.report import facts
from acdc.report.figures.annotate import Mark, label_marks
from acdc.report.figures.axes import ALONE, NARROW, WIDE, add_panel, add_panels, new_figure, set_score_scale
from acdc.report.figures.chart import Chart
from acdc.report.figures.group_curves import LEGEND, add_legend
from acdc.report.figures.theme import LIGHT, Style, group_style, method_styles
from acdc.report.groups import Group, Level, levels_of
from acdc.report.standings import Spread, Standing, leaders, name_leaders, reference_epochs
from acdc.runs.quality import ACCURACY, Quality

T = TypeVar("T")

_MARKS = {"sparse": "o", "baseline": "s", "finetuned": "D"}
_ROLES = {"sparse": "sparse", "baseline": "dense", "finetuned": "dense twin, fine-tuned"}
_SIGNS = {"sparse": "●", "baseline": "□", "finetuned": "◇"}


def best(items: Sequence[T], cost: Callable[[T], float], rank: Callable[[T], float]) -> list[T]:
    """Return the items that nothing cheaper equals, cheapest first; a lower rank is better."""
    front: list[T] = []
    for item in sorted(items, key=lambda item: (cost(item), rank(item))):
        if not front or rank(item) < rank(front[-1]):
            front.append(item)
    return front


# Settings: a mark for each model


@dataclass(frozen=True)
class Point:
    """The models of one role from a setting."""

    group: Group
    role: str
    cost: float  # training FLOPs, as a fraction of the dense run of as many epochs
    score: Spread

    @property
    def rank(self) -> float:
        """Return a number that is lower the better the models are, to sort by."""
        return self.group.quality.rank(self.score.mean)

    @property
    def name(self) -> str:
        """Return the setting and the role, e.g. "90 % sparse, dense"."""
        return f"{self.group.label}, {_ROLES[self.role]}"


def points(groups: Sequence[Group]) -> list[Point]:
    """Return a point for each model. Costs are relative to the longest dense run, so that a shorter run is cheaper."""
    longest = max(run.planned for group in groups for run in group.runs)
    all_points = []
    for group in groups:
        for role in _ROLES:
            pairs = [
                (model.training * run.planned / longest, model.score)
                for run in group.runs
                if (model := facts.model_of(run, role)) and model.training is not None
            ]
            if pairs:
                cost = statistics.fmean(cost for cost, _ in pairs)
                all_points.append(Point(group, role, cost, Spread(tuple(score for _, score in pairs))))
    return all_points


def best_points(points: Sequence[Point]) -> list[Point]:
    """Return the points that nothing cheaper equals, cheapest first."""
    return best(points, lambda point: point.cost, lambda point: point.rank)


def setting_frontier(groups: Sequence[Group]) -> Chart | None:
    """Draw accuracy or perplexity against training FLOPs, a mark for each model of each setting."""
    drawn_points = points(groups)
    if len(drawn_points) < 2:
        return None
    front, images, quality = best_points(drawn_points), groups[0].images, groups[0].quality

    def draw(narrow: bool) -> Figure:
        legend, height = LEGEND * (len(groups) + 1) + 4, 228 if narrow else 306
        figure = new_figure(NARROW if narrow else WIDE, height + 68 + legend)
        axes = add_panel(figure, quality.axis, left=38, right=24, top=24 + legend, height=height)
        scale = set_score_scale(axes, [point.score.mean for point in drawn_points], images, quality)
        heights = [scale(point.score.mean) for point in front]
        axes.plot([p.cost for p in front], heights, color=LIGHT["line"], linewidth=5, zorder=1)
        for point in drawn_points:
            style, score = {"color": group_style(point.group).colour, "zorder": 3}, point.score
            if score.std:
                low, high = (scale(_possible(score, sign, quality)) for sign in (-1, 1))
                axes.plot([point.cost, point.cost], [low, high], linewidth=1.2, **style)
            hollow = {} if point.role == "sparse" else {"markerfacecolor": LIGHT["page"], "markeredgewidth": 1.8}
            axes.plot([point.cost], [scale(score.mean)], _MARKS[point.role], markersize=8, **style, **hollow)
        for point in front:
            place = (point.cost, scale(point.score.mean))
            style = {"fontsize": 9.5, "color": group_style(point.group).colour, "va": "bottom", "ha": "right"}
            text = quality.number(point.score.mean)
            axes.annotate(text, place, xytext=(-7, 4), textcoords="offset points", annotation_clip=False, **style)
        costs = [point.cost for point in drawn_points]
        pad = 0.08 * (max(costs) - min(costs)) + 0.02
        axes.set_xlim(min(costs) - pad, max(costs) + pad)
        axes.set_xlabel("training FLOPs (fraction of the longest dense run)")
        add_legend(figure, groups, narrow)
        y = 1 - (10 + LEGEND * len(groups)) / figure.bbox.height
        roles = [f"{sign} {_ROLES[role]}" for role, sign in _SIGNS.items() if any(p.role == role for p in drawn_points)]
        figure.text(6 / figure.bbox.width, y, "   ".join(roles), va="center", fontsize=10, color=LIGHT["muted"])
        return figure

    listed = "; ".join(f"{p.name}: {_with_std(p.score, quality)} at {fmt.times(p.cost)}" for p in drawn_points)
    name = fmt.capitalize(quality.name.removeprefix("test "))
    alt = f"{name} against training FLOPs; the pale line joins the models that nothing cheaper equals. {listed}."
    return Chart("frontier", fmt.capitalize(_setting_title(drawn_points, images)), alt, draw, wide=True)


def _possible(score: Spread, sign: int, quality: Quality) -> float:
    """Return the mean plus or minus the deviation; no accuracy is above 1."""
    value = score.mean + sign * score.std
    return min(1.0, value) if quality is ACCURACY else value


def _with_std(score: Spread, quality: Quality) -> str:
    std = f" ± {quality.number(score.std)}" if len(score.values) > 1 else ""
    return quality.shown(score.mean) + std


def _setting_title(points: Sequence[Point], images: int | None) -> str:
    """State how the best sparse model compares with the best dense one, or which is best of all."""
    quality = points[0].group.quality
    sparse, dense = ([point for point in points if point.role == role] for role in ("sparse", "baseline"))
    if not sparse or not dense:
        top = min(points, key=lambda point: point.rank)
        most = "most accurate" if quality is ACCURACY else "best"
        return f"{top.group.label} is the {most}, at {fmt.times(top.cost)} of the training FLOPs"
    best_sparse, best_dense = (min(part, key=lambda point: point.rank) for part in (sparse, dense))
    uncertainty = quality.uncertainty(best_sparse.score.values, best_dense.score.values, images)
    means = best_sparse.score.mean, best_dense.score.mean
    gap = quality.gap(*means, "the best dense model", uncertainty=uncertainty)
    ratio = fmt.times(best_sparse.cost / best_dense.cost)
    return f"{best_sparse.group.label} ends {gap}, with {ratio} of its training FLOPs"


# Methods: a panel for each sparsity


@dataclass(frozen=True)
class Cost:
    """A cost to plot accuracy against, for the figure's x axis."""

    name: str  # "training FLOPs"
    unit: str  # what 1 is, for the axis: "fraction of 100 dense epochs"
    share: str  # how the title names it: "its share of dense training FLOPs"
    value: Callable[[Standing], Spread]  # empty if a method has none


def training_cost(groups: Sequence[Group]) -> Cost:
    """Return training FLOPs as the cost, relative to dense training over the reference's epochs."""
    unit = f"fraction of {reference_epochs(groups)} dense epochs"
    return Cost("training FLOPs", unit, "its share of dense training FLOPs", lambda standing: standing.training)


def best_methods(standings: Sequence[Standing], cost: Cost) -> list[Standing]:
    """Return the methods that nothing cheaper equals, cheapest first."""
    return best(standings, lambda one: cost.value(one).mean, lambda one: one.rank)


def method_frontier(standings: Sequence[Standing], cost: Cost | None = None) -> Chart | None:
    """Draw accuracy or perplexity against a cost, by default training FLOPs: a mark with error bars for each method."""
    groups = [one.group for one in standings]
    cost = cost or training_cost(groups)
    known = {one.group.number: one for one in standings if cost.value(one)}
    levels = [level for level in levels_of(groups) if sum(group.number in known for group in level.groups) > 1]
    if not levels:
        return None
    styles, quality = method_styles(groups), groups[0].quality
    at_each = [[known[group.number] for group in level.groups if group.number in known] for level in levels]
    drawn_methods = [one for part in at_each for one in part]

    def draw(width: int) -> Figure:
        height = 330 if width < 600 else 300  # a phone stacks the panels, and has little room beside a mark
        sizes = {"left": 36, "right": 8, "below": 62}
        bars = ", bars ± std" if any(len(one.score.values) > 1 for one in standings) else ""
        figure, panels = add_panels(width, levels, f"{quality.axis}{bars}", heights=[height] * len(levels), **sizes)
        for level, part, axes in zip(levels, at_each, panels, strict=True):
            scale = _set_scale(axes, drawn_methods)
            axes.set_xlabel(f"{cost.name} ({cost.unit})")
            axes.set_xlim(0, 1.08 * max(cost.value(one).mean + cost.value(one).std for one in drawn_methods))
            _draw_marks(axes, level, part, cost, styles, scale)
        return figure

    alt = (
        f"{quality.title} against {cost.name}, means over seeds with ± one standard deviation; the pale line joins "
        f"the methods that nothing cheaper equals. {_list_all(levels, at_each, cost)}"
    )
    drawn = lambda narrow: draw(NARROW if narrow else WIDE)  # noqa: E731
    title = _method_title(levels, at_each, cost)
    return Chart("frontier", title, alt, drawn, wide=True, draw_alone=lambda: draw(ALONE))


def _set_scale(axes: Axes, standings: Sequence[Standing]) -> Callable[[float], float]:
    """Scale y the same in all panels, from the lowest error bar to the highest."""
    quality = standings[0].group.quality
    means = sorted(one.score.mean for one in standings)
    low = min(_possible(one.score, -1, quality) for one in standings)
    high = max(_possible(one.score, 1, quality) for one in standings)
    return set_score_scale(axes, (low, means[len(means) // 2], high), standings[0].group.images, quality)


def _draw_marks(
    axes: Axes,
    level: Level,
    standings: Sequence[Standing],
    cost: Cost,
    styles: Mapping[str, Style],
    scale: Callable[[float], float],
) -> None:
    front = best_methods(standings, cost)
    heights = [scale(one.score.mean) for one in front]
    axes.plot([cost.value(one).mean for one in front], heights, color=LIGHT["line"], linewidth=5, zorder=1)
    marks = []
    for one in standings:
        style, x, y = styles[one.group.name], cost.value(one), one.score
        left, right, height = x.mean - x.std, x.mean + x.std, scale(y.mean)
        low, high = (scale(_possible(y, sign, one.group.quality)) for sign in (-1, 1))
        look = {"color": style.colour, "zorder": 3}
        axes.plot([left, right], [height] * 2, linewidth=1.1, **look)
        axes.plot([x.mean] * 2, [low, high], linewidth=1.1, **look)
        hollow = {"markerfacecolor": LIGHT["page"], "markeredgewidth": 1.7} if one.group.is_dense else {}
        axes.plot([x.mean], [height], style.mark, markersize=7, **look, **hollow)
        marks.append(Mark(x.mean, height, level.name(one.group), style.colour, (left, right, low, high)))
    label_marks(axes, marks, beyond=6)


def _method_title(levels: Sequence[Level], at_each: Sequence[Sequence[Standing]], cost: Cost) -> str:
    """State the best sparse method at each sparsity, and what it cost."""
    parts, quality = [], at_each[0][0].group.quality
    requested = [pair for pair in zip(levels, at_each, strict=True) if pair[0].sparsity is not None]
    for level, standings in requested or zip(levels, at_each, strict=True):
        top = leaders(standings)
        where = f"at {level.title} " if level.sparsity is not None else ""
        first = f"{level.name(top[0].group)} " if len(top) > 1 else ""
        result = f"{first}{quality.shown(top[0].score.mean)} for {fmt.times(cost.value(top[0]).mean)}"
        parts.append(f"{where}{name_leaders(level, top)} ({result})")
    return f"{'Most accurate' if quality is ACCURACY else 'Best'}, and {cost.share}: {'; '.join(parts)}"


def _list_all(levels: Sequence[Level], at_each: Sequence[Sequence[Standing]], cost: Cost) -> str:
    parts = []
    for level, standings in zip(levels, at_each, strict=True):
        quality = standings[0].group.quality
        methods = (
            f"{one.group.name} {quality.mean_std(one.score.values)}{quality.symbol} at "
            f"{fmt.times(cost.value(one).mean)}"
            for one in standings
        )
        parts.append(f"{fmt.capitalize(level.title)}: {', '.join(methods)}.")
    return " ".join(parts)
