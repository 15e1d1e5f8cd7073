"""Run the notebooks of docs/notebooks without Jupyter, each from top to bottom in a folder of its own.

python -m docs.run_notebooks [NAME ...]            run them; an error names the notebook and the cell
python -m docs.run_notebooks --write [NAME ...]    also keep what each cell printed in the notebook
"""

import argparse
import contextlib
import io
import json
import linecache
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.record import cpu_model

FOLDER = Path(__file__).with_name("notebooks")


def run(notebook: dict[str, Any], name: str) -> None:
    """Run the code cells in one namespace, and put what each printed in place of its outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] != "code":
            continue
        source, file = "".join(cell["source"]), f"{name}, cell {number}"
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # for tracebacks
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(source, file, "exec"), names)
        finally:
            sys.stdout.write(printed.getvalue())
        text = printed.getvalue().splitlines(keepends=True)
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": text}] if text else []


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="such as five-minutes (default: all)")
    parser.add_argument("--write", action="store_true", help="keep what each cell printed")
    options = parser.parse_args(arguments)
    home = Path.cwd()
    for path in [FOLDER / f"{name}.ipynb" for name in options.names] or sorted(FOLDER.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                run(notebook, path.name)
            finally:
                os.chdir(home)
        if options.write:
            notebook["metadata"]["printed_on"] = f"{cpu_model()}, torch {torch.__version__}"
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
