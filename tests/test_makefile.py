"""make where there is no C++ compiler: everything else goes on, and what is not run is named."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile beside empty files of the names it looks at; its environment is set up, acdc-runtime is not."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "constraints.txt", "runtime/pyproject.toml", "runtime/CMakeLists.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".ready").touch()
    return tmp_path


def make(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("ACDC_", "MAKE"))}
    command = ["make", *words, "CXX=no-such-compiler"]
    return subprocess.run(
        command, cwd=checkout, env={**kept, **environment}, text=True, capture_output=True, check=False
    )


def test_tests_that_need_a_compiler_are_named(checkout: Path) -> None:
    done = make(checkout, "test-runtime")
    assert done.returncode == 0, done.stderr
    assert "acdc-runtime is not built: there is no C++ compiler. Install one (apt install g++)" in done.stdout
    assert "NOT RUN: the tests of acdc-runtime (no C++ compiler)" in done.stdout


def test_where_they_are_required_it_fails(checkout: Path) -> None:
    done = make(checkout, "test-runtime", ACDC_REQUIRE_RUNTIME="1")
    assert done.returncode != 0
    assert "NOT RUN" in done.stdout
    assert "ACDC_REQUIRE_RUNTIME=1" in (ROOT / ".ci" / "run").read_text(), "as on the machine that checks every change"


def test_the_demo_needs_no_compiler(checkout: Path) -> None:
    done = make(checkout, "--dry-run", "demo")
    assert done.stdout.split() == [".venv/bin/acdc", "train"]
