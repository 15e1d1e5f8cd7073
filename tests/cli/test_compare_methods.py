"""acdc compare-methods: every method by the same loop, resumable, at equal epochs or FLOPs."""

import json
import re
from pathlib import Path

import pytest

from acdc.cli import main

SMALL = ["digits", "--epochs", "4", "--device", "cpu", "--set", "train.batch_size=256"]


def compare(out: Path, *arguments: str) -> int:
    return main(["compare-methods", *SMALL, "--jobs", "2", "--out", str(out), *arguments])


def facts(out: Path) -> dict[str, dict]:
    return {one["method"]: one for one in json.loads((out / "result.json").read_text())["methods"]}


def test_methods_seeds_and_dense_training_in_one_table(tmp_path: Path, capsys) -> None:
    out = tmp_path / "c"
    assert compare(out, "--methods", "gmp,rigl,dense,gmp", "--seeds", "0,1", "--set", "rigl.every=3st") == 0
    found = facts(out)
    assert set(found) == {"gmp", "rigl", "dense"}
    assert found["rigl"]["sparsity"] == pytest.approx(0.9, abs=1e-4)
    assert found["dense"]["training"] == 1
    assert found["rigl"]["training"] < found["gmp"]["training"] < 1
    assert len(found["gmp"]["values"]) == 2
    config = json.loads((out / "rigl-90-seed1" / "config.json").read_text())
    assert config["method"]["every"] == "3st"
    said = capsys.readouterr().out
    assert "test accuracy, %" in said
    before = (out / "gmp-90-seed0" / "result.json").stat().st_mtime_ns
    assert compare(out, "--methods", "gmp,dense,static", "--seeds", "0") == 0, "a method joins, what is done is kept"
    assert (out / "gmp-90-seed0" / "result.json").stat().st_mtime_ns == before
    assert set(facts(out)) == {"gmp", "dense", "static"}


def test_equal_flops_buys_sparse_training_more_epochs(tmp_path: Path) -> None:
    out = tmp_path / "c"
    assert compare(out, "--methods", "acdc,rigl", "--equal", "flops") == 0
    found = facts(out)
    assert found["rigl"]["epochs"] > 2 * found["acdc"]["epochs"]
    assert found["rigl"]["training"] == pytest.approx(found["acdc"]["training"], rel=0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--methods", "acdc,riggl"], "--methods riggl: expected some of acdc"),
        (["--sparsities", "90%"], "--sparsities 90%: expected fractions, such as 0.9,0.95"),
        (["--sparsities", "2"], "sparsity=2.0"),
        (["--sparsity", "0.5"], "type --sparsities 0.5"),
        (["--methods", ""], "expected some of"),
        (["--like", "dense"], "it counts with --equal flops only"),
        (["--set", "method.every=1ep", "--methods", "acdc"], "method.every: no such setting"),
        (["--set", "rigl.dropp=1", "--methods", "rigl"], 'method.dropp: no such setting.*did you mean "drop"'),
        (["--jobs", "x"], "--jobs x: expected the number of runs"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(arguments: list[str], message: str, tmp_path, capsys) -> None:
    assert compare(tmp_path / "c", *arguments) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "c").exists()


def test_another_comparison_s_folder_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert compare(tmp_path / "full") == 2
    assert "not empty" in capsys.readouterr().err
    out = tmp_path / "c"
    assert compare(out, "--methods", "dense") == 0
    assert compare(out, "--methods", "dense", "--lr", "0.3") == 2
    assert "dense-seed0 began with other settings there" in capsys.readouterr().err
