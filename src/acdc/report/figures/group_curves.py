"""Figures over the epochs of several runs: a line for each setting or method, the mean over its seeds."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from acdc import formatting as fmt
from acdc.report import facts
from acdc.report.figures.annotate import label_ends
from acdc.report.figures.axes import (
    HALF,
    NARROW,
    WIDE,
    add_panel,
    add_panels,
    count_epochs,
    new_figure,
    set_log_if_wide,
    set_score_scale,
    shade,
)
from acdc.report.figures.chart import Chart
from acdc.report.figures.theme import LIGHT, group_style, method_styles
from acdc.report.groups import Group, Level, levels_of
from acdc.runs.quality import quality_of
from acdc.runs.records import EpochRow

LEGEND = 17  # pixels for each group
_LETTER = 6.0  # pixels, on average
_EPOCHS = "epochs trained"


@dataclass(frozen=True)
class Curve:
    """A curve over the epochs that every seed has, with the mean, the lowest and the highest value."""

    epochs: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]

    @property
    def end(self) -> float:
        """Return the mean after the last epoch."""
        return self.mean[-1]


def curve_of(group: Group, value: Callable[[EpochRow], float]) -> Curve:
    """Return a value of the main stage over the epochs."""
    stages = [{row.epoch + 1: value(row) for row in run.stage(run.main)} for run in group.runs]
    shared = sorted(set.intersection(*(set(stage) for stage in stages)))
    values = [[stage[epoch] for stage in stages] for epoch in shared]
    return Curve(shared, [statistics.fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values])


def _score(row: EpochRow) -> float:
    return quality_of(row).of(row)


def _loss(row: EpochRow) -> float:
    return row.loss


# Settings: all in one panel, with a legend


def score(groups: Sequence[Group]) -> Chart:
    """Draw test accuracy, or perplexity: the mean over seeds, and the range from lowest to highest."""
    curves = {group.number: curve_of(group, _score) for group in groups}
    rows = [row for group in groups for run in group.runs for row in run.stage(run.main)]
    last, phases, quality = _last_epoch(groups), _shared_phases(groups), groups[0].quality

    def draw(narrow: bool) -> Figure:
        legend, height = LEGEND * len(groups) + 4, 232 if narrow else 332
        figure = new_figure(NARROW if narrow else WIDE, height + 68 + legend)
        axes = add_panel(figure, quality.axis, left=34, right=52, top=24 + legend, height=height)
        scale = set_score_scale(axes, map(_score, rows), groups[0].images, quality)
        shade(axes, phases)
        ends = []
        for group in groups:
            curve, style = curves[group.number], group_style(group)
            heights = [scale(v) for v in curve.mean]
            axes.plot(curve.epochs, heights, color=style.colour, linestyle=style.dash, linewidth=1.5)
            if len(group.runs) > 1:
                edges = [scale(v) for v in curve.low], [scale(v) for v in curve.high]
                axes.fill_between(curve.epochs, *edges, color=style.colour, alpha=0.18, linewidth=0)
            ends.append((heights[-1], quality.number(curve.end), style.colour))
        count_epochs(axes, last, label=_epochs_label(phases))
        label_ends(axes, ends)
        add_legend(figure, groups, narrow)
        return figure

    ends = "; ".join(f"{group.label} ends at {quality.shown(curves[group.number].end)}" for group in groups)
    alt = f"{quality.title} over the epochs, mean over seeds with the range from lowest to highest. {ends}."
    return Chart("curves", fmt.capitalize(_score_title(groups)), alt, draw, wide=True)


def add_legend(figure: Figure, groups: Sequence[Group], narrow: bool) -> None:
    """Give each group its own line above the axes."""
    height, width = figure.bbox.height, figure.bbox.width
    for index, group in enumerate(groups):
        y, style = 1 - (10 + LEGEND * index) / height, group_style(group)
        line = {"color": style.colour, "linestyle": style.dash, "linewidth": 2.2}
        figure.add_artist(Line2D([6 / width, 28 / width], [y, y], **line))
        seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
        text = fmt.shorten(group.label, 52 if narrow else 130) + seeds
        figure.text(36 / width, y, text, va="center", fontsize=10, color=LIGHT["ink"], parse_math=False)


def _score_title(groups: Sequence[Group]) -> str:
    quality = groups[0].quality
    final = [(statistics.fmean(group.scores()), group) for group in groups]
    best, top = min(final, key=lambda pair: quality.rank(pair[0]))
    worst, bottom = max(final, key=lambda pair: quality.rank(pair[0]))
    values = top.scores()
    if len(groups) == 1:
        if len(values) == 1:
            return f"{top.label} ends at {quality.shown(best)}"
        points = " points" if quality.symbol else ""
        return f"{len(values)} seeds end within {quality.number(max(values) - min(values))}{points} of each other"
    if quality.indistinguishable(values, bottom.scores(), top.images):
        return f"{len(groups)} settings end too close to tell apart, at {quality.shown(worst)} to {quality.shown(best)}"
    gap = quality.gap(best, worst, bottom.label)
    return f"{top.label} ends {quality.superlative}, at {quality.shown(best)}, {gap}"


def _last_epoch(groups: Sequence[Group]) -> int:
    return max(run.planned for group in groups for run in group.runs)


def _shared_phases(groups: Sequence[Group]) -> Sequence[facts.Phase]:
    """Return the phases, if all groups have the same."""
    kinds = {tuple((phase.first, phase.kind) for phase in facts.phases(group.runs[0])) for group in groups}
    return facts.phases(groups[0].runs[0]) if len(kinds) == 1 else []


def _epochs_label(phases: Sequence[facts.Phase]) -> str:
    return f"{_EPOCHS} (shaded: compressed)" if any(p.kind == "sparse" for p in phases) else _EPOCHS


def loss(groups: Sequence[Group]) -> Chart:
    """Draw the training loss, averaged over seeds."""
    curves = {group.number: curve_of(group, _loss) for group in groups}
    lowest = min(groups, key=lambda group: curves[group.number].end)
    title = f"Training loss ends lowest for {lowest.label}, at {curves[lowest.number].end:.2g}"
    if len(groups) == 1:
        title = f"Training loss ends at {curves[lowest.number].end:.2g}"
    phases, last = _shared_phases(groups), _last_epoch(groups)

    def draw(narrow: bool) -> Figure:
        legend = LEGEND * len(groups) + 4
        figure = new_figure(HALF, 270 + legend)
        axes = add_panel(figure, "training loss (nats per image)", left=36, right=46, top=24 + legend, height=204)
        shade(axes, phases)
        ends = []
        for group in groups:
            curve, style = curves[group.number], group_style(group)
            axes.plot(curve.epochs, curve.mean, color=style.colour, linestyle=style.dash, linewidth=1.5)
            ends.append((curve.end, f"{curve.end:.2g}", style.colour))
        set_log_if_wide(axes, [value for curve in curves.values() for value in curve.mean])
        count_epochs(axes, last, label=_epochs_label(phases))
        label_ends(axes, ends)
        add_legend(figure, groups, True)
        return figure

    ends = "; ".join(f"{group.label} ends at {curves[group.number].end:.3g}" for group in groups)
    return Chart("losses", title, f"Training loss over the epochs, mean over seeds. {ends}.", draw)


def mask_change(groups: Sequence[Group]) -> Chart | None:
    """Draw the share of kept weights that the previous mask had pruned, at each compression, averaged over seeds."""
    moved = [(group, points) for group in groups if (points := _regrown(group))]
    if not moved:
        return None
    ends = {group.number: points[-1][1] for group, points in moved}
    least, most = (pick(moved, key=lambda pair: pair[1][-1][1])[0] for pick in (min, max))
    title = f"At the last compression {fmt.short_percent(ends[most.number])} of the kept weights are new"
    if len({fmt.short_percent(share) for share in ends.values()}) > 1:
        title += f" for {most.label}, {fmt.short_percent(ends[least.number])} for {least.label}"

    def draw(narrow: bool) -> Figure:
        legend = LEGEND * len(moved) + 4
        figure = new_figure(HALF, 270 + legend)
        axes = add_panel(figure, "new weights (% of those kept)", left=36, right=46, top=24 + legend, height=204)
        labels = []
        for group, points in moved:
            x, y = [number for number, _ in points], [100 * share for _, share in points]
            style = group_style(group)
            axes.plot(x, y, color=style.colour, linestyle=style.dash, marker="o", markersize=5)
            labels.append((y[-1], fmt.fixed(y[-1]), style.colour))
        axes.set_ylim(bottom=0)
        axes.set_xlim(1.5, max(points[-1][0] for _, points in moved) + 0.3)
        axes.locator_params(axis="x", integer=True, nbins=8)
        axes.set_xlabel("compression (number)")
        label_ends(axes, labels)
        add_legend(figure, [group for group, _ in moved], True)
        return figure

    listed = "; ".join(
        f"{group.label}: " + ", ".join(f"{fmt.short_percent(share)} at compression {n}" for n, share in points)
        for group, points in moved
    )
    return Chart("masks", title, f"Kept weights that the previous mask had pruned. {listed}.", draw)


def _regrown(group: Group) -> list[tuple[int, float]]:
    """Return compressions with the fraction of kept weights that are new, if every seed has one."""
    seeds = []
    for run in group.runs:
        sparse = [phase for phase in facts.phases(run) if phase.kind == "sparse"]
        shares = {number: phase.end.regrown if phase.end else None for number, phase in enumerate(sparse, 1)}
        seeds.append({number: share for number, share in shares.items() if share is not None})
    shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return [(number, statistics.fmean(seed[number] for seed in seeds)) for number in shared]


# Methods: a panel for each sparsity, with names at the ends of lines


def method_score(groups: Sequence[Group]) -> Chart:
    """Draw test accuracy, or perplexity, of each method, in a panel for each sparsity."""
    levels, quality = levels_of(groups), groups[0].quality
    requested = [level for level in levels if level.sparsity is not None] or levels
    parts = [f"at {one.title} {_highest(one)}" if len(requested) > 1 else _highest(one) for one in requested]
    dense = [_end(group, _score) for group in groups if group.is_dense]
    if dense and not all(group.is_dense for group in groups):
        parts.append(f"dense training ends at {quality.shown(min(dense, key=quality.rank))}")
    title = f"{quality.title} over the epochs: {'; '.join(parts)}"
    return _method_chart("curves", title, groups, _score, quality.axis)


def method_loss(groups: Sequence[Group]) -> Chart:
    """Draw the training loss of each method, in a panel for each sparsity."""
    lowest = min(groups, key=lambda group: _end(group, _loss))
    title = f"Training loss over the epochs: lowest at the end for {lowest.label}, {_end(lowest, _loss):.2g}"
    return _method_chart("losses", title, groups, _loss, f"training loss (nats per {groups[0].quality.unit})")


def _highest(level: Level) -> str:
    """State which of a level's sparse methods end best, or dense ones if there are no others."""
    groups = [group for group in level.groups if not group.is_dense] or level.groups
    quality = groups[0].quality
    ranked = sorted(groups, key=lambda group: quality.rank(_end(group, _score)))
    ends = {group.number: [_score(run.stage(run.main)[-1]) for run in group.runs] for group in ranked}
    first = ends[ranked[0].number]
    top = [level.name(g) for g in ranked if quality.indistinguishable(ends[g.number], first, groups[0].images)]
    best = quality.shown(_end(ranked[0], _score))
    if len(groups) == 1:
        return f"{top[0]} ends at {best}"
    if len(top) == 1:
        return f"{top[0]} ends {quality.superlative}, at {best}"
    return f"{fmt.join_names(top)} end {quality.superlative}, too close to tell apart, at {quality.bound} {best}"


def _end(group: Group, value: Callable[[EpochRow], float]) -> float:
    return statistics.fmean(value(run.stage(run.main)[-1]) for run in group.runs)


def _method_chart(
    name: str, title: str, groups: Sequence[Group], value: Callable[[EpochRow], float], label: str
) -> Chart:
    levels, styles, quality = levels_of(groups), method_styles(groups), groups[0].quality
    curves = {group.number: curve_of(group, value) for group in groups}
    rows = [row for group in groups for run in group.runs for row in run.stage(run.main)]
    x_label = f"{_EPOCHS} (lines: mean over seeds)" if any(len(group.runs) > 1 for group in groups) else _EPOCHS

    def text(level: Level, group: Group) -> str:
        end = curves[group.number].end
        return f"{quality.number(end) if value is _score else f'{end:.2g}'} {level.name(group)}"

    longest = max(len(text(level, group)) for level in levels for group in level.groups)

    def draw(narrow: bool) -> Figure:
        height = max(220 if narrow else 280, 13 * max(len(level.groups) for level in levels))
        sizes = {"left": 34, "right": min(12 + _LETTER * longest, 150), "below": 58}
        width = NARROW if narrow else WIDE
        figure, panels = add_panels(width, levels, label, heights=[height] * len(levels), **sizes)
        for level, axes in zip(levels, panels, strict=True):
            scale: Callable[[float], float] = float
            if value is _score:
                scale = set_score_scale(axes, map(_score, rows), groups[0].images, quality)
            ends = []
            for group in level.groups:
                curve, style = curves[group.number], styles[group.name]
                heights = [scale(v) for v in curve.mean]
                axes.plot(curve.epochs, heights, color=style.colour, linestyle=style.dash, linewidth=1.4)
                ends.append((heights[-1], text(level, group), style.colour))
            if value is not _score:
                values = [v for curve in curves.values() for v in curve.mean]
                set_log_if_wide(axes, values)
                axes.set_ylim(0.85 * min(values) if axes.get_yscale() == "log" else 0, 1.15 * max(values))
            count_epochs(axes, _last_epoch(groups), label=x_label)
            label_ends(axes, ends)
        return figure

    ends = "; ".join(f"{group.label} ends at {curves[group.number].end:.4g}" for group in groups)
    return Chart(name, title, f"{fmt.capitalize(label)} over the epochs, means over seeds. {ends}.", draw, wide=True)
