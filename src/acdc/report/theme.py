"""One set of colours for both themes, and figures that follow them.

Figures are drawn in the light theme's colours; in the page each becomes the CSS variable of its name, so that one SVG
serves light, dark and print. Letters stay letters, in the reader's own system font: small, sharp, and searchable.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from html import escape
from typing import Any

LIGHT = {
    "ink": "#1c2228",
    "muted": "#5a646e",
    "line": "#dfe3e8",
    "page": "#ffffff",
    "panel": "#f6f7f9",
    "sparse": "#b9500f",
    "dense": "#2766a8",
    "finetuned": "#0d7a6b",
    "baseline": "#6c7480",
    "shade": "#fbf0e7",
    "on-mid": "#1c2229",  # letters on a cell of the heat map that is neither pale nor full
}
DARK = {
    "ink": "#e8eaed",
    "muted": "#a0a9b4",
    "line": "#333a43",
    "page": "#14171b",
    "panel": "#1c2026",
    "sparse": "#f19a5b",
    "dense": "#7db4ee",
    "finetuned": "#55c9b3",
    "baseline": "#9aa3af",
    "shade": "#2a211b",
    "on-mid": "#14171b",
}
# For several runs: told apart also without colour vision (after Okabe and Ito), and by their dashes.
SERIES_LIGHT = ("#b8500e", "#2665a7", "#0c796a", "#9c3f80", "#806000", "#515963", "#b03a42", "#4c55b8")
SERIES_DARK = ("#f29b5c", "#7cb3ed", "#56cab4", "#e292c6", "#dcb84a", "#b4bcc6", "#f08a8f", "#a3a9f5")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
LIGHT |= {f"series-{number}": colour for number, colour in enumerate(SERIES_LIGHT)}
DARK |= {f"series-{number}": colour for number, colour in enumerate(SERIES_DARK)}
KINDS = {"sparse": LIGHT["sparse"], "dense": LIGHT["dense"]}

SIZE, SMALL = 11.0, 9.5
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": SIZE,
    "axes.edgecolor": LIGHT["muted"],
    "axes.labelcolor": LIGHT["muted"],
    "axes.titlecolor": LIGHT["ink"],
    "axes.titlesize": SIZE,
    "axes.labelsize": SIZE,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": LIGHT["line"],
    "grid.linewidth": 0.8,
    "text.color": LIGHT["ink"],
    "xtick.color": LIGHT["muted"],
    "ytick.color": LIGHT["muted"],
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Chart:
    """A figure: `title` is what it shows, in words worked out from the data; `alt` says the rest of it."""

    name: str
    title: str
    alt: str
    draw: Callable[[bool], Any]  # a matplotlib Figure; True for a narrow screen
    wide: bool = False  # over the whole width of the page; then it is drawn a second time for narrow screens
    alone: Callable[[], Any] | None = None  # as it is drawn for a file of its own, where that differs


def css_variables(theme: dict[str, str]) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in theme.items())


def to_svg(chart: Chart) -> str:
    """The chart's SVG, ready to stand in a page."""
    if not chart.wide:
        return _svg(chart, narrow=True, kind="both")
    return _svg(chart, narrow=False, kind="wide") + _svg(chart, narrow=True, kind="narrow")


def _svg(chart: Chart, *, narrow: bool, kind: str) -> str:
    import io

    import matplotlib as mpl

    style: Any = STYLE | {"svg.hashsalt": f"{chart.name}-{kind}"}  # ids must not meet those of another figure
    with mpl.rc_context(style):
        buffer = io.StringIO()
        chart.draw(narrow).savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    return _inline(buffer.getvalue(), chart, kind)


def _inline(text: str, chart: Chart, kind: str) -> str:
    """Without what a file needs and a page does not, and with variables for colours."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<defs>\s*<style type="text/css">.*?</style>\s*</defs>', "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = re.sub(r"\s*\n\s*", "\n", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    text = re.sub(r" ?font-family: [^;\"]*;?", "", text)  # it is the page's
    text = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r' (d|x|y|width|height|transform)="([^"]*)"', _shorter, text)
    text = _colours().sub(lambda found: f"var(--{_names()[found[0]]})", text)
    box = re.search(r'viewBox="[^"]*"', text)
    assert box is not None
    words = escape(f"{chart.title}. {chart.alt}", quote=True)
    head = f'<svg class="chart {kind}" role="img" {box[0]} aria-label="{words}"><desc>{words}</desc>'
    return head + text[text.index(">", text.index("<svg")) + 1 :]


def _shorter(found: re.Match[str]) -> str:
    """A hundredth of a pixel will do."""
    numbers = re.sub(r"(-?\d+\.\d\d)\d+", r"\1", found[2])
    return f' {found[1]}="{numbers}"'


@cache
def _names() -> dict[str, str]:
    return {colour: name for name, colour in LIGHT.items()}


@cache
def _colours() -> re.Pattern[str]:
    return re.compile("|".join(LIGHT.values()))
