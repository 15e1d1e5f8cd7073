"""Panels beside each other on a page, below each other on a phone: one for each sparsity."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc.report import plot
from acdc.report.comparison.levels import Level

PAGE = 800  # pixels that a figure by itself is wide, as a README shows it
_GAP = 28


def grid(
    width: int,
    shown: Sequence[Level],
    label: str,
    *,
    heights: Sequence[float],
    left: float,
    right: float,
    below: float,
    top: float = 24,
) -> tuple[Figure, list[Axes]]:
    """A figure and an axes for each level, named by it. `left` and `right` are what each leaves beside itself."""
    across = 1 if width < 600 else 3 if len(shown) == 3 and width > 1000 else min(len(shown), 2)
    each = (width - _GAP * (across - 1)) / across
    lines = [heights[first : first + across] for first in range(0, len(shown), across)]
    figure = plot.new(width, sum(top + max(line) + below for line in lines))
    axes, y = [], 0.0
    for number, level in enumerate(shown):
        line, column = divmod(number, across)
        if number and not column:
            y += top + max(lines[line - 1]) + below
        x = column * (each + _GAP)
        title = f"{level.title}: {label}" if len(shown) > 1 or level.sparsity is not None else label
        place = {"left": x + left, "right": width - x - each + right, "top": y + top, "height": heights[number]}
        axes.append(_panel(figure, title, left, place))
    return figure, axes


def _panel(figure: Figure, title: str, left: float, place: dict[str, float]) -> Axes:
    """The title begins where the panel does, not where the figure does."""
    axes = plot.panel(figure, "", **place)
    plot.entitle(axes, title, x=-(left - 4) / axes.bbox.width)
    return axes
