"""Lines and tables that several verbs print."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from acdc.train import tabulate

if TYPE_CHECKING:
    from acdc.recipes.schema import Recipe


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> None:
    """Print a table, without colour if stdout is not a terminal. The first `text` columns are left-aligned."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console as Terminal

        terminal = Terminal()
        if not terminal.is_dumb_terminal:
            tabulate.show(terminal, title, header, rows, text=text)
            return
    for line in tabulate.plain(title, header, rows, text=text):
        print(line)


def draw_report(run: Path) -> str:
    """Write a run's report, and return a line that says where it is, or why there is none: a run can do without."""
    from acdc.report.read import ReportError
    from acdc.report.write import write_report
    from acdc.runs.json_files import RecordError

    try:
        return f"report: {write_report(run)}"
    except (ReportError, RecordError, OSError) as error:
        return f"no report: {error}"
    except Exception as error:  # a figure that cannot be drawn must not fail hours of training
        return f"no report: it could not be drawn ({type(error).__name__}: {error}); for details, run acdc report {run}"


def fp32_note(recipe: "Recipe") -> str:
    """Return the note on a model that runs in fp32 because this device does not support its training precision."""
    why = "needs a GPU" if recipe.train.precision == "fp16" else "crashes on this CPU: see acdc doctor"
    return f"precision: fp32 (trained in {recipe.train.precision}, which {why})"
