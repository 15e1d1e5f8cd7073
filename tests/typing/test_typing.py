"""Public names are typed: pyright accepts a user's script, which also runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import acdc
from acdc import methods
from tests.typing import user_script

HERE = Path(__file__).parent


def test_type_checkers_know_the_public_names() -> None:
    """One call for both files: most of its time goes into reading torch."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "user_script.py", "public_names.py"]
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert answer["summary"]["filesAnalyzed"] == 2
    assert [(found["file"], found["message"]) for found in answer["generalDiagnostics"]] == []


def test_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = user_script.main(tmp_path)
    assert [round(result.sparsity, 2) for result in results] == [0.5, 0.5, 0.5, 0.5]
    assert "FLOPs per sample" in capsys.readouterr().out


# What completion offers


def test_completion_offers_public_names_only() -> None:
    assert {*acdc.__all__, "methods", "criteria"} <= {*dir(acdc)}
    for module in (acdc, methods):
        assert not [name for name in dir(module) if name.startswith("_") and name != "__version__"]
        assert not {"importlib", "typing", "import_module", "fields", "Any", "TYPE_CHECKING"} & {*dir(module)}
        assert all(hasattr(module, name) for name in dir(module))


def test_every_method_is_among_the_public_names() -> None:
    classes = {methods.find(name).__name__ for name in methods.names()}
    assert classes <= {*methods.__all__}
    assert {*dir(methods)} == {*methods.__all__}
