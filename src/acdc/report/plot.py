"""What the figures share: panels in pixels, phases behind them, labels at the ends of lines."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from acdc.report.facts import Phase
from acdc.report.theme import KINDS, LIGHT, SMALL
from acdc.runs.records import EpochRow

HALF, WIDE, NARROW = 440, 1040, 420  # pixels: half the page, all of it, a phone
SHORT = {"warm-up": "W", "compressed": "C", "decompressed": "D", "final compressed": "C", "dense": "D"}
_LETTER = 0.6  # of the type's size, on average


class Span(Protocol):
    """What is drawn of a phase."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def first(self) -> int: ...  # epochs, from 0
    @property
    def last(self) -> int: ...


def new(width: float, height: float) -> Figure:
    """A pixel of the figure is a point of matplotlib's."""
    return Figure(figsize=(width / 72, height / 72), dpi=72)


def panel(figure: Figure, label: str, *, left: float, right: float, top: float, height: float) -> Axes:
    """Axes by their distance from the figure's edges; the label stands above them, where it is read upright."""
    width, whole = figure.bbox.width, figure.bbox.height
    axes = figure.add_axes((left / width, 1 - (top + height) / whole, 1 - (left + right) / width, height / whole))
    entitle(axes, label, x=-(left - 4) / (width - left - right))
    axes.grid(axis="y")
    axes.tick_params(axis="y", pad=3)
    axes.margins(x=0)
    return axes


def entitle(axes: Axes, label: str, **place: Any) -> None:
    axes.set_title(label, loc="left", pad=7, color=LIGHT["muted"], fontsize=10.5, **place)


def epochs(axes: Axes, last: int, *, label: str = "epochs trained") -> None:
    axes.set_xlim(0, last)
    axes.set_xlabel(label)
    axes.locator_params(axis="x", integer=True, nbins=8)


def bare(axes: Axes) -> None:
    """For a panel above another one, which has the numbers."""
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.spines["bottom"].set_visible(False)


def after(rows: Iterable[EpochRow]) -> list[int]:
    """Where a row stands: after its epoch's last step."""
    return [row.epoch + 1 for row in rows]


def shade(axes: Axes, phases: Sequence[Span]) -> None:
    for phase in phases:
        if phase.kind == "sparse":
            axes.axvspan(phase.first, phase.last + 1, color=LIGHT["shade"], linewidth=0, zorder=0)


def name_phases(axes: Axes, phases: Sequence[Span], y: float, *, on_fill: bool = False) -> str:
    """Every phase's name in the middle of it, or its letter where the name has no room; and what letters mean."""
    last = max(phase.last + 1 for phase in phases)
    scale = axes.bbox.width / max(1, last)
    rooms = [(phase.last + 1 - phase.first) * scale - 4 for phase in phases]
    narrow = {p.name for p, room in zip(phases, rooms, strict=True) if len(p.name) * SMALL * _LETTER > room}
    short: dict[str, str] = {}
    for phase, room in zip(phases, rooms, strict=True):
        text = phase.name
        if text in narrow:
            text = SHORT.get(phase.name, phase.name[:1].upper())
            short.setdefault(text, phase.name.removeprefix("final "))
        if len(text) * SMALL * _LETTER > room + 3:
            continue
        colour = LIGHT["page"] if on_fill and phase.kind == "sparse" else LIGHT["muted"]
        middle = (phase.first + phase.last + 1) / 2
        axes.text(middle, y, text, ha="center", va="center", fontsize=SMALL, color=colour, clip_on=True)
    return ", ".join(f"{letter}: {name}" for letter, name in short.items())


def label_ends(axes: Axes, ends: Sequence[tuple[float, str, str]], *, apart: float = 13, dx: float = 8) -> None:
    """Text to the right of the axes at each height (value, text, colour), moved apart where two would touch."""
    height = axes.bbox.height
    to_pixels = axes.transData.transform
    low, high = axes.get_ylim()
    clipped = [min(max(value, min(low, high)), max(low, high)) for value, _, _ in ends]
    wanted = [float(to_pixels((0, value))[1] - axes.bbox.y0) for value in clipped]
    order = sorted(range(len(ends)), key=lambda index: wanted[index])
    placed = spread([wanted[index] for index in order], apart, height)
    for index, y in zip(order, placed, strict=True):
        _, text, colour = ends[index]
        x = 1 + dx / axes.bbox.width
        axes.text(x, y / height, text, transform=axes.transAxes, va="center", color=colour, fontsize=10, clip_on=False)


def spread(wanted: Sequence[float], apart: float, height: float) -> list[float]:
    """Rising positions at least `apart` from each other, as near as can be to those wanted and inside the height."""
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + apart) if placed else y)
    over = placed[-1] - height if placed else 0
    for index in range(len(placed) - 1, -1, -1):
        if over > 0:
            limit = height if index == len(placed) - 1 else placed[index + 1] - apart
            placed[index] = min(placed[index], limit)
    return placed


def by_kind(axes: Axes, rows: Sequence[EpochRow], phases: Sequence[Phase], value: Callable[[EpochRow], float]) -> None:
    """One line over all phases, in the colour of each; a phase's piece begins where the one before ended."""
    for phase in phases:
        part = [row for row in rows if phase.first - 1 <= row.epoch <= phase.last]
        axes.plot(after(part), [value(row) for row in part], color=KINDS[phase.kind], zorder=3)


def accuracy_scale(axes: Axes, accuracies: Iterable[float], images: int | None) -> Callable[[float], float]:
    """How an accuracy is drawn: in %, or where most are above 90 % over the error's logarithm, if that has two ticks.

    The first epochs may leave the axes below: they would press the last ones flat.
    """
    shares = sorted(accuracies)
    low, high = shares[len(shares) // 12], shares[-1]
    floor = 50 / (images or 10_000)  # no error at all, which a logarithm cannot show, as half an image
    bottom, top = max(100 * (1 - low), 4 * floor) * 1.25, max(100 * (1 - high), floor) / 1.35
    ticks = [tick for tick in (50, 30, 20, 10, 5, 3, 2, 1, 0.5, 0.3, 0.2, 0.1, 0.05) if top <= tick <= bottom]
    if shares[len(shares) // 2] < 0.9 or len(ticks) < 2:
        pad = 0.06 * (high - low) + 1e-3
        axes.set_ylim(max(0.0, 100 * (low - pad)), min(100.0, 100 * (high + pad)))
        if shares[0] < low - pad:
            entitle(axes, f"{axes.get_title('left')}, some epochs cut off")
        return lambda accuracy: 100 * accuracy
    axes.set_yscale("log")
    entitle(axes, f"{axes.get_title('left')}, log scale of the error")
    axes.set_ylim(bottom, top)
    axes.set_yticks(ticks, [f"{100 - tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    return lambda accuracy: max(100 * (1 - accuracy), floor)


def log_if_wide(axes: Axes, values: Iterable[float], *, factor: float = 20) -> None:
    """Over the logarithm, in plain numbers, where the values span more than `factor`."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > factor * min(positive):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(numticks=6))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)


def powers_of_ten(axes: Axes) -> None:
    """Along a logarithmic x, as letters: 10⁻⁴. Typesetting them as formulas takes longer than the whole figure."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    said = lambda value, _: f"10{f'{math.log10(value):.0f}'.translate(raised)}"  # noqa: E731
    axes.xaxis.set_major_formatter(FuncFormatter(said))
    axes.xaxis.set_minor_locator(NullLocator())


def bars(
    axes: Axes, labels: Sequence[str], values: Sequence[float], colours: Sequence[str], text: Sequence[str]
) -> Any:
    """Horizontal, the first on top, each with its value at its end."""
    places = range(len(values))
    drawn = axes.barh(places, values, color=colours, height=0.62)
    axes.set_yticks(list(places), labels)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.bar_label(drawn, labels=list(text), padding=4, fontsize=10, color=LIGHT["ink"])
    return drawn
