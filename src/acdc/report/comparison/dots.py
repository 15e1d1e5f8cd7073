"""Accuracy by method at each sparsity: every seed a dot, the mean a stroke."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc.report import plot, words
from acdc.report.comparison.grid import PAGE, grid
from acdc.report.comparison.levels import Level, Style, dense, levels, styles
from acdc.report.comparison.rows import Row
from acdc.report.theme import LIGHT, Chart

_LINE = 23  # pixels for each method
_LETTER = 6.1


def dots(made: Sequence[Row]) -> Chart | None:
    groups = [row.group for row in made]
    if len(groups) < 2:
        return None
    by_number = {row.group.number: row for row in made}
    shown, looks = levels(groups), styles(groups)
    at_each = [
        sorted((by_number[group.number] for group in level.groups), key=lambda row: -row.accuracy.mean)
        for level in shown
    ]
    names = max(len(level.name(row.group)) for level, rows in zip(shown, at_each, strict=True) for row in rows)
    low, high = _range([value for row in made for value in row.accuracy.values])

    def draw(width: int) -> Figure:
        left = min(14 + _LETTER * names, 150)
        heights = [_LINE * len(rows) + 6 for rows in at_each]
        label = "one dot for each seed, bar: mean ± std"
        figure, panels = grid(width, shown, label, heights=heights, left=left, right=92, below=58)
        for level, rows, axes in zip(shown, at_each, panels, strict=True):
            _panel(axes, level, rows, looks, low, high)
        return figure

    drawn = lambda narrow: draw(plot.NARROW if narrow else plot.WIDE)  # noqa: E731
    listed = "; ".join(f"{row.group.label}: {words.spread(row.accuracy.values)}" for row in made)
    alt = f"Test accuracy in % by method, mean ± standard deviation over seeds. {listed}."
    return Chart("by-method", _title(shown, at_each), alt, drawn, wide=True, alone=lambda: draw(PAGE))


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Where most values lie: a method that failed is shown at the edge, with its number, and presses nothing flat."""
    ordered = sorted(values)
    middle, top = ordered[len(ordered) // 2], ordered[-1]
    low = max(ordered[0], top - 4 * max(top - middle, 0.01))
    pad = 0.06 * (top - low) + 5e-4
    return low - pad, min(top + pad, 1.0 + 5e-4)


def _panel(axes: Axes, level: Level, rows: Sequence[Row], looks: Mapping[str, Style], low: float, high: float) -> None:
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(100 * low, 100 * high)
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x")
    axes.set_yticks(range(len(rows)), [level.name(row.group) for row in rows])
    axes.tick_params(axis="y", labelsize=10, labelcolor=LIGHT["ink"], pad=7)
    for place, row in enumerate(rows):
        colour, mean, std = looks[row.group.name].colour, row.accuracy.mean, row.accuracy.std
        fill = LIGHT["page"] if dense(row.group) else colour
        inside = [100 * value for value in row.accuracy.values if value >= low]
        cut = [100 * (low + 0.02 * (high - low))] if len(inside) < len(row.accuracy.values) else []
        ends = [100 * max(low, mean - std), 100 * max(low, min(1.0, mean + std))]
        axes.plot(ends, [place] * 2, color=colour, linewidth=5, alpha=0.25, solid_capstyle="butt")
        if mean >= low:
            axes.plot([100 * mean] * 2, [place - 0.3, place + 0.3], color=colour, linewidth=2)
        axes.plot(inside, [place] * len(inside), "o", color=colour, markersize=5, markerfacecolor=fill)
        axes.plot(cut, [place] * len(cut), "<", color=colour, markersize=7, clip_on=False)
        text = words.spread(row.accuracy.values)
        right = 1 + 8 / axes.bbox.width
        axes.text(right, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize=10)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("test accuracy (%)")


def _title(shown: Sequence[Level], at_each: Sequence[Sequence[Row]]) -> str:
    """At each sparsity, how far apart the sparse methods are."""
    found = []
    for level, rows in zip(shown, at_each, strict=True):
        sparse = [row for row in rows if not dense(row.group)]
        if len(sparse) > 1:
            gap = 100 * (sparse[0].accuracy.mean - sparse[-1].accuracy.mean)
            where = f" at {words.share(level.sparsity)} zeros" if level.sparsity is not None else " as learned"
            found.append(f"{gap:.1f} points{where} ({sparse[0].group.name} to {sparse[-1].group.name})")
    return f"Test accuracy by method: from best to worst {', '.join(found)}" if found else "Test accuracy by method"
