"""Axes for all figures: panels placed in pixels, phases behind them, scales and bars."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc.report.facts import Phase
from acdc.report.figures.theme import KINDS, LIGHT, SMALL
from acdc.report.groups import Level
from acdc.runs.quality import ACCURACY, Quality
from acdc.runs.records import EpochRow

HALF, WIDE, NARROW = 440, 1040, 420  # pixels: half the page, all of it, a phone
ALONE = 800  # width in pixels of a figure in its own file, as a README shows it
_GAP = 28  # pixels between panels
_LINE = 12  # percent of a small panel, half a line of its text
SHORT = {"warm-up": "W", "compressed": "C", "decompressed": "D", "final compressed": "C", "dense": "D"}
_LETTER = 0.6  # letter width by font size, on average


class Span(Protocol):
    """The interface of a phase that is needed to draw it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def first(self) -> int: ...  # epochs, from 0
    @property
    def last(self) -> int: ...


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure. Its size is in pixels; each is one of matplotlib's points."""
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def add_panel(figure: Figure, label: str, *, left: float, right: float, top: float, height: float) -> Axes:
    """Add axes by their distance from the figure's edges. The label is above them, where it reads horizontally."""
    width, whole = figure.bbox.width, figure.bbox.height
    axes = figure.add_axes((left / width, 1 - (top + height) / whole, 1 - (left + right) / width, height / whole))
    set_label(axes, label, x=-(left - 4) / (width - left - right))
    axes.grid(axis="y")
    axes.tick_params(axis="y", pad=3)
    axes.margins(x=0)
    return axes


def add_panels(
    width: int,
    levels: Sequence[Level],
    label: str,
    *,
    heights: Sequence[float],
    left: float,
    right: float,
    below: float,
    top: float = 24,
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each level: side by side on a page, one below the other on a phone.

    `left` and `right` are the pixels that each panel leaves beside itself.
    """
    across = 1 if width < 600 else 3 if len(levels) == 3 and width > 1000 else min(len(levels), 2)
    each = (width - _GAP * (across - 1)) / across
    lines = [heights[first : first + across] for first in range(0, len(levels), across)]
    figure = new_figure(width, sum(top + max(line) + below for line in lines))
    panels, y = [], 0.0
    for number, level in enumerate(levels):
        line, column = divmod(number, across)
        if number and not column:
            y += top + max(lines[line - 1]) + below
        x = column * (each + _GAP)
        axes = add_panel(figure, "", left=x + left, right=width - x - each + right, top=y + top, height=heights[number])
        title = f"{level.title}: {label}" if len(levels) > 1 or level.sparsity is not None else label
        set_label(axes, title, x=-(left - 4) / axes.bbox.width)  # it begins where the panel does
        panels.append(axes)
    return figure, panels


def set_label(axes: Axes, label: str, **place: Any) -> None:
    """Write a label above the axes."""
    axes.set_title(label, loc="left", pad=7, color=LIGHT["muted"], fontsize=10.5, **place)


def count_epochs(axes: Axes, last: int, *, label: str = "epochs trained") -> None:
    """Count epochs along x, from 0 to `last`."""
    axes.set_xlim(0, last)
    axes.set_xlabel(label)
    axes.locator_params(axis="x", integer=True, nbins=8)


def hide_x(axes: Axes) -> None:
    """Hide the x axis of a panel above another one, which shows the numbers."""
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.spines["bottom"].set_visible(False)


def epoch_ends(rows: Iterable[EpochRow]) -> list[int]:
    """Return the number of epochs trained when each row was measured: after its epoch's last step."""
    return [row.epoch + 1 for row in rows]


def shade(axes: Axes, phases: Sequence[Span]) -> None:
    """Shade the compressed phases."""
    for phase in phases:
        if phase.kind == "sparse":
            axes.axvspan(phase.first, phase.last + 1, color=LIGHT["shade"], linewidth=0, zorder=0)


def name_phases(axes: Axes, phases: Sequence[Span], y: float, *, fills: Sequence[Sequence[float]] = ()) -> str:
    """Write every phase's name in its middle, or a letter if there is no room. Return what the letters mean.

    `fills` has the heights of what is drawn in each phase: a name stands on it, or on a patch of its own where some
    would reach into it.
    """
    last = max(phase.last + 1 for phase in phases)
    scale = axes.bbox.width / max(1, last)
    rooms = [(phase.last + 1 - phase.first) * scale - 4 for phase in phases]
    narrow = {p.name for p, room in zip(phases, rooms, strict=True) if len(p.name) * SMALL * _LETTER > room}
    short: dict[str, str] = {}
    for index, (phase, room) in enumerate(zip(phases, rooms, strict=True)):
        text = phase.name
        if text in narrow:
            text = SHORT.get(phase.name, phase.name[:1].upper())
            short.setdefault(text, phase.name.removeprefix("final "))
        if len(text) * SMALL * _LETTER > room + 3:
            continue
        heights = fills[index] if fills else ()
        covered = bool(heights) and min(heights) > y + _LINE
        patch = {"facecolor": LIGHT["page"], "edgecolor": "none", "pad": 1} if not covered and any(heights) else None
        colour = LIGHT["page"] if covered else LIGHT["muted"]
        middle = (phase.first + phase.last + 1) / 2
        style = {"ha": "center", "va": "center", "fontsize": SMALL, "color": colour, "clip_on": True}
        axes.text(middle, y, text, bbox=patch, **style)
    return ", ".join(f"{letter}: {name}" for letter, name in short.items())


def plot_by_kind(
    axes: Axes, rows: Sequence[EpochRow], phases: Sequence[Phase], value: Callable[[EpochRow], float]
) -> None:
    """Draw one line over all phases, in the colour of each; a phase's piece begins where the one before ended."""
    for phase in phases:
        part = [row for row in rows if phase.first - 1 <= row.epoch <= phase.last]
        axes.plot(epoch_ends(part), [value(row) for row in part], color=KINDS[phase.kind], zorder=3)


def set_score_scale(
    axes: Axes, scores: Iterable[float], images: int | None, quality: Quality
) -> Callable[[float], float]:
    """Scale y for accuracies or perplexities, and return the function from one to its height."""
    return _set_accuracy_scale(axes, scores, images) if quality is ACCURACY else _set_perplexity_scale(axes, scores)


def _set_perplexity_scale(axes: Axes, perplexities: Iterable[float]) -> Callable[[float], float]:
    """Scale y logarithmically, as losses are compared. The first epochs may lie above the axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ordered = sorted(perplexities)
    low, high = ordered[0], ordered[-1 - len(ordered) // 6]
    pad = max(1.02, (high / low) ** 0.06)
    axes.set_yscale("log")
    axes.set_ylim(low / pad, high * pad)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 3.0, 5.0, 7.0), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    cut = ", some epochs cut off" if ordered[-1] > high * pad else ""
    set_label(axes, f"{axes.get_title('left')}, log scale{cut}")
    return float


def _set_accuracy_scale(axes: Axes, accuracies: Iterable[float], images: int | None) -> Callable[[float], float]:
    """Scale y for accuracies.

    The scale is in %, or, if most accuracies are above 90 %, the logarithm of the error if that has two ticks. The
    first epochs may lie below the axes: they would compress the last ones.
    """
    ordered = sorted(accuracies)
    low, high = ordered[len(ordered) // 12], ordered[-1]
    floor = 50 / (images or 10_000)  # shows zero errors, which a logarithm cannot, as half an image
    bottom, top = max(100 * (1 - low), 4 * floor) * 1.25, max(100 * (1 - high), floor) / 1.35
    ticks = [tick for tick in (50, 30, 20, 10, 5, 3, 2, 1, 0.5, 0.3, 0.2, 0.1, 0.05) if top <= tick <= bottom]
    if ordered[len(ordered) // 2] < 0.9 or len(ticks) < 2:
        pad = 0.06 * (high - low) + 1e-3
        axes.set_ylim(max(0.0, 100 * (low - pad)), min(100.0, 100 * (high + pad)))
        if ordered[0] < low - pad:
            set_label(axes, f"{axes.get_title('left')}, some epochs cut off")
        return lambda accuracy: 100 * accuracy
    axes.set_yscale("log")
    set_label(axes, f"{axes.get_title('left')}, log scale of the error")
    axes.set_ylim(bottom, top)
    axes.set_yticks(ticks, [f"{100 - tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    return lambda accuracy: max(100 * (1 - accuracy), floor)


def set_log_if_wide(axes: Axes, values: Iterable[float], *, factor: float = 20) -> None:
    """Scale y logarithmically, with plain numbers, if the values span more than `factor`."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > factor * min(positive):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)


def write_powers_of_ten(axes: Axes) -> None:
    """Write the numbers of a logarithmic x axis as text: 10⁻⁴. Typesetting formulas takes longer than the figure."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    power = lambda value, _: f"10{f'{math.log10(value):.0f}'.translate(raised)}"  # noqa: E731
    axes.xaxis.set_major_formatter(FuncFormatter(power))
    axes.xaxis.set_minor_locator(NullLocator())


def draw_bars(
    axes: Axes, labels: Sequence[str], values: Sequence[float], colours: Sequence[str], text: Sequence[str]
) -> None:
    """Draw horizontal bars, the first on top, each with its text at its end."""
    places = range(len(values))
    drawn = axes.barh(places, values, color=colours, height=0.62)
    axes.set_yticks(list(places), labels)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.bar_label(drawn, labels=list(text), padding=4, fontsize=10, color=LIGHT["ink"])
