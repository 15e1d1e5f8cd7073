"""The examples run as they are, from the command line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANG

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(("name", "ends"), [("huggingface", "dense   loss")])
def test_it_runs(name: str, ends: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", tmp_path / "out"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(ends)
