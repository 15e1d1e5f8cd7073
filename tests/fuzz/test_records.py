"""Damaged files of runs: no verb that reads them ends in a traceback, and one that refuses names the file."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from acdc.cli import main
from acdc.train.saved_models import read_scores
from tests.fuzz.mutate import damaged_json
from tests.report.comparisons import make_comparison
from tests.report.runs import make_run

FILES = ("result.json", "config.json", "metrics.jsonl", "phases.jsonl", "agreement.json")
AGREEMENT = {
    "a": {"run": "run", "model": "sparse"}, "b": {"run": "run", "model": "dense"}, "samples": 400, "classes": 10,
    "top1": 0.94, "cross_entropy_ab": 0.28, "cross_entropy_ba": 0.27,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as a result keeps it: without predictions, with what `acdc compare` found."""
    run = make_run(tmp_path_factory.mktemp("whole") / "run")
    (run / "predictions.safetensors").unlink()
    (run / "agreement.json").write_text(json.dumps({"comparisons": [AGREEMENT]}))
    return run


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_comparison(tmp_path_factory.mktemp("compared") / "all", ["acdc", "dense"], [0.9], [0])


def check(arguments: list[str], path: Path, capsys: pytest.CaptureFixture[str]) -> int:
    code = main(arguments)
    said = capsys.readouterr()
    assert code in (0, 2)
    assert "Traceback" not in said.err
    if code:
        assert path.name in said.err, said.err
        assert len(said.err) < 3_000
    else:
        assert said.out
    return code


@pytest.mark.parametrize("file", FILES)
@pytest.mark.filterwarnings("default")  # of numbers that a figure cannot show well
def test_a_run(file: str, whole: Path, tmp_path: Path, capsys, mutations: Callable[..., range]) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    path, content = run / file, (whole / file).read_bytes()
    for seed in mutations(short=25, long=2_000):
        path.write_bytes(damaged_json(content, random.Random(f"{file} {seed}"), lines=file.endswith("l")))
        check(["report", str(run), "--format", "json", "--out", str(tmp_path / f"{seed}.json")], path, capsys)
        if seed % 50 == 49:  # with every figure
            check(["report", str(run), "--out", str(tmp_path / f"{seed}.html")], path, capsys)
        if file == "result.json":
            read_scores(run)
        elif file == "config.json":
            for verb in ("compare", "eval"):
                code = main([verb, str(run), "--device", "cpu"])  # of a run without weights: refused in any case
                assert (code, "Traceback" in capsys.readouterr().err) == (2, False)


@pytest.mark.filterwarnings("default")
def test_a_comparison(compared: Path, tmp_path: Path, capsys, mutations: Callable[..., range]) -> None:
    out = tmp_path / "all"
    shutil.copytree(compared, out)
    path, content = out / "comparison.json", (compared / "comparison.json").read_bytes()
    for seed in mutations(short=25, long=2_000):
        path.write_bytes(damaged_json(content, random.Random(f"comparison {seed}"), lines=False))
        target = str(tmp_path / f"{seed}.json")
        code = main(["report", str(out), "--format", "json", "--out", target])
        said = capsys.readouterr().err
        assert code in (0, 2)
        if code:  # a comparison of no runs is no run either
            assert "comparison" in said or "no run (no config.json)" in said, said
