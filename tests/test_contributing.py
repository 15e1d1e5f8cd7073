"""Follows CONTRIBUTING.md to the letter, in a copy of the package: its steps add a method, a model and a recipe."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import acdc

GUIDE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
SHORT = ["--epochs", "6", "--no-report", "--device", "cpu"]
SHORT += ["--set", "run.baseline=false", "--set", "run.finetune=false"]


def section(title: str) -> str:
    """Return a section's text."""
    return re.split(r"^## ", GUIDE.split(f"## {title}\n")[1], maxsplit=1, flags=re.M)[0]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkout in which all three sections were followed."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(Path(acdc.__file__).parent, root / "src" / "acdc", ignore=shutil.ignore_patterns("__pycache__"))
    for title in ("Add a method", "Add a model", "Add a recipe"):
        text = section(title)
        for name, block in re.findall(r"^```\w+\n# (src/\S+)\n(.*?)^```$", text, re.M | re.S):
            assert not (root / name).exists(), "the example has become real: choose another"
            (root / name).write_text(block)
        if line := re.search(r"Add a line to `(_\w+)` in `(src/\S+)`.*?\n\n(    \"\w+\": .*?,\n)", text, re.S):
            table, registry, entry = line.groups()
            source = (root / registry).read_text()
            assert f"\n{table} = {{\n" in source
            (root / registry).write_text(source.replace(f"\n{table} = {{\n", f"\n{table} = {{\n{entry}"))
    return root


@pytest.mark.parametrize(
    "typed",
    [
        ["digits", "--set", "method.name=halfway"],
        ["digits", "--set", "model.name=perceptron"],
        ["digits-gmp"],
    ],
    ids=["method", "model", "recipe"],
)
def test_what_was_added_trains(typed: list[str], package: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "acdc", "train", *typed, *SHORT, "--out", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(package / "src")}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sparse, *_ = json.loads((tmp_path / "run" / "result.json").read_text())["models"]
    assert sparse["sparsity"] == pytest.approx(0.8 if "digits-gmp" in typed else 0.9, abs=0.01)


def test_each_example_is_about_ten_lines() -> None:
    for title in ("Add a method", "Add a model", "Add a recipe"):
        (block,) = re.findall(r"^```\w+\n# src/\S+\n(.*?)^```$", section(title), re.M | re.S)
        code = [line for line in block.splitlines() if line.strip() and not re.match(r'from|import|"""', line)]
        assert len(code) <= 12
