"""Files of runs that are damaged: every verb that reads them names the file, and ends without a traceback."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acdc.cli import main
from tests.report.comparisons import make_comparison
from tests.report.runs import make_run, read_lines, write_lines


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run")


def edited(file: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def spoil(run: Path) -> None:
        content = json.loads((run / file).read_text())
        change(content)
        (run / file).write_text(json.dumps(content))

    return spoil


def replaced(file: str, content: bytes) -> Callable[[Path], object]:
    return lambda run: (run / file).write_bytes(content)


DAMAGES = {
    "no models": (replaced("result.json", b"{}"), "result.json: models is missing"),
    "models null": (replaced("result.json", b'{"models": null}'), "result.json: models = null: expected a list"),
    "an empty table": (replaced("result.json", b'{"models": []}'), "result.json: models = []: expected at least one"),
    "no dense FLOPs": (
        edited("result.json", lambda result: result["models"][0].update(dense_flops=0)),
        "result.json: models[0].dense_flops = 0: expected a whole number, 1 or more",
    ),
    "brackets": (replaced("result.json", b"[" * 100_000), "result.json: it cannot be read (brackets are nested"),
    "not UTF-8": (replaced("result.json", b"\xff"), "result.json: it cannot be read"),
    "config null": (edited("config.json", lambda c: c.update(data=None)), "config.json: data = null: expected a table"),
    "seeds": (
        edited("config.json", lambda c: c["recipe"]["run"].update(seeds="x")),
        'config.json: recipe.run.seeds = "x": expected a list',
    ),
    "a deep recipe": (
        replaced("config.json", b'{"recipe": {"x": ' + b"[" * 500 + b"]" * 500 + b"}}"),
        "expected tables nested at most 20 deep",
    ),
    "every epoch": (replaced("metrics.jsonl", b"{}\n" * 3), "metrics.jsonl line 1: run is missing"),
    "a folder": (
        lambda run: ((run / "result.json").unlink(), (run / "result.json").mkdir()),
        "result.json: it is not a regular file",
    ),
}


@pytest.mark.parametrize(("spoil", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_named(run: Path, spoil, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(run)
    assert main(["report", str(run), "--format", "json"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(run) in error


def test_an_epoch_that_is_wrong_is_left_out_and_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = read_lines(run / "metrics.jsonl")
    rows[2]["epoch"] = "x"
    write_lines(run / "metrics.jsonl", rows)
    assert main(["report", str(run), "--format", "json"]) == 0
    assert (
        "metrics.jsonl has damaged lines (line 3): the 25 intact lines are shown. "
        'Line 3: epoch = "x": expected a whole number, from 0 to 10,000,000.'
    ) in capsys.readouterr().err


def test_a_damaged_comparison_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = make_comparison(tmp_path / "all", ["acdc", "dense"], [0.9], [0])
    edited("comparison.json", lambda held: held.update(epochs=None))(out)
    said = f"{out / 'comparison.json'}: epochs = null: expected a whole number, 1 or more"
    typed = ["--methods", "acdc", "--device", "cpu", "--epochs", "12", "--out", str(out)]
    for arguments in (
        ["report", str(out)],
        ["report", str(out / "acdc-90-seed0")],
        ["compare-methods", "digits", *typed],
    ):
        assert main(arguments) == 2
        assert said in capsys.readouterr().err


def test_verbs_that_need_the_recipe_name_config_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edited("config.json", lambda config: config["recipe"].update(run=[]))(run)
    shutil.copyfile(run / "config.json", run / "before.json")
    for arguments in (["eval", str(run)], ["compare", str(run)]):
        assert main([*arguments, "--device", "cpu"]) == 2
        assert "config.json: recipe.run = […]: expected a table" in capsys.readouterr().err
    os.remove(run / "result.json")
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 2
    assert "config.json: recipe.run = […]: expected a table" in capsys.readouterr().err
    assert (run / "config.json").read_bytes() == (run / "before.json").read_bytes()
