"""The writing of a report: one file, atomically, which replaces only an earlier report of the same runs."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acdc.io import write_bytes
from acdc.report.read import (
    Comparisons,
    NotBegunError,
    ReportError,
    Run,
    comparison_runs,
    config_of,
    expand,
    folder_name,
    log_end,
    read,
    read_comparison,
    same_names,
)
from acdc.runs import json_files
from acdc.runs.folder import RunFolder
from acdc.runs.records import RunConfig

if TYPE_CHECKING:
    from acdc.report.compose import Report

FORMATS = ("html", "md", "json", "csv", "png", "svg")
PICTURES = ("png", "svg")


def why_not() -> str | None:
    """Return why no report can be written here, or None."""
    from importlib.util import find_spec

    missing = [name for name in ("jinja2", "matplotlib") if find_spec(name) is None]
    if not missing:
        return None
    return f"a report needs {' and '.join(missing)}; run: pip install 'acdc-torch[report]' (in a checkout: '.[report]')"


def write_report(run: Path) -> Path:
    """Write the page of a run folder, or of the seeds in it, to report.html inside it."""
    path, _ = make([run])
    return path


def make(
    paths: Sequence[Path], out: Path | None = None, kind: str = "html", figure: str | None = None
) -> tuple[Path, Sequence[str]]:
    """Write a report as `kind`; return its path and notes on what is missing from it.

    A picture ("svg" or "png") shows one figure: the one named, or the first.
    """
    if reason := why_not():
        raise ReportError(reason)
    target = out or (paths[0] if len(paths) == 1 else Path()) / f"report.{kind}"
    folders = expand(paths)
    for run in folders:
        config_of(run)  # before the target file is checked, which depends on this
    marker = f"acdc-report:{_key(paths)}"
    _check(target, marker)
    from acdc.report import compose  # after `why_not`: it needs matplotlib

    runs, left_out = _read(folders)
    report = compose.compose(runs, left_out, compared=any(comparison_runs(path) for path in paths))
    content, notes = _render(report, kind, marker, figure), report.notes
    try:
        write_bytes(target, content)
    except OSError as error:
        raise ReportError(f"--out {target}: it could not be written ({error.strerror}); choose another name") from None
    return target, notes


def _read(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs, and notes on those that have not begun: among others, these are no reason to show nothing."""
    runs, left_out, silent, first = list[Run](), list[str](), list[str](), None
    comparisons, same = Comparisons(), same_names(folders)
    for run in folders:
        try:
            runs.append(read(run, comparisons, qualified=run in same))
        except NotBegunError as error:
            first, name = first or error, folder_name(run, qualified=run in same)
            if end := log_end(run):
                left_out.append(f"{name} is left out: none of its epochs has ended{end}")
            else:
                silent.append(name)
    if first and not runs:
        raise first
    if silent:
        left_out.append(f"Left out because they have not begun: {', '.join(silent)}")
    return runs, left_out


def _render(report: "Report", kind: str, marker: str, figure: str | None) -> bytes:
    from acdc.report import render
    from acdc.report.figures.chart import draw_file

    if kind in PICTURES:
        return draw_file(render.find_chart(report, figure), kind, marker)
    texts: dict[str, Callable[[Report, str], str]] = {
        "html": render.html,
        "md": render.markdown,
        "json": render.as_json,
        "csv": render.as_csv,
    }
    return texts[kind](report, marker).encode()


def _key(paths: Sequence[Path]) -> str:
    """Return the same key for the same runs, wherever they are stored and however far they have got."""
    identity = []
    for path in paths:
        known = json_files.read(RunConfig, RunFolder(path).config) or read_comparison(path)
        identity.append([known.settings.get("recipe"), known.started] if known else [None, None])
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _check(target: Path, marker: str) -> None:
    """Raise if the file must not be written, before any work is done."""
    if target.is_dir():
        raise ReportError(f"--out {target}: this is a folder; use a file name, such as {target / 'report.html'}")
    if not target.parent.is_dir():
        raise ReportError(
            f"--out {target}: there is no folder {target.parent}; create it first, or choose another name"
        )
    if not target.exists():
        return
    content = target.read_bytes()
    if marker.encode() in content:
        return
    what = "a report of other runs" if b"acdc-report:" in content else "not a report that acdc wrote"
    raise ReportError(f"--out {target}: this file exists and is {what}; choose another name, or move the file")
