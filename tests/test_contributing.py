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


TRAINED = {
    "method": ["digits", "--set", "method.name=halfway"],
    "model": ["digits", "--set", "model.name=perceptron"],
    "recipe": ["digits-gmp"],
}
EACH = """
import json, sys
from acdc.cli import main
sys.exit(max(main(command) for command in json.loads(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def runs(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with each of the three, trained one after the other by the checkout's own acdc."""
    folder = tmp_path_factory.mktemp("runs")
    commands = [["train", *typed, *SHORT, "--out", str(folder / name)] for name, typed in TRAINED.items()]
    environment = {**os.environ, "PYTHONPATH": str(package / "src"), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", EACH, json.dumps(commands)]
    done = subprocess.run(line, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(("name", "sparsity"), [("method", 0.9), ("model", 0.9), ("recipe", 0.8)])
def test_what_was_added_trains(name: str, sparsity: float, runs: Path) -> None:
    sparse, *_ = json.loads((runs / name / "result.json").read_text())["models"]
    assert sparse["sparsity"] == pytest.approx(sparsity, abs=0.01)


def test_each_example_is_about_ten_lines() -> None:
    for title in ("Add a method", "Add a model", "Add a recipe"):
        (block,) = re.findall(r"^```\w+\n# src/\S+\n(.*?)^```$", section(title), re.M | re.S)
        code = [line for line in block.splitlines() if line.strip() and not re.match(r'from|import|"""', line)]
        assert len(code) <= 12
