"""Accuracy against training FLOPs at each sparsity: which method gives most for what it costs."""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc.report import plot, words
from acdc.report.comparison.grid import PAGE, grid
from acdc.report.comparison.levels import Level, Style, dense, levels, styles
from acdc.report.comparison.naming import Named, name_all
from acdc.report.comparison.rows import Row, leaders, names, reference
from acdc.report.theme import LIGHT, Chart


def frontier(made: Sequence[Row]) -> Chart | None:
    """One mark for each method, with its standard deviation over seeds both ways."""
    costed = {row.group.number: row for row in made if row.training}
    groups = [row.group for row in made]
    shown = [level for level in levels(groups) if sum(group.number in costed for group in level.groups) > 1]
    if not shown:
        return None
    looks, epochs, images = styles(groups), reference(groups), groups[0].runs[0].images
    at_each = [[costed[group.number] for group in level.groups if group.number in costed] for level in shown]

    def draw(width: int) -> Figure:
        height = 330 if width < 600 else 300  # a phone has one panel below the other, and little room beside a mark
        sizes = {"left": 36, "right": 8, "below": 62}
        bars = ", bars ± std" if any(len(row.accuracy.values) > 1 for row in made) else ""
        figure, panels = grid(width, shown, f"test accuracy (%){bars}", heights=[height] * len(shown), **sizes)
        for level, rows, axes in zip(shown, at_each, panels, strict=True):
            scale = _scale(axes, [row for part in at_each for row in part], images)
            axes.set_xlabel(f"training FLOPs (fraction of {epochs} dense epochs)")
            axes.set_xlim(0, 1.08 * max(row.training.mean + row.training.std for part in at_each for row in part))
            _panel(axes, level, rows, looks, scale)
        return figure

    alt = (
        "Test accuracy against training FLOPs, means over seeds with ± one standard deviation; the pale line joins "
        f"what nothing cheaper equals. {_listed(shown, at_each)}"
    )
    drawn = lambda narrow: draw(plot.NARROW if narrow else plot.WIDE)  # noqa: E731
    return Chart("frontier", _title(shown, at_each), alt, drawn, wide=True, alone=lambda: draw(PAGE))


def _scale(axes: Axes, rows: Sequence[Row], images: int | None) -> Callable[[float], float]:
    """Of all panels; from the lowest bar to the highest."""
    means = sorted(row.accuracy.mean for row in rows)
    low = min(row.accuracy.mean - row.accuracy.std for row in rows)
    high = min(1.0, max(row.accuracy.mean + row.accuracy.std for row in rows))
    return plot.accuracy_scale(axes, (low, means[len(means) // 2], high), images)


def _panel(
    axes: Axes, level: Level, rows: Sequence[Row], looks: Mapping[str, Style], scale: Callable[[float], float]
) -> None:
    front = best(rows)
    heights = [scale(row.accuracy.mean) for row in front]
    axes.plot([row.training.mean for row in front], heights, color=LIGHT["line"], linewidth=5, zorder=1)
    marks = []
    for row in rows:
        look, x, y = looks[row.group.name], row.training, row.accuracy
        ends = [x.mean - x.std, x.mean + x.std, *(scale(min(1.0, y.mean + sign * y.std)) for sign in (-1, 1))]
        style = {"color": look.colour, "zorder": 3}
        axes.plot(ends[:2], [scale(y.mean)] * 2, linewidth=1.1, **style)
        axes.plot([x.mean] * 2, ends[2:], linewidth=1.1, **style)
        hollow = {"markerfacecolor": LIGHT["page"], "markeredgewidth": 1.7} if dense(row.group) else {}
        axes.plot([x.mean], [scale(y.mean)], look.mark, markersize=7, **style, **hollow)
        marks.append(Named(x.mean, scale(y.mean), level.name(row.group), look.colour, tuple(ends)))  # type: ignore[arg-type]
    name_all(axes, marks, beyond=6)


def best(rows: Sequence[Row]) -> list[Row]:
    """Those that nothing cheaper equals, from the cheapest on."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.training.mean, -row.accuracy.mean)):
        if not front or row.accuracy.mean > front[-1].accuracy.mean:
            front.append(row)
    return front


def _title(shown: Sequence[Level], at_each: Sequence[Sequence[Row]]) -> str:
    """At each sparsity the most accurate sparse method, and what it cost."""
    found = []
    asked = [pair for pair in zip(shown, at_each, strict=True) if pair[0].sparsity is not None]
    for level, rows in asked or zip(shown, at_each, strict=True):
        top = leaders(rows)
        where = f"at {level.title} " if level.sparsity is not None else ""
        first = f"{level.name(top[0].group)} " if len(top) > 1 else ""
        said = f"{first}{words.percent(top[0].accuracy.mean)} for {words.times(top[0].training.mean)}"
        found.append(f"{where}{names(level, top)} ({said})")
    return f"Most accurate, and its share of dense training FLOPs: {'; '.join(found)}"


def _listed(shown: Sequence[Level], at_each: Sequence[Sequence[Row]]) -> str:
    parts = []
    for level, rows in zip(shown, at_each, strict=True):
        told = (
            f"{row.group.name} {words.spread(row.accuracy.values)} % at {words.times(row.training.mean)}"
            for row in rows
        )
        parts.append(f"{words.sentence(level.title)}: {', '.join(told)}.")
    return " ".join(parts)
