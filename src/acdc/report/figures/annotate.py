"""The placement of text in figures: at the ends of lines, and beside marks without covering marks or other text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from acdc.report.figures.theme import LIGHT

_LETTER = 0.6  # letter width by font size: no font of a reader's is wider
_ROOM = 6  # pixels around a mark
_RINGS = (9, 14, 20, 28, 38, 50, 64, 80, 100, 124, 150, 180)  # pixels from the mark, nearest first
_TURNS = (
    0,
    180,
    *(sign * turn for base in (30, 60, 15, 45, 75) for turn in (base, 180 - base) for sign in (1, -1)),
    90,
    -90,
)


# The ends of lines


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], *, apart: float = 13, dx: float = 8) -> list[float]:
    """Write text to the right of the axes at each height (value, text, colour), moved apart if two would touch.

    Return the heights, as fractions of the axes'.
    """
    height = axes.bbox.height
    to_pixels = axes.transData.transform
    low, high = axes.get_ylim()
    clipped = [min(max(value, min(low, high)), max(low, high)) for value, _, _ in ends]
    heights = [float(to_pixels((0, value))[1] - axes.bbox.y0) for value in clipped]
    order = sorted(range(len(ends)), key=lambda index: heights[index])
    placed = space_out([heights[index] for index in order], apart, height)
    x, style = 1 + dx / axes.bbox.width, {"va": "center", "fontsize": 10, "clip_on": False}
    for index, y in zip(order, placed, strict=True):
        _, text, colour = ends[index]
        axes.text(x, y / height, text, transform=axes.transAxes, color=colour, **style)
    return [y / height for _, y in sorted(zip(order, placed, strict=True))]


def space_out(targets: Sequence[float], apart: float, height: float) -> list[float]:
    """Return rising positions at least `apart` from each other, inside the height and close to those requested."""
    placed: list[float] = []
    for y in targets:
        placed.append(max(y, placed[-1] + apart) if placed else y)
    over = placed[-1] - height if placed else 0
    for index in range(len(placed) - 1, -1, -1):
        if over > 0:
            limit = height if index == len(placed) - 1 else placed[index + 1] - apart
            placed[index] = min(placed[index], limit)
    return placed


# Marks


@dataclass(frozen=True)
class Mark:
    """A named point of a figure. All numbers are in the data's units."""

    x: float
    y: float
    text: str
    colour: str
    error_bars: tuple[float, float, float, float]  # lowest and highest x, lowest and highest y


@dataclass(frozen=True)
class Box:
    """A rectangle, in pixels from the axes' lower left corner."""

    left: float
    right: float
    low: float
    high: float

    def overlap(self, other: "Box") -> float:
        """Return the area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        tall = min(self.high, other.high) - max(self.low, other.low)
        return wide * tall if wide > 0 and tall > 0 else 0.0

    def excess(self, width: float, height: float) -> float:
        """Return by how many pixels the box exceeds axes of this size."""
        return sum(max(0.0, past) for past in (-self.left, self.right - width, -self.low, self.high - height))


def label_marks(axes: Axes, marks: Sequence[Mark], *, size: float = 10, beyond: float = 0) -> list[Box]:
    """Write each mark's name beside it, at most `beyond` pixels past the axes' right end, and return the boxes used."""
    width, height = axes.bbox.width + beyond, axes.bbox.height
    places = [_pixels(axes, mark.x, mark.y) for mark in marks]
    occupied = [box for mark, (x, y) in zip(marks, places, strict=True) for box in _boxes(axes, mark, x, y)]
    names: dict[int, Box] = {}
    for index in sorted(range(len(marks)), key=lambda i: (-_crowd(places, i), places[i])):
        x, y = places[index]
        box = min(
            _candidates(x, y, _LETTER * size * len(marks[index].text), 1.25 * size),
            key=lambda box: (
                round(
                    sum(box.overlap(other) for other in occupied)
                    + 20 * sum(box.overlap(other) for other in names.values())  # overlapping names are unreadable
                    + 50 * box.excess(width, height),
                    3,
                ),
                _distance(box, x, y),
            ),
        )
        names[index] = box
        _draw(axes, marks[index], box, x, y, size)
    return [names[index] for index in range(len(marks))]


def _pixels(axes: Axes, x: float, y: float) -> tuple[float, float]:
    """Return a point's position from the axes' lower left corner."""
    across, up = axes.transData.transform((x, y))
    return float(across - axes.bbox.x0), float(up - axes.bbox.y0)


def _boxes(axes: Axes, mark: Mark, x: float, y: float) -> list[Box]:
    (left, low), (right, high) = (_pixels(axes, mark.error_bars[i], mark.error_bars[i + 2]) for i in (0, 1))
    bars = [Box(left, right, y - 2, y + 2), Box(x - 2, x + 2, min(low, high), max(low, high))]
    return [Box(x - _ROOM, x + _ROOM, y - _ROOM, y + _ROOM), *bars]


def _crowd(places: Sequence[tuple[float, float]], index: int) -> int:
    """Count the marks nearby: those with the least room choose first."""
    x, y = places[index]
    return sum(math.hypot(x - a, (y - b) * 2) < 70 for a, b in places)


def _candidates(x: float, y: float, wide: float, tall: float) -> list[Box]:
    boxes = []
    for ring in _RINGS:
        for turn in _TURNS:
            across, up = math.cos(math.radians(turn)), math.sin(math.radians(turn))
            middle_x = x + ring * across + (wide / 2) * (1 if across > 0.1 else -1 if across < -0.1 else 0)
            middle_y = y + ring * up + (tall / 2) * up
            boxes.append(Box(middle_x - wide / 2, middle_x + wide / 2, middle_y - tall / 2, middle_y + tall / 2))
    return boxes


def _distance(box: Box, x: float, y: float) -> float:
    return math.hypot(max(box.left - x, 0, x - box.right), max(box.low - y, 0, y - box.high))


def _draw(axes: Axes, mark: Mark, box: Box, x: float, y: float, size: float) -> None:
    width, height = axes.bbox.width, axes.bbox.height
    # In a font narrower than assumed, the end of the text near the mark keeps its place.
    side = "left" if box.left > x else "right" if box.right < x else "center"
    at = {"left": box.left, "right": box.right, "center": (box.left + box.right) / 2}[side]
    if _distance(box, x, y) > 15:
        end = min(max(x, box.left), box.right), min(max(y, box.low), box.high)
        axes.plot(
            [x / width, end[0] / width],
            [y / height, end[1] / height],
            color=LIGHT["muted"],
            linewidth=0.6,
            transform=axes.transAxes,
            clip_on=False,
            zorder=2,
        )
    place = (at / width, (box.low + box.high) / 2 / height)
    axes.text(
        *place,
        mark.text,
        transform=axes.transAxes,
        ha=side,
        va="center_baseline",
        fontsize=size,
        color=mark.colour,
        parse_math=False,
    )
