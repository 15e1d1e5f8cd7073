"""The report as a page."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from acdc._version import __version__
from acdc.report import theme, words
from acdc.report.compose import Report

_HERE = Path(__file__).parent


def html(report: Report, marker: str) -> str:
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True)
    environment.filters["nb"] = words.unbroken

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
