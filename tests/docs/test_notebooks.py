"""The notebooks run from top to bottom, and hold no more than text."""

import json
import sys
from pathlib import Path

import pytest

from tests import processes
from tests.docs.blocks import ROOT

NOTEBOOKS = sorted(path.stem for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"))
NEED_RUNTIME = {"inference"}


def cells(name: str) -> list[dict]:
    return json.loads((ROOT / "docs" / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.runtime] * (name in NEED_RUNTIME)) for name in NOTEBOOKS]
)
def test_it_runs(name: str) -> None:
    done = processes.run([sys.executable, "-m", "docs.run_notebooks", name], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_there_are_three() -> None:
    assert NOTEBOOKS == ["compare", "five-minutes", "inference"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_outputs_are_text_and_short(name: str) -> None:
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert outputs, "run python -m docs.run_notebooks --write"
    assert {output["name"] for output in outputs} == {"stdout"}
    assert sum(len("".join(output["text"])) for output in outputs) < 4000
    assert all(cell["execution_count"] is None and not cell["metadata"] for cell in code)
    assert "/home" not in str(outputs)
    assert "/tmp" not in str(outputs)


def test_an_error_names_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from docs import run_notebooks

    broken = {"cells": [{"cell_type": "code", "source": ["x = 1\n", "x.y"], "outputs": []}], "metadata": {}}
    (tmp_path / "broken.ipynb").write_text(json.dumps(broken))
    monkeypatch.setattr(run_notebooks, "FOLDER", tmp_path)
    with pytest.raises(AttributeError) as raised:
        run_notebooks.main(["broken"])
    assert raised.traceback[-1].path == "broken.ipynb, cell 0"
    assert Path.cwd() == ROOT or Path.cwd().exists()
