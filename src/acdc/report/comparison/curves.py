"""Accuracy and loss over the epochs: a line for each method, the mean over its seeds, a panel for each sparsity."""

import statistics
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from acdc.report import plot, words
from acdc.report.comparison.grid import grid
from acdc.report.comparison.levels import Level, dense, levels, styles
from acdc.report.overlay import curve
from acdc.report.several import Group
from acdc.report.theme import Chart
from acdc.runs.records import EpochRow

_LETTER = 6.0


def accuracy(groups: Sequence[Group]) -> Chart:
    found = levels(groups)
    asked = [level for level in found if level.sparsity is not None] or found
    said = [f"at {level.title} {_highest(level)}" if len(asked) > 1 else _highest(level) for level in asked]
    plain = [_last(group, _accuracy) for group in groups if dense(group)]
    if plain and not all(dense(group) for group in groups):
        said.append(f"dense training ends at {words.percent(max(plain))}")
    title = f"Test accuracy over the epochs: {'; '.join(said)}"
    return _chart("curves", title, groups, _accuracy, "test accuracy (%)")


def _highest(level: Level) -> str:
    """Which of a level's sparse methods end highest; of dense ones where there are no others."""
    found = [group for group in level.groups if not dense(group)] or level.groups
    ranked, images = sorted(found, key=lambda group: -_last(group, _accuracy)), found[0].runs[0].images
    top = [level.name(group) for group in ranked if words.alike(_ends(group), _ends(ranked[0]), images)]
    best = words.percent(_last(ranked[0], _accuracy))
    if len(found) == 1:
        return f"{top[0]} ends at {best}"
    if len(top) == 1:
        return f"{top[0]} ends highest, at {best}"
    return f"{words.listed(top)} end highest, too close to tell apart, at up to {best}"


def loss(groups: Sequence[Group]) -> Chart:
    lowest = min(groups, key=lambda group: _last(group, _loss))
    title = f"Training loss over the epochs: lowest at the end for {lowest.label}, {_last(lowest, _loss):.2g}"
    return _chart("losses", title, groups, _loss, "training loss (nats per image)")


def _accuracy(row: EpochRow) -> float:
    return row.test_accuracy


def _loss(row: EpochRow) -> float:
    return row.loss


def _ends(group: Group) -> list[float]:
    return [_accuracy(run.stage(run.main)[-1]) for run in group.runs]


def _last(group: Group, value: Callable[[EpochRow], float]) -> float:
    return statistics.fmean(value(run.stage(run.main)[-1]) for run in group.runs)


def _chart(name: str, title: str, groups: Sequence[Group], value: Callable[[EpochRow], float], label: str) -> Chart:
    shown, looks = levels(groups), styles(groups)
    lines = {group.number: curve(group, value) for group in groups}
    rows = [row for group in groups for run in group.runs for row in run.stage(run.main)]
    last = max(run.planned for group in groups for run in group.runs)
    images = groups[0].runs[0].images
    several = any(len(group.runs) > 1 for group in groups)

    def text(level: Level, group: Group) -> str:
        end = lines[group.number][1][-1]
        return f"{words.fixed(100 * end) if value is _accuracy else f'{end:.2g}'} {level.name(group)}"

    longest = max(len(text(level, group)) for level in shown for group in level.groups)

    def draw(narrow: bool) -> Figure:
        height = max(220 if narrow else 280, 13 * max(len(level.groups) for level in shown))
        sizes = {"left": 34, "right": min(12 + _LETTER * longest, 150), "below": 58}
        width = plot.NARROW if narrow else plot.WIDE
        figure, panels = grid(width, shown, label, heights=[height] * len(shown), **sizes)
        for level, axes in zip(shown, panels, strict=True):
            scale: Callable[[float], float] = float
            if value is _accuracy:
                scale = plot.accuracy_scale(axes, map(_accuracy, rows), images)
            ends = []
            for group in level.groups:
                x, mean, _, _ = lines[group.number]
                look = looks[group.name]
                axes.plot(x, [scale(v) for v in mean], color=look.colour, linestyle=look.dash, linewidth=1.4)
                ends.append((scale(mean[-1]), text(level, group), look.colour))
            if value is not _accuracy:
                values = [v for line in lines.values() for v in line[1]]
                plot.log_if_wide(axes, values)
                axes.set_ylim(0.85 * min(values) if axes.get_yscale() == "log" else 0, 1.15 * max(values))
            plot.epochs(axes, last, label="epochs trained" + (" (lines: mean over seeds)" if several else ""))
            plot.label_ends(axes, ends)
        return figure

    ends = "; ".join(f"{group.label} ends at {lines[group.number][1][-1]:.4g}" for group in groups)
    return Chart(name, title, f"{words.sentence(label)} over the epochs, means over seeds. {ends}.", draw, wide=True)
