"""A figure with its title: as SVG inside the page, or in its own file.

Figures are drawn in the light theme's colours. In the page each colour becomes the CSS variable of its name, so that
one SVG serves light, dark and print. Text stays text, in the reader's system font: small, sharp and searchable.
"""

import io
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.figure import Figure

from acdc import formatting as fmt
from acdc.report.figures import theme

_SVG = "{http://www.w3.org/2000/svg}"
_HREF = "{http://www.w3.org/1999/xlink}href"
_NUMERIC = ("d", "x", "y", "width", "height", "transform")  # attributes that hold coordinates
_NAMES = {colour: name for name, colour in theme.LIGHT.items()}
_TITLE_SIZE = 12.5


@dataclass(frozen=True)
class Chart:
    """A figure to be drawn. `title` states its finding, worked out from the data; `alt` describes the rest."""

    name: str
    title: str
    alt: str
    draw: Callable[[bool], Figure]  # True for a narrow screen
    wide: bool = False  # over the whole width of the page; it is then drawn a second time for narrow screens
    draw_alone: Callable[[], Figure] | None = None  # for its own file, if that differs


def draw_file(chart: Chart, kind: str, marker: str, *, scale: int = 2) -> bytes:
    """Draw a chart with its title above it as "svg" or "png", in the light theme.

    Letters are drawn as shapes, so that it looks the same with any fonts.
    """
    style: Any = theme.STYLE | {"svg.fonttype": "path", "svg.hashsalt": chart.name}
    buffer = io.BytesIO()
    with mpl.rc_context(style):
        figure = chart.draw_alone() if chart.draw_alone else chart.draw(False)
        figure.set_facecolor("white")
        width, height = figure.get_size_inches()
        lines = textwrap.wrap(fmt.keep_units_together(chart.title), int(72 * width / (0.58 * _TITLE_SIZE)))
        place, look = (4 / (72 * width), 1 + 0.2 / height), {"fontsize": _TITLE_SIZE, "fontweight": "bold"}
        figure.text(*place, "\n".join(lines), ha="left", va="bottom", **look)
        metadata = {"Software": marker} if kind == "png" else {"Date": None, "Description": f"{marker} {chart.alt}"}
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=72 * scale, bbox_inches="tight", pad_inches=0.12)
    return buffer.getvalue()


def inline_svg(chart: Chart) -> str:
    """Return the chart as SVG for a page; a wide one twice, for wide and for narrow screens."""
    if not chart.wide:
        return _inline(chart, narrow=True, kind="both")
    return _inline(chart, narrow=False, kind="wide") + _inline(chart, narrow=True, kind="narrow")


def _inline(chart: Chart, *, narrow: bool, kind: str) -> str:
    style: Any = theme.STYLE | {"svg.hashsalt": f"{chart.name}-{kind}"}  # ids must differ from another figure's
    buffer = io.BytesIO()
    with mpl.rc_context(style):
        chart.draw(narrow).savefig(buffer, format="svg", metadata={"Date": None}, transparent=True)
    svg = ElementTree.fromstring(buffer.getvalue())
    _remove_file_parts(svg)
    for element in svg.iter():
        _simplify(element)
    words = f"{chart.title}. {chart.alt}"
    svg.attrib = {"class": f"chart {kind}", "role": "img", "viewBox": svg.attrib["viewBox"], "aria-label": words}
    description = ElementTree.Element("desc")
    description.text = words
    svg.insert(0, description)
    return ElementTree.tostring(svg, encoding="unicode")


def _remove_file_parts(svg: ElementTree.Element) -> None:
    """Remove what a file needs but a page does not: metadata, and the style that the page already has."""
    for child in list(svg):
        style_only = child.tag == f"{_SVG}defs" and [inner.tag for inner in child] == [f"{_SVG}style"]
        if style_only or child.tag == f"{_SVG}metadata":
            svg.remove(child)


def _simplify(element: ElementTree.Element) -> None:
    """Remove namespaces, indentation, unused ids and fonts; replace colours by the theme's variables."""
    element.tag = element.tag.removeprefix(_SVG)
    element.text = element.text if (element.text or "").strip() else None
    element.tail = element.tail if (element.tail or "").strip() else None
    attributes = element.attrib
    if element.tag == "g":
        attributes.pop("id", None)
    if _HREF in attributes:
        attributes["href"] = attributes.pop(_HREF)
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        attributes["style"] = "; ".join(_simplify_style(attributes["style"]))
    for key in _NUMERIC:
        if key in attributes:  # a hundredth of a pixel is enough
            attributes[key] = re.sub(r"(\.\d\d)\d+", r"\1", " ".join(attributes[key].split()))


def _simplify_style(style: str) -> list[str]:
    kept = []
    for declaration in style.split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font":  # "11px 'DejaVu Sans', Arial, sans-serif": the family is the page's
            key, value = "font-size", next(word for word in value.split() if word.endswith("px"))
        if key and key != "font-family":
            kept.append(f"{key}: {f'var(--{_NAMES[value]})' if value in _NAMES else value}")
    return kept
