"""acdc analyze cpl: every kept model of a run, numbers that agree with one another, and clear words for what is not."""

import json
from pathlib import Path

import pytest

from acdc.cli import main


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "made"
    settings = ("run.keep=100", "run.checkpoint_every=1ep", "run.baseline=false", "run.finetune=false",
                "method.schedule=paper", "data.name=synthetic", "data.classes=10", "data.shape=[1, 8, 8]",
                "data.train=256", "data.test=32", "data.validation=64", "data.crop=0")  # fmt: skip
    typed = [part for setting in settings for part in ("--set", setting)]
    assert main(["train", "--no-report", "--epochs", "4", "--device", "cpu", "--out", str(out), *typed]) == 0
    return out


def test_the_condition_along_a_run(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cpl.json"
    assert main(["analyze", "cpl", str(trained), "--device", "cpu", "--batches", "3", "--json", str(file)]) == 0
    said, written = capsys.readouterr().out, json.loads(file.read_text())
    points = written["points"]
    checkpoints = sorted(path.name for path in (trained / "checkpoints").glob("*.pt"))
    models = ["dense.safetensors", "sparse-best.safetensors", "sparse.safetensors"]
    assert [point["file"] for point in points] == [*checkpoints, *models]
    assert all(point["file"] in said for point in points)
    along, final = points[: len(checkpoints)], points[-1]
    kinds = [json.loads(line)["kind"] for line in (trained / "phases.jsonl").read_text().splitlines()]
    assert [point["phase"] for point in along] == kinds == ["dense", "sparse", "dense", "sparse"]
    assert [point["epoch"] for point in along] == [1, 2, 3, 4]
    assert along[0]["smoothness"] is None
    assert all(point["smoothness"] > 0 for point in along[1:])
    size, counts = points[0]["concentration"]["size"], [one["r"] for one in written["summary"]]
    assert counts == [round(0.1 * size), round(0.01 * size), round(0.001 * size)]
    for point in points:
        shares = [point["share"][str(r)] for r in counts]
        assert 1 >= shares[0] >= shares[1] >= shares[2] > 0
    assert along[-1]["concentration"] == final["concentration"]  # the last checkpoint is the sparse model
    for one in written["summary"]:
        r = str(one["r"])
        assert one["alpha_proved"] == min(point["alpha"][r] for point in along)
        assert one["alpha_proved"] <= one["alpha_at_most"]
        assert one["beta"] == max(point["smoothness"] for point in along[1:])
        assert f"r = {one['r']:,}: the share is {one['least_share']:.1%} or more" in said
    assert "cpu" in written["hardware"]["device"]


def test_shares_that_were_typed(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "cpl", str(trained), "--device", "cpu", "--batches", "1", "--shares", "1,.5"]) == 0
    assert "share is 100.0% or more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--batches", "-1"], "--batches -1: expected a whole number, 0 for an epoch"),
        (["--shares", "0"], "--shares 0: expected fractions of the weights"),
        (["--shares", "a"], "--shares a: expected fractions of the weights"),
    ],
)
def test_options_that_cannot_be(trained: Path, typed: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "cpl", str(trained), "--device", "cpu", *typed]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "cpl", str(tmp_path), "--device", "cpu"]) == 2
    assert "holds no run (no config.json)" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named_and_the_rest_measured(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    run = tmp_path / "run"
    shutil.copytree(trained, run)
    first = sorted((run / "checkpoints").glob("*.pt"))[0]
    first.write_bytes(first.read_bytes()[:-50])
    assert main(["analyze", "cpl", str(run), "--device", "cpu", "--batches", "1"]) == 2
    captured = capsys.readouterr()
    assert first.name in captured.err
    assert "sparse.safetensors" in captured.out


def test_a_run_that_has_kept_nothing(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes((trained / "config.json").read_bytes())
    assert main(["analyze", "cpl", str(tmp_path), "--device", "cpu"]) == 2
    assert "no checkpoint and no model in it yet" in capsys.readouterr().err
