"""The formats of a report: a page, Markdown, JSON or CSV, with the same facts in each."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from acdc import formatting as fmt
from acdc._version import __version__
from acdc.report import deployment, facts
from acdc.report.compose import Report
from acdc.report.facts import Model
from acdc.report.figures import theme
from acdc.report.figures.chart import Chart, inline_svg
from acdc.report.read import ReportError, Run
from acdc.report.tables import Table

_HERE = Path(__file__).parent

_COLUMNS = [field.name for field in fields(Model) if field.name not in ("best", "language")]


def html(report: Report, marker: str) -> str:
    """Render the page as one self-contained file."""
    environment = Environment(loader=FileSystemLoader(_HERE), autoescape=True)
    environment.filters["nb"] = fmt.keep_units_together

    def raw(name: str) -> Markup:
        return Markup((_HERE / name).read_text(encoding="utf-8"))

    return environment.get_template("page.html.j2").render(
        report=report,
        charts=[(chart, Markup(inline_svg(chart))) for chart in report.charts],
        light=Markup(theme.css_variables(theme.LIGHT)),
        dark=Markup(theme.css_variables(theme.DARK)),
        css=raw("page.css"),
        js=raw("page.js"),
        marker=marker,
        version=__version__,
    )


def find_chart(report: Report, name: str | None) -> Chart:
    """Return the figure of that name, or the first."""
    charts = {chart.name: chart for chart in report.charts}
    if name is not None and name not in charts:
        raise ReportError(f"--figure {name}: expected one of {', '.join(charts)}; write --figure {next(iter(charts))}")
    return charts[name] if name is not None else report.charts[0]


def markdown(report: Report, marker: str) -> str:
    """Render titles and tables as Markdown."""
    parts = [f"<!-- {marker} -->", f"# {_plain(report.title)}", _plain(report.subtitle)]
    parts += [f"> {_plain(note)}" for note in report.notes]
    parts += [_plain(text) for text in report.remarks]
    parts.append("\n".join(f"- {_plain(chart.title)}." for chart in report.charts))
    parts += [_table(table) for table in [*report.tables, *report.details]]
    if report.commands:
        parts.append("## Reproduce\n\n```sh\n" + "\n".join(report.commands) + "\n```")
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [f"## {table.title}", "", "| " + " | ".join(map(_plain, table.header)) + " |"]
    lines.append("|" + "|".join("---" if i < table.text else "---:" for i in range(len(table.header))) + "|")
    lines += ["| " + " | ".join(map(_plain, row)) + " |" for row in table.rows]
    return "\n".join([*lines, *(["", _plain(table.note)] if table.note else [])])


def _plain(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def as_json(report: Report, marker: str) -> str:
    """Render the facts of every run as JSON."""
    content = {
        "made_by": marker,
        "title": report.title,
        "notes": list(report.notes),
        "remarks": list(report.remarks),
        "findings": {chart.name: {"title": chart.title, "alt": chart.alt} for chart in report.charts},
        "groups": [{"label": g.label, "runs": [str(run.folder) for run in g.runs]} for g in report.groups],
        "runs": [_run(run) for run in report.runs],
        "commands": list(report.commands),
    }
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _run(run: Run) -> dict[str, Any]:
    return {
        "folder": str(run.folder),
        "seed": run.seed,
        "complete": run.result is not None,
        "epochs": run.planned,
        "test_images": {"all": run.test_images, "judged": run.images},
        "warnings": list(run.config.warnings),
        "models": [{**_model(run, model), "flops_ratio": model.ratio} for model in facts.models(run)],
        "files": [asdict(file) for file in deployment.files(run)],
        "speed": asdict(run.speed)["models"],
        "phases": [_phase(run, phase) for phase in facts.phases(run)],
        "agreement": [asdict(pair) for pair in run.pairs],
        "paper": [dict(zip(("what", "ours", "paper", "std"), row, strict=True)) for row in facts.paper_rows(run)],
        "epoch_seconds": facts.epoch_seconds(run),
        "environment": facts.environment(run),
        "recipe": run.config.recipe.settings,
        "notes": list(run.notes),
    }


def _model(run: Run, model: facts.Model) -> dict[str, Any]:
    """Return a model's facts by name; what only language models have is left out for others."""
    name = run.quality.name.removeprefix("test ")
    values = {name if key == "score" else key: value for key, value in asdict(model).items()}
    if model.language is None:
        del values["language"]
    if model.best:
        values["best"] = {key: value for key, value in values["best"].items() if value is not None}
    return values


def _phase(run: Run, phase: facts.Phase) -> dict[str, Any]:
    name = run.quality.name.removeprefix("test ")
    values = {name if key == "score" else key: value for key, value in asdict(phase).items() if key != "end"}
    if (end := phase.end) is None:
        return {**values, "mask_change": None, "regrown": None, "explored": None, "layer_sparsity": {}}
    sums = {key: sum(getattr(end, key).values()) for key in ("dead_filters", "filters", "nonzero", "size")}
    layers = {name: 1 - kept / end.size[name] for name, kept in end.nonzero.items()}
    change = {key: getattr(end, key) for key in ("mask_change", "regrown", "explored")}
    return {**values, **sums, **change, "layer_sparsity": layers}


def as_csv(report: Report, marker: str) -> str:
    """Render one line for each model of each run; the column `report` holds the marker."""
    label = {id(run): group.label for group in report.groups for run in group.runs}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    score = report.runs[0].quality.name.removeprefix("test ") if report.runs else "accuracy"
    columns = [score if name == "score" else name for name in _COLUMNS]
    writer.writerow(
        ["run", "setting", "seed", "complete", *columns, "flops_ratio", f"best_{score}", "best_epoch", "report"]
    )
    for run in report.runs:
        for model in facts.models(run):
            values = {score: None, **_model(run, model)}
            best: Sequence[Any] = (run.quality.best(model.best), model.best.epoch + 1) if model.best else ("", "")
            cells = ["" if values[name] is None else values[name] for name in columns]
            name = label.get(id(run), run.config.recipe.name or "")
            head = [run.name, name, "" if run.seed is None else run.seed, run.result is not None]
            writer.writerow([*head, *cells, model.ratio, *best, marker])
    return buffer.getvalue()
