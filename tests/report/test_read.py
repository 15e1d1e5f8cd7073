"""What is whole in a run folder is read, and what is not is said."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from acdc.data import own_name
from acdc.io import write_safetensors
from acdc.report import tables
from acdc.report.read import ReportError, expand, read
from acdc.report.write import make
from acdc.runs import predictions
from acdc.runs.json_files import RecordError
from acdc.runs.predictions import Made
from tests.report.runs import change_config, make_run, read_lines, write_lines


def test_a_complete_run_has_nothing_to_say(run: Path) -> None:
    found = read(run)
    assert found.notes == []
    assert found.main == "acdc"
    assert (found.seed, found.planned, found.classes) == (0, 12, 10)
    assert len(found.stage("acdc")) == 12
    (pair,) = found.pairs
    assert (pair.a, pair.b, pair.samples) == ("the sparse model", "its dense twin", 400)
    assert pair.models == ("sparse", "dense")
    assert pair.top1 == pytest.approx(0.9)


@pytest.mark.parametrize("left", [1, 7, 40])
def test_metrics_cut_in_the_last_line_count_up_to_it(run: Path, left: int) -> None:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:20]) + lines[20][:left])
    found = read(run)
    assert len(found.rows) == 20
    assert "metrics.jsonl has a truncated last line (line 21): the 20 intact lines are shown." in found.notes


def test_bytes_that_are_no_text_are_a_line_that_is_not_whole(run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"run": "acdc", "phase": "\xff\xfe')
    assert any("truncated" in note for note in read(run).notes)


def test_a_broken_line_in_the_middle_is_named(run: Path) -> None:
    lines = (run / "phases.jsonl").read_text().splitlines()
    lines[1] = '{"run": "acdc"}'
    (run / "phases.jsonl").write_text("\n".join(lines) + "\n")
    assert any("phases.jsonl has damaged lines (line 2)" in note for note in read(run).notes)


def test_an_epoch_written_twice_counts_once(run: Path) -> None:
    rows = read_lines(run / "metrics.jsonl")
    again = dict(rows[-1], test_accuracy=0.5)
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(again) + "\n")
    found = read(run)
    assert len(found.rows) == len(rows)
    assert found.rows[-1].test_accuracy == 0.5


def test_epochs_are_shown_in_their_order(run: Path, tmp_path: Path) -> None:
    """Also where a file was put together from parts: a phase cannot end before it begins."""
    rows = read_lines(run / "metrics.jsonl")
    write_lines(run / "metrics.jsonl", rows[:12] + rows[12:][::-1])
    found = read(run)
    assert [(row.run, row.epoch) for row in found.stage("acdc")] == [("acdc", epoch) for epoch in range(12)]
    assert make([run], tmp_path / "report.html")[1] == []


def test_what_is_missing_is_said(run: Path) -> None:
    for name in ("phases.jsonl", "predictions.safetensors", "result.json"):
        (run / name).unlink()
    notes = "\n".join(read(run).notes)
    assert "not complete (no result.json): it has finished epoch 12" in notes
    assert "phases.jsonl is missing" in notes
    assert "predictions" not in notes, "a run that is not complete has none yet"


def test_a_complete_run_without_predictions_says_so(run: Path) -> None:
    (run / "predictions.safetensors").unlink()
    assert any("predictions.safetensors is missing" in note for note in read(run).notes)


def test_what_compare_found_stands_for_predictions_that_are_gone(run: Path) -> None:
    (run / "predictions.safetensors").unlink()
    found = {"samples": 400, "classes": 10, "top1": 0.94, "cross_entropy_ab": 0.28, "cross_entropy_ba": 0.27}
    sides = {"a": {"run": "run", "model": "sparse"}, "b": {"run": "run", "model": "dense"}}
    elsewhere = {"a": {"run": "run", "model": "sparse"}, "b": {"run": "other", "model": "dense"}}
    rows = [sides | found, elsewhere | found | {"top1": 0.1}]
    (run / "agreement.json").write_text(json.dumps({"comparisons": rows}))
    got = read(run)
    assert got.notes == []
    assert [(pair.top1, pair.ab, pair.ba) for pair in got.pairs] == [(0.94, 0.28, 0.27)]


def test_predictions_cut_short_are_said(run: Path) -> None:
    path = run / "predictions.safetensors"
    path.write_bytes(path.read_bytes()[:50])
    found = read(run)
    assert found.pairs == []
    assert any("predictions.safetensors: it is truncated" in note for note in found.notes)


def test_predictions_of_a_model_that_is_another_by_now_are_not_shown(run: Path) -> None:
    for name, kept in predictions.kept(run).items():
        save_file({"weight": torch.ones(2)}, run / f"{name}.safetensors")
        predictions.add(run, {name: Made(kept.logits())})
    assert len(read(run).pairs) == 1
    save_file({"weight": torch.zeros(2)}, run / "dense.safetensors")
    found = read(run)
    assert found.pairs == []
    (note,) = found.notes
    assert "dense.safetensors is not the file that its stored predictions were made from: agreement with it is" in note
    assert f"acdc compare {run}" in note


def test_a_damaged_model_is_named_whether_or_not_it_has_predictions(run: Path) -> None:
    write_safetensors({run / f"{name}.safetensors": {"weight": torch.ones(64)} for name in ("sparse", "finetuned")})
    predictions.add(run, {"sparse": Made(predictions.kept(run)["sparse"].logits())})
    assert read(run).notes == []
    for name in ("sparse", "finetuned"):
        path = run / f"{name}.safetensors"
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    notes = read(run).notes
    assert [name for name in ("sparse", "finetuned") for note in notes if f"/{name}.safetensors: its contents" in note]
    assert len(notes) == 2
    for note in notes:
        assert note.startswith("A model is damaged: ")
        assert note.endswith("Restore the file from a copy, or train again.")
    assert read(run).pairs == []


def test_a_model_that_another_tool_wrote_is_not_called_damaged(run: Path) -> None:
    save_file({"weight": torch.ones(2)}, run / "finetuned.safetensors")
    assert read(run).notes == []


@pytest.mark.parametrize(
    ("name", "classes", "shown"),
    [("imagenet", 5, "flowers"), ("imagenet", 1000, "imagenet"), ("digits", 10, "digits")],
)
def test_a_folder_of_images_is_called_by_its_own_name(tmp_path: Path, name: str, classes: int, shown: str) -> None:
    run = make_run(tmp_path / "run", data=name, classes=classes)
    change_config(run, dataset=own_name(name, "/data/flowers", classes=classes))
    assert read(run).data_name == shown
    path, _ = make([run])
    assert f"<h1>digits_net on {shown}: 90" in path.read_text()


def test_predictions_that_could_not_be_checked_are_shown_and_it_is_said(run: Path) -> None:
    def note() -> str:
        table = tables.agreement(read(run).pairs)
        assert table is not None
        return table.note

    assert note().endswith("the models that made them are not here to check.")
    for name in ("sparse", "dense"):
        save_file({"weight": torch.ones(2)}, run / f"{name}.safetensors")
    for name, kept in predictions.kept(run).items():
        predictions.add(run, {name: Made(kept.logits())})
    assert note().endswith("not 0.")
    assert read(run).notes == []


def test_predictions_of_other_images_are_not_shown(run: Path) -> None:
    sparse, dense = (predictions.kept(run)[name].logits() for name in ("sparse", "dense"))
    write_safetensors({run / "predictions.safetensors": {"sparse": sparse[1:], "dense": dense[1:]}})
    found = read(run)
    assert found.pairs == []
    assert any("399 predictions for 400 test images, and nothing says for which" in note for note in found.notes)
    for name, logits, unread in (("sparse", sparse[1:], [0]), ("dense", dense[:-1], [399])):
        save_file({"weight": torch.ones(2)}, run / f"{name}.safetensors")
        predictions.add(run, {name: Made(logits.clone(), unread)})
    assert any("one lacks number 1, the other lacks number 400" in note for note in read(run).notes)
    predictions.add(run, {"dense": Made(dense[1:].clone(), [0])})
    assert [pair.samples for pair in read(run).pairs] == [399]


def test_settings_of_another_acdc_are_no_reason_to_stop(run: Path) -> None:
    recipe = json.loads((run / "config.json").read_text())["recipe"]
    recipe["optimizer"]["warp"] = 9
    change_config(run, recipe=recipe)
    found = read(run)
    assert found.recipe is None
    assert found.planned == 12
    assert any("cannot read all settings" in note for note in found.notes)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: (run / "config.json").unlink(), "its config.json, which says what was run, is gone; restore it"),
        (lambda run: (run / "config.json").write_text("{"), "cannot be read"),
        (lambda run: (run / "config.json").write_text("[]"), "expected a table"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "no epoch has ended yet"),
        (lambda run: (run / "metrics.jsonl").write_text('{"run": '), "no epoch has ended yet"),
    ],
)
def test_what_is_no_run_is_refused(run: Path, spoil, said: str) -> None:
    spoil(run)
    with pytest.raises((ReportError, RecordError), match="run") as caught:
        read(run)
    assert said in str(caught.value)


def test_a_folder_of_seeds_stands_for_those_that_have_begun(tmp_path: Path) -> None:
    for seed in (10, 2):
        make_run(tmp_path / "all" / f"seed-{seed}", seed=seed)
    (tmp_path / "all" / "seed-3").mkdir()
    found = expand([tmp_path / "all"])
    assert [path.name for path in found] == ["seed-2", "seed-10"]
    assert read(found[0]).name == "all/seed-2"


def test_a_run_named_twice_or_not_there_is_refused(run: Path) -> None:
    with pytest.raises(ReportError, match="named more than once"):
        expand([run, run.parent / "." / run.name])
    with pytest.raises(ReportError, match="no such folder"):
        expand([run / "nothing"])


def test_one_model_by_itself_lacks_no_predictions(run: Path) -> None:
    """Agreement is of two: a run of dense training alone has nothing that could be shown."""
    (run / "predictions.safetensors").unlink()
    assert any("predictions.safetensors" in note for note in read(run).notes)
    result = json.loads((run / "result.json").read_text())
    result["models"] = [model for model in result["models"] if model["file"] == "baseline.safetensors"]
    (run / "result.json").write_text(json.dumps(result))
    assert read(run).notes == []
