"""The look of figures: colours of the light and the dark theme, matplotlib's settings, a style for each group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acdc import methods
from acdc.report.groups import Group

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
# For several runs: distinguishable even without colour vision (after Okabe and Ito), and by their dashes.
SERIES_LIGHT = ("#b8500e", "#2665a7", "#0c796a", "#9c3f80", "#806000", "#515963", "#b03a42", "#4c55b8")
SERIES_DARK = ("#f29b5c", "#7cb3ed", "#56cab4", "#e292c6", "#dcb84a", "#b4bcc6", "#f08a8f", "#a3a9f5")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
LIGHT |= {f"series-{number}": colour for number, colour in enumerate(SERIES_LIGHT)}
DARK |= {f"series-{number}": colour for number, colour in enumerate(SERIES_DARK)}
_MARKS = "o^DvPX<>ph*"
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


def css_variables(theme: dict[str, str]) -> str:
    """Return a theme as CSS variables, which figures in the page refer to."""
    return " ".join(f"--{name}: {colour};" for name, colour in theme.items())


@dataclass(frozen=True)
class Style:
    """The colour, dash and mark of a group."""

    colour: str
    mark: str
    dash: Any


def group_style(group: Group) -> Style:
    """Return the style of a setting among several: by its number."""
    return _numbered(group.number)


def method_styles(groups: Sequence[Group]) -> dict[str, Style]:
    """Return styles by method, the same in every figure and at every sparsity: AC/DC first, dense training in grey."""
    known = methods.names()
    order = sorted(groups, key=lambda g: (known.index(g.method) if g.method in known else len(known), g.number))
    names = list(dict.fromkeys(group.name for group in order if not group.is_dense))
    styles = {name: _numbered(number) for number, name in enumerate(names)}
    dense = dict.fromkeys(group.name for group in order if group.is_dense)
    return styles | {name: Style(LIGHT["baseline"], "s", DASHES[n % len(DASHES)]) for n, name in enumerate(dense)}


def _numbered(number: int) -> Style:
    colours = len(SERIES_LIGHT)
    return Style(SERIES_LIGHT[number % colours], _MARKS[number % len(_MARKS)], DASHES[number // colours % len(DASHES)])
