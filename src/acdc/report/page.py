"""The report as a page, and as one picture."""

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from acdc._version import __version__
from acdc.report import plot, theme
from acdc.report.compose import Report
from acdc.report.theme import Chart

_HERE = Path(__file__).parent
_LARGER = 1.13  # half figures, so that two fill the width as they do in the page


def html(report: Report, marker: str) -> str:
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True)
    environment.filters["nb"] = lambda text: re.sub(r"(\d) (?=%|[kMGTPE]?(?:FLOPs|B)\b|points)", "\\1\u00a0", text)

    def raw(name: str) -> Markup:
        return Markup((_HERE / name).read_text(encoding="utf-8"))

    return environment.get_template("page.html.j2").render(
        report=report,
        charts=[(chart, Markup(theme.to_svg(chart))) for chart in report.charts],
        light=Markup(theme.css_variables(theme.LIGHT)),
        dark=Markup(theme.css_variables(theme.DARK)),
        css=raw("page.css"),
        js=raw("page.js"),
        marker=marker,
        version=__version__,
    )


def png(report: Report, marker: str, *, scale: int = 2) -> bytes:
    """Every figure with its title, in the light theme, below each other: half ones side by side."""
    rows: list[list[Chart]] = []
    for chart in report.charts:
        if not chart.wide and rows and not rows[-1][0].wide and len(rows[-1]) == 1:
            rows[-1].append(chart)
        else:
            rows.append([chart])
    style: Any = theme.STYLE | {"figure.facecolor": theme.LIGHT["page"]}
    with mpl.rc_context(style):
        bands = [_words(report.title, plot.WIDE, 19, scale), _words(report.subtitle, plot.WIDE, 11, scale)]
        bands += [_beside([_titled(chart, scale) for chart in row], scale) for row in rows]
        whole = _stack(bands, plot.WIDE * scale, gap=26 * scale)
        buffer = io.BytesIO()
        from matplotlib.image import imsave

        imsave(buffer, _framed(whole, 24 * scale), format="png", metadata={"Software": marker}, dpi=72 * scale)
    return buffer.getvalue()


def _titled(chart: Chart, scale: int) -> Any:
    larger = 1 if chart.wide else _LARGER
    width = plot.WIDE if chart.wide else round(plot.HALF * larger)
    drawn = _pixels(chart.draw(not chart.wide), scale * larger)
    return _stack([_words(chart.title, width, 12, scale), drawn], width * scale, 6 * scale)


def _words(text: str, width: int, size: float, scale: int) -> Any:
    import textwrap

    lines = textwrap.wrap(text, max(20, int(width / (0.58 * size))))
    figure = plot.new(width, 1.35 * size * len(lines) + 4)
    weight = "normal" if size < 12 else "bold"
    figure.text(0, 1, "\n".join(lines), va="top", fontsize=size, fontweight=weight, linespacing=1.2)
    return _pixels(figure, scale)


def _pixels(figure: Figure, scale: float) -> Any:
    figure.set_facecolor(theme.LIGHT["page"])
    figure.set_dpi(72 * scale)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]


def _beside(parts: Sequence[Any], scale: int) -> Any:
    height, gap = max(part.shape[0] for part in parts), round((plot.WIDE - 2 * plot.HALF * _LARGER) * scale)
    cells = [_padded(part, height, part.shape[1]) for part in parts]
    return np.concatenate([cells[0], _blank(height, gap), *cells[1:]], axis=1) if len(cells) > 1 else cells[0]


def _stack(parts: Sequence[Any], width: int, gap: int) -> Any:
    filled = [_padded(part, part.shape[0], width) for part in parts]
    bands = [band for part in filled for band in (part, _blank(gap, width))]
    return np.concatenate(bands[:-1], axis=0)


def _framed(image: Any, edge: int) -> Any:
    return np.pad(image, ((edge, edge), (edge, edge), (0, 0)), constant_values=255)


def _padded(image: Any, height: int, width: int) -> Any:
    down, right = height - image.shape[0], max(0, width - image.shape[1])
    return np.pad(image, ((0, down), (0, right), (0, 0)), constant_values=255)[:, :width]


def _blank(height: int, width: int) -> Any:
    return np.full((height, width, 3), 255, dtype=np.uint8)
