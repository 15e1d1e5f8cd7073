"""Which of batch norm's statistics a model's accuracy hangs on."""

import json
from pathlib import Path

import pytest

from acdc.cli import main
from benchmarks import recalibration, tables

WRN = ["model.name=wide_resnet", "model.depth=10", "model.width=1", "model.dropout=0.3", "model.bn_splits=2"]
RUN = ["run.baseline=false", "run.finetune=false", "run.recalibrate=true"]


def test_each_way_of_taking_statistics_is_its_own(tmp_path: Path) -> None:
    run, file = tmp_path / "run", tmp_path / "results" / "recalibration.jsonl"
    settings = [part for setting in (*WRN, *RUN) for part in ("--set", setting)]
    assert main(["train", "--no-report", "--epochs", "4", "--device", "cpu", "--out", str(run), *settings]) == 0
    assert recalibration.main([str(run), "--device", "cpu", "--commit", "abc123", "--results", str(file)]) == 0

    rows = [json.loads(line) for line in file.read_text().splitlines()]
    losses = {(row["file"], row["way"]): row["test_loss"] for row in rows}
    files = ("sparse.safetensors", "dense.safetensors")
    assert list(losses) == [(name, way) for name in files for way in recalibration.WAYS]
    assert len({*losses.values()}) == len(losses)
    said = {model["file"]: model["test_loss"] for model in json.loads((run / "result.json").read_text())["models"]}
    for name in files:
        assert losses[name, "as trained"] == said[name]
        assert losses[name, "all"] == said[name.replace(".", "-recalibrated.")]

    assert tables.main(["--results", str(file.parent)]) == 0
    page = (file.parent / "README.md").read_text()
    assert "| model | as trained | the last layer's | all, dropout on | all |" in page
    assert "400 test images" in page


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", "--no-report", "--epochs", "4", "--device", "cpu", "--out", str(run)]) == 0
    for path in run.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=r"holds none of sparse\.safetensors"):
        recalibration.main([str(run), "--device", "cpu", "--results", str(tmp_path / "r.jsonl")])
    assert not (tmp_path / "r.jsonl").exists()
