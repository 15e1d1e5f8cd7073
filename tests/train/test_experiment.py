"""A run's stages: that what was planned is what is run, and that what was chosen is said."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from acdc.cli import main
from acdc.recipes.load import read
from acdc.report.compose import model_card
from acdc.report.facts import models
from acdc.report.read import read as read_run
from acdc.report.tables import models as table
from acdc.runs import checkpoint
from acdc.train import stage
from acdc.train.prepare import plan_stages

SETTINGS = (
    "train.epochs=12", "data.name=synthetic", "data.classes=4", "data.shape=[1, 8, 8]", "data.train=40", "data.test=20",
    "train.batch_size=20", "run.baseline=false", "run.finetune=true", "method.twin=best", "method.schedule=paper",
)  # fmt: skip


@pytest.mark.parametrize(("extra", "chosen_on"), [((), "test"), (("data.validation=10",), "validation")])
def test_the_best_twin_is_fine_tuned_as_planned_and_said_to_be_chosen(
    extra: tuple[str, ...], chosen_on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Of the first epoch, as each is made out to be worse than the one before. The final phase are the last two."""
    evaluate, evaluations = stage.evaluate, iter(range(1000))

    def judged(*args, **knobs):
        epoch = next(evaluations) // (1 + len(extra))
        return replace(evaluate(*args, **knobs), accuracy=1 - epoch / 100)

    monkeypatch.setattr(stage, "evaluate", judged)
    sets = [part for setting in (*SETTINGS, *extra) for part in ("--set", setting)]
    assert main(["train", "--no-report", "digits", "--device", "cpu", "--out", str(tmp_path / "run"), *sets]) == 0
    out = capsys.readouterr().out
    planned = plan_stages(read("digits", [*SETTINGS, *extra]))["finetune"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    tuned = [row["epoch"] for row in rows if row["run"] == "finetune"]
    assert tuned == [*range(planned.first, planned.first + len(planned.kinds))] == [10, 11]
    rates = {(row["run"], row["epoch"]): row["lr"] for row in rows}
    assert all(rates["finetune", epoch] == rates["acdc", epoch] for epoch in tuned)
    (twin,) = [row for row in json.loads((tmp_path / "run" / "result.json").read_text())["models"]
               if row["file"] == "dense.safetensors"]  # fmt: skip
    assert twin["best"] == {"epoch": 0, "accuracy": 1.0, "chosen_on": chosen_on}
    assert f"AC/DC, dense twin: from epoch 1, the best of the dense phases, chosen on the {chosen_on} set" in out
    found = read_run(tmp_path / "run")
    (kept,) = [model for model in models(found) if model.role == "twin"]
    assert ("kept", f"epoch 1, the best of the dense phases on the {chosen_on} set") in model_card(found, kept).rows
    assert "(of the dense phases for the twin), chosen on the" in table(found).note


def test_without_a_twin_there_is_nothing_to_fine_tune(tmp_path: Path, capsys) -> None:
    sets = [part for setting in (*SETTINGS, "method.twin=none") for part in ("--set", setting)]
    assert main(["train", "--no-report", "digits", "--device", "cpu", "--out", str(tmp_path / "run"), *sets]) == 0
    assert "nothing to fine-tune: AC/DC keeps no dense twin" in capsys.readouterr().out
    assert [model.role for model in models(read_run(tmp_path / "run"))] == ["sparse"]
    for path in (tmp_path / "run" / "checkpoints").iterdir():
        assert checkpoint.load(path)["sparsifier"]["twin"] is None


def test_a_checkpoint_knows_the_time_up_to_it(tmp_path: Path) -> None:
    """Also within an epoch: a run that goes on from there adds its own."""
    often = ("run.checkpoint_every=1st", "run.keep=100", "run.finetune=false", "method.twin=last")
    sets = [part for setting in (*SETTINGS, *often) for part in ("--set", setting)]
    assert main(["train", "--no-report", "digits", "--device", "cpu", "--out", str(tmp_path / "run"), *sets]) == 0
    states = [checkpoint.load(path) for path in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    seconds = [state["extra"]["seconds"] for state in states]
    assert {state["batch"] for state in states} == {0, 1}
    assert all(earlier < later for earlier, later in pairwise(seconds))
