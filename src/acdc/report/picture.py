"""The report as one picture, and a figure of it by itself, as a README shows it."""

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from acdc.report import plot, theme, words
from acdc.report.compose import Report
from acdc.report.read import ReportError
from acdc.report.theme import Chart

_LARGER = 1.13  # half figures, so that two fill the width as they do in the page
_TITLE = 12.5


def find(report: Report, name: str | None) -> Chart:
    """The figure of that name; the first where none is named."""
    named = {chart.name: chart for chart in report.charts}
    if name is not None and name not in named:
        raise ReportError(f"--figure {name}: expected one of {', '.join(named)}; type --figure {next(iter(named))}")
    return named[name] if name is not None else report.charts[0]


def draw(chart: Chart, kind: str, marker: str, *, scale: int = 2) -> bytes:
    """With its title above it, in the light theme. Letters are shapes: the same with any reader's fonts."""
    style: Any = theme.STYLE | {"figure.facecolor": "white", "svg.fonttype": "path", "svg.hashsalt": chart.name}
    buffer = io.BytesIO()
    with mpl.rc_context(style):
        figure = chart.alone() if chart.alone else chart.draw(False)
        figure.set_facecolor("white")
        width, height = figure.get_size_inches()
        title = "\n".join(textwrap.wrap(words.unbroken(chart.title), int(72 * width / (0.58 * _TITLE))))
        figure.text(
            4 / (72 * width), 1 + 0.2 / height, title, ha="left", va="bottom", fontsize=_TITLE, fontweight="bold"
        )
        said = {"Software": marker} if kind == "png" else {"Date": None, "Description": f"{marker} {chart.alt}"}
        figure.savefig(buffer, format=kind, metadata=said, dpi=72 * scale, bbox_inches="tight", pad_inches=0.12)
    return buffer.getvalue()


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
    lines = textwrap.wrap(words.unbroken(text), max(20, int(width / (0.58 * size))))
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
