"""The report as Markdown, JSON and CSV: the same facts for those who read them with a program."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from acdc.report import facts, place
from acdc.report.compose import Report
from acdc.report.facts import Model
from acdc.report.read import Run
from acdc.report.tables import Table

_COLUMNS = [field.name for field in fields(Model) if field.name != "best"]


def markdown(report: Report, marker: str) -> str:
    parts = [f"<!-- {marker} -->", f"# {_plain(report.title)}", _plain(report.subtitle)]
    parts += [f"> {_plain(note)}" for note in report.notes]
    parts += [_plain(text) for text in report.remarks]
    parts.append("\n".join(f"- {_plain(chart.title)}." for chart in report.charts))
    parts += [_table(table) for table in [*report.tables, *report.details]]
    if report.commands:
        parts.append("## Make it again\n\n```sh\n" + "\n".join(report.commands) + "\n```")
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    lines = [f"## {table.title}", "", "| " + " | ".join(map(_plain, table.header)) + " |"]
    lines.append("|" + "|".join("---" if i < table.text else "---:" for i in range(len(table.header))) + "|")
    lines += ["| " + " | ".join(map(_plain, row)) + " |" for row in table.rows]
    return "\n".join([*lines, *(["", _plain(table.note)] if table.note else [])])


def _plain(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")


def as_json(report: Report, marker: str) -> str:
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
        "models": [{**asdict(model), "flops_ratio": model.ratio} for model in facts.models(run)],
        "phases": [_phase(phase) for phase in facts.phases(run)],
        "agreement": [asdict(pair) for pair in run.pairs],
        "paper": [dict(zip(("what", "ours", "paper", "std"), row, strict=True)) for row in facts.paper_rows(run)],
        "epoch_seconds": place.epoch_seconds(run),
        "environment": place.environment(run),
        "recipe": run.config.recipe.settings,
        "notes": list(run.notes),
    }


def _phase(phase: facts.Phase) -> dict[str, Any]:
    told = {key: value for key, value in asdict(phase).items() if key != "end"}
    if (end := phase.end) is None:
        return {**told, "mask_change": None, "regrown": None, "explored": None, "layer_sparsity": {}}
    sums = {key: sum(getattr(end, key).values()) for key in ("dead_filters", "filters", "nonzero", "size")}
    layers = {name: 1 - kept / end.size[name] for name, kept in end.nonzero.items()}
    change = {key: getattr(end, key) for key in ("mask_change", "regrown", "explored")}
    return {**told, **sums, **change, "layer_sparsity": layers}


def as_csv(report: Report, marker: str) -> str:
    """One line for each model of each run; `report` says which report wrote it."""
    label = {id(run): group.label for group in report.groups for run in group.runs}
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["run", "setting", "seed", "complete", *_COLUMNS, "flops_ratio", "best_accuracy", "best_epoch", "report"]
    )
    for run in report.runs:
        for model in facts.models(run):
            values = asdict(model)
            best: Sequence[Any] = (model.best.accuracy, model.best.epoch + 1) if model.best else ("", "")
            cells = ["" if values[name] is None else values[name] for name in _COLUMNS]
            name = label.get(id(run), run.config.recipe.name or "")
            head = [run.name, name, "" if run.seed is None else run.seed, run.result is not None]
            writer.writerow([*head, *cells, model.ratio, *best, marker])
    return buffer.getvalue()
