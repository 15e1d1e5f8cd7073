"""Figures of several runs: curves over each other, the mean over seeds with its range."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from acdc.report import facts, plot, words
from acdc.report.several import Group, accuracy_of
from acdc.report.theme import LIGHT, Chart
from acdc.runs.records import EpochRow

LEGEND = 17  # pixels for each group


def accuracy(found: Sequence[Group]) -> Chart:
    """The main stage of every group: the mean over seeds, and from the lowest to the highest."""
    curves = {group.number: curve(group, lambda row: row.test_accuracy) for group in found}
    rows = [row for group in found for run in group.runs for row in run.stage(run.main)]
    last = max(max(run.planned for run in group.runs) for group in found)
    images = found[0].runs[0].images
    phases = _shared_phases(found)

    def draw(narrow: bool) -> Figure:
        legend, height = LEGEND * len(found) + 4, 232 if narrow else 332
        figure = plot.new(plot.NARROW if narrow else plot.WIDE, height + 68 + legend)
        axes = plot.panel(figure, "test accuracy (%)", left=34, right=52, top=24 + legend, height=height)
        scale = plot.accuracy_scale(axes, [row.test_accuracy for row in rows], images)
        plot.shade(axes, phases)
        for group in found:
            x, mean, low, high = curves[group.number]
            axes.plot(x, [scale(v) for v in mean], color=group.colour, linestyle=group.dash, linewidth=1.5)
            if len(group.runs) > 1:
                edges = [scale(v) for v in low], [scale(v) for v in high]
                axes.fill_between(x, *edges, color=group.colour, alpha=0.18, linewidth=0)
        plot.epochs(axes, last, label=_epochs(phases))
        ends = [(scale(curves[g.number][1][-1]), words.fixed(100 * curves[g.number][1][-1]), g.colour) for g in found]
        plot.label_ends(axes, ends)
        legend_of(figure, found, narrow)
        return figure

    ends = "; ".join(f"{group.label} ends at {words.percent(curves[group.number][1][-1])}" for group in found)
    alt = f"Test accuracy over the epochs, mean over seeds with the range from lowest to highest. {ends}."
    return Chart("curves", words.sentence(_title(found)), alt, draw, wide=True)


def legend_of(figure: Figure, found: Sequence[Group], narrow: bool) -> None:
    """A line of its own for each group, above the axes."""
    height, width = figure.bbox.height, figure.bbox.width
    for index, group in enumerate(found):
        y = 1 - (10 + LEGEND * index) / height
        figure.add_artist(_line(group, width, y))
        seeds = f" ({len(group.runs)} seeds)" if len(group.runs) > 1 else ""
        text = words.clip(group.label, 52 if narrow else 130) + seeds
        figure.text(36 / width, y, text, va="center", fontsize=10, color=LIGHT["ink"], parse_math=False)


def _line(group: Group, width: float, y: float) -> Any:
    return Line2D([6 / width, 28 / width], [y, y], color=group.colour, linestyle=group.dash, linewidth=2.2)


def _title(found: Sequence[Group]) -> str:
    final = [(statistics.fmean(group.values(group.main, accuracy_of)), group) for group in found]
    best, top = max(final, key=lambda pair: pair[0])
    worst, bottom = min(final, key=lambda pair: pair[0])
    if len(found) == 1:
        values = found[0].values(found[0].main, accuracy_of)
        if len(values) == 1:
            return f"{top.label} ends at {words.percent(best)}"
        return f"{len(values)} seeds end within {words.fixed(100 * (max(values) - min(values)))} points of each other"
    sides = [group.values(group.main, accuracy_of) for group in (top, bottom)]
    if words.alike(sides[0], sides[1], top.runs[0].images):
        return f"{len(found)} settings end too close to tell apart, at {words.percent(worst)} to {words.percent(best)}"
    return f"{top.label} ends highest, at {words.percent(best)}, {words.gap(best, worst, bottom.label)}"


def _shared_phases(found: Sequence[Group]) -> Sequence[facts.Phase]:
    """The phases, if all groups have the same."""
    kinds = {tuple((phase.first, phase.kind) for phase in facts.phases(group.runs[0])) for group in found}
    return facts.phases(found[0].runs[0]) if len(kinds) == 1 else []


def _epochs(phases: Sequence[facts.Phase]) -> str:
    return "epochs trained (shaded: compressed)" if any(p.kind == "sparse" for p in phases) else "epochs trained"


def curve(group: Group, value: Callable[[EpochRow], float]) -> tuple[list[int], list[float], list[float], list[float]]:
    """Epochs that every seed has, with mean, lowest and highest value."""
    stages = [{row.epoch + 1: value(row) for row in run.stage(run.main)} for run in group.runs]
    shared = sorted(set.intersection(*(set(stage) for stage in stages)))
    values = [[stage[epoch] for stage in stages] for epoch in shared]
    return shared, [statistics.fmean(v) for v in values], [min(v) for v in values], [max(v) for v in values]


def loss(found: Sequence[Group]) -> Chart:
    """Of the training batches, the mean over seeds."""
    curves = {group.number: curve(group, lambda row: row.loss) for group in found}
    lowest = min(found, key=lambda group: curves[group.number][1][-1])
    title = f"Training loss ends lowest for {lowest.label}, at {curves[lowest.number][1][-1]:.2g}"
    if len(found) == 1:
        title = f"Training loss ends at {curves[lowest.number][1][-1]:.2g}"
    phases, last = _shared_phases(found), max(run.planned for group in found for run in group.runs)

    def draw(narrow: bool) -> Figure:
        legend = LEGEND * len(found) + 4
        figure = plot.new(plot.HALF, 270 + legend)
        axes = plot.panel(figure, "training loss (nats per image)", left=36, right=46, top=24 + legend, height=204)
        plot.shade(axes, phases)
        for group in found:
            x, mean, _, _ = curves[group.number]
            axes.plot(x, mean, color=group.colour, linestyle=group.dash, linewidth=1.5)
        plot.log_if_wide(axes, [value for curve in curves.values() for value in curve[1]])
        plot.epochs(axes, last, label=_epochs(phases))
        plot.label_ends(axes, [(c[1][-1], f"{c[1][-1]:.2g}", g.colour) for g in found for c in [curves[g.number]]])
        legend_of(figure, found, True)
        return figure

    ends = "; ".join(f"{group.label} ends at {curves[group.number][1][-1]:.3g}" for group in found)
    return Chart("losses", title, f"Training loss over the epochs, mean over seeds. {ends}.", draw)


def mask_change(found: Sequence[Group]) -> Chart | None:
    """Kept weights that the mask before had pruned, at each compression, the mean over seeds."""
    moved = [(group, points) for group in found if (points := _regrown(group))]
    if not moved:
        return None
    ends = {group.number: points[-1][1] for group, points in moved}
    still, most = min(moved, key=lambda pair: pair[1][-1][1])[0], max(moved, key=lambda pair: pair[1][-1][1])[0]
    title = f"At the last compression {words.share(ends[most.number])} of the kept weights are new"
    if len({words.share(share) for share in ends.values()}) > 1:
        title += f" for {most.label}, {words.share(ends[still.number])} for {still.label}"

    def draw(narrow: bool) -> Figure:
        legend = LEGEND * len(moved) + 4
        figure = plot.new(plot.HALF, 270 + legend)
        axes = plot.panel(figure, "new weights (% of those kept)", left=36, right=46, top=24 + legend, height=204)
        for group, points in moved:
            x, y = [number for number, _ in points], [100 * share for _, share in points]
            axes.plot(x, y, color=group.colour, linestyle=group.dash, marker="o", markersize=5)
        axes.set_ylim(bottom=0)
        axes.set_xlim(1.5, max(points[-1][0] for _, points in moved) + 0.3)
        axes.locator_params(axis="x", integer=True, nbins=8)
        axes.set_xlabel("compression (number)")
        plot.label_ends(axes, [(100 * p[-1][1], words.fixed(100 * p[-1][1]), g.colour) for g, p in moved])
        legend_of(figure, [group for group, _ in moved], True)
        return figure

    listed = "; ".join(
        f"{group.label}: " + ", ".join(f"{words.share(share)} at compression {number}" for number, share in points)
        for group, points in moved
    )
    return Chart("masks", title, f"Kept weights that the mask before had pruned. {listed}.", draw)


def _regrown(group: Group) -> list[tuple[int, float]]:
    """Compression and share, where every seed has one."""
    seeds = []
    for run in group.runs:
        sparse = [phase for phase in facts.phases(run) if phase.kind == "sparse"]
        shares = {number: phase.end.regrown if phase.end else None for number, phase in enumerate(sparse, 1)}
        seeds.append({number: share for number, share in shares.items() if share is not None})
    shared = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return [(number, statistics.fmean(seed[number] for seed in seeds)) for number in shared]
