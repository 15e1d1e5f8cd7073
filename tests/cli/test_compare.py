"""acdc compare: two models' answers, kept or made again, and what cannot be compared."""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from acdc.cli import compare, main
from acdc.errors import UsageError
from acdc.io import write_safetensors
from acdc.measure.agreement import agreement
from acdc.runs import predictions
from acdc.runs.predictions import Made
from tests.train.problems import JPEGS, jpegs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "made"
    assert main(["train", "--no-report", "--epochs", "4", "--device", "cpu", "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return copy(trained, tmp_path / "run", "checkpoints")


def copy(run: Path, to: Path, *leave_out: str) -> Path:
    shutil.copytree(run, to, ignore=shutil.ignore_patterns(*leave_out))
    return to


def compared(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    compare.add_to(parser.add_subparsers())
    args = parser.parse_args(["compare", *map(str, arguments), "--device", "cpu"])
    return args.verb(args)


def refused(*arguments: object) -> str:
    with pytest.raises(UsageError) as error:
        compared(*arguments)
    return str(error.value)


def as_json(tmp_path: Path, *arguments: object) -> list[dict[str, Any]]:
    assert compared(*arguments, "--json", tmp_path / "facts.json") == 0
    return json.loads((tmp_path / "facts.json").read_text())["comparisons"]


def change_config(run: Path, *, test: int | None = None, **data: object) -> None:
    config = json.loads((run / "config.json").read_text())
    config["recipe"]["data"] |= data
    if test is not None:
        config["data"]["test"] = test
    (run / "config.json").write_text(json.dumps(config))


# Comparing


def test_one_run_is_its_sparse_model_beside_its_dense_ones(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = as_json(tmp_path, trained)
    out = capsys.readouterr().out
    kept = load_file(trained / "predictions.safetensors")
    said = {row["file"]: row["test_accuracy"] for row in json.loads((trained / "result.json").read_text())["models"]}
    twins = [name for name in ("dense", "finetuned", "baseline") if name in kept]
    assert [(row["a"], row["b"]) for row in rows] == [
        ({"run": "made", "model": "sparse"}, {"run": "made", "model": twin}) for twin in twins
    ]
    for row in rows:
        expected = agreement(kept["sparse"], kept[row["b"]["model"]])
        assert (row["samples"], row["classes"], row["source"]) == (400, 10, "kept predictions")
        assert row["top1"] == expected.top1
        assert row["cross_entropy_ab"] == pytest.approx(expected.cross_entropy_ab)
        assert row["accuracy_a"] == said["sparse.safetensors"]
        assert row["accuracy_b"] == said[f"{row['b']['model']}.safetensors"]
        assert sum(row["flips"].values()) == round(400 * (1 - row["top1"]))
        assert f"{row['top1']:.2%}" in out
    assert f"{trained}: answers on 400 test images (kept predictions)" in out
    assert "A to B: cross-entropy −Σ softmax(A) · log softmax(B), in nats" in out
    assert "sparse and dense differ most on class" in out
    assert "(0 images)" not in out
    assert "(1 images)" not in out


def test_models_run_again_answer_as_they_did(trained: Path, run: Path, tmp_path: Path) -> None:
    (run / "predictions.safetensors").unlink()
    pair = ("sparse.safetensors", "dense.safetensors")
    (kept,) = as_json(tmp_path, *(trained / name for name in pair))
    (again,) = as_json(tmp_path, *(run / name for name in pair))
    (mixed,) = as_json(tmp_path, trained / pair[0], run / pair[1])
    assert (kept["source"], again["source"]) == ("kept predictions", "run again")
    assert mixed["source"] == "kept predictions and run again"
    for row in (again, mixed):
        assert row["top1"] == kept["top1"]
        assert row["flips"] == kept["flips"]
        assert row["cross_entropy_ab"] == pytest.approx(kept["cross_entropy_ab"], abs=1e-3)  # kept in half precision


def test_fp16_is_run_again_in_fp32_on_a_cpu_and_that_is_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, said = json.loads((run / "config.json").read_text()), "precision: fp32 (trained in fp16, which needs a GPU)"
    config["recipe"]["train"]["precision"] = "fp16"
    (run / "config.json").write_text(json.dumps(config))
    (kept,) = as_json(tmp_path, run / "sparse.safetensors", run / "dense.safetensors")
    assert said not in capsys.readouterr().out, "nothing was run"
    (run / "predictions.safetensors").unlink()
    (again,) = as_json(tmp_path, run / "sparse.safetensors", run / "dense.safetensors")
    assert capsys.readouterr().out.count(said) == 1
    assert (again["source"], again["top1"]) == ("run again", kept["top1"])


def test_predictions_are_enough_where_the_weights_are_gone(run: Path, tmp_path: Path) -> None:
    (run / "sparse.safetensors").unlink()
    assert as_json(tmp_path, run / "sparse.safetensors", run / "dense.safetensors")[0]["samples"] == 400


def test_two_runs_are_their_sparse_models(trained: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(trained, run) == 0
    out = capsys.readouterr().out
    assert "made/sparse" in out
    assert "run/sparse" in out
    assert "100.00%" in out
    assert out.lstrip().startswith(f"{trained}, {run}: answers")  # in the order they were typed
    assert "made/sparse and run/sparse give the same class for every image" in out
    assert "differ" not in out
    assert compared(run, trained) == 0
    assert capsys.readouterr().out.lstrip().startswith(f"{run}, {trained}: answers")


def test_runs_of_the_same_name_are_told_apart_by_their_place(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = copy(trained, tmp_path / "elsewhere" / "made", "checkpoints")
    assert compared(trained / "sparse.safetensors", other / "dense.safetensors") == 0
    assert f"{trained}/sparse and {other}/dense differ most on class" in capsys.readouterr().out


def test_models_that_learned_from_other_labels_are_compared_and_it_is_said(
    trained: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "they were not trained on the same images and labels: data.corrupt is 0 and 100"
    change_config(run, corrupt=100)
    assert compared(trained, run) == 0
    assert said in capsys.readouterr().out.splitlines()
    as_json(tmp_path, trained, run)
    assert json.loads((tmp_path / "facts.json").read_text())["notes"] == [said]


# Predictions and the file they were made from


def test_a_file_cut_short_is_noticed_though_its_predictions_were_kept(run: Path) -> None:
    content = (run / "sparse.safetensors").read_bytes()
    (run / "sparse.safetensors").write_bytes(content[:3000])
    said = f"{run / 'sparse.safetensors'}: it is truncated, or not a safetensors file"
    assert said in refused(run)


def test_another_file_than_the_predictions_were_made_from_is_run_again(
    trained: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "baseline.safetensors", run / "sparse.safetensors")
    (row,) = as_json(tmp_path, run / "sparse.safetensors", trained / "baseline.safetensors")
    assert (row["top1"], row["source"]) == (1, "kept predictions and run again")
    said = "sparse.safetensors is not the file that its stored predictions were made from: the model is run again"
    assert said in capsys.readouterr().out


def test_predictions_that_another_tool_wrote_are_refused(run: Path) -> None:
    kept = load_file(run / "predictions.safetensors")
    save_file(kept, run / "predictions.safetensors")
    assert "predictions.safetensors: it has no digest: another tool wrote it" in refused(run)


# Checkpoints


def test_a_checkpoint_is_a_model_of_its_run(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = sorted((trained / "checkpoints").glob("*.pt"))[-1]
    assert "finetune" in newest.name
    (row,) = as_json(tmp_path, newest, trained / "finetuned.safetensors")  # its last epoch is the fine-tuned twin
    assert (row["top1"], row["source"]) == (1, "kept predictions and run again")
    assert row["a"] == {"run": "made", "model": newest.stem}
    (row,) = as_json(tmp_path, trained, newest)
    assert row["b"]["model"] == newest.stem
    assert f"sparse and {newest.stem} differ most on class" in capsys.readouterr().out
    monkeypatch.chdir(newest.parent)
    assert compared(newest.name, "../sparse.safetensors") == 0


def test_checkpoints_that_cannot_be_compared(trained: Path, tmp_path: Path) -> None:
    whole = sorted((trained / "checkpoints").glob("*.pt"))[-1]
    run = copy(trained, tmp_path / "run")
    cut = run / "checkpoints" / whole.name
    cut.write_bytes(whole.read_bytes()[:5000])
    assert f"{cut}: damaged" in refused(cut, trained)
    gone = run / "checkpoints" / "9-none-00000001.pt"
    assert f"{gone}: there is no such checkpoint; name a checkpoint, such as {cut}" in refused(gone, trained)
    alone = shutil.copy(whole, tmp_path / "alone.pt")
    said = refused(alone, trained)
    assert said.count("alone.pt") == 1
    assert "use RUN/checkpoints/NAME.pt" in said
    assert "is a single model, and B is missing" in refused(whole)
    for path in run.glob("*.safetensors"):
        path.unlink()
    assert f"it holds neither a model nor predictions; name a checkpoint, such as {cut}" in refused(run)


def test_without_the_data_there_are_no_labels(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("ACDC_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    change_config(run, name="cifar10", options={})
    (row, *_) = as_json(tmp_path, run)
    assert (row["accuracy_a"], row["flips"], row["samples"]) == (None, None, 400)
    assert "no labels are available, so right and wrong are not shown: cifar10" in capsys.readouterr().out
    assert "does not exist" in refused(run, "--data", tmp_path / "nowhere")
    (run / "predictions.safetensors").unlink()
    assert "does not exist" in refused(run)


# Images that cannot be read


@pytest.fixture(scope="module")
def trained_on_jpegs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and its images: of six test images the second cannot be read."""
    made = tmp_path_factory.mktemp("jpegs")
    images, run = jpegs(made / "images"), made / "made"
    (images / "val" / "cat" / "1.jpg").write_bytes(b"")
    sets = [part for setting in JPEGS for part in ("--set", setting)]
    place = ["--data", str(images), "--device", "cpu", "--workers", "0", "--out", str(run)]
    assert main(["train", "--no-report", "imagenet-mobilenet", "--epochs", "4", *place, *sets]) == 0
    return run, images


def test_models_are_compared_over_the_images_that_could_be_read(
    trained_on_jpegs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, images = trained_on_jpegs
    (row,) = as_json(tmp_path, run, "--data", images)
    assert (row["samples"], row["test_images"], row["source"]) == (5, 6, "kept predictions")
    said = {row["file"]: row["test_accuracy"] for row in json.loads((run / "result.json").read_text())["models"]}
    assert (row["accuracy_a"], row["accuracy_b"]) == (said["sparse.safetensors"], said["dense.safetensors"])
    assert "answers on 5 of 6 test images (1 cannot be read) (kept predictions)" in capsys.readouterr().out
    newest = sorted((run / "checkpoints").glob("*.pt"))[-1]  # the sparse model again
    (again,) = as_json(tmp_path, run, newest, "--data", images, "--workers", "0")
    assert (again["samples"], again["top1"], again["source"]) == (5, 1, "kept predictions and run again")


def test_answers_on_other_images_are_not_compared(trained_on_jpegs: tuple[Path, Path], tmp_path: Path) -> None:
    run, _ = trained_on_jpegs
    newest = sorted((run / "checkpoints").glob("*.pt"))[-1]
    images = copy(trained_on_jpegs[1], tmp_path / "images")
    (images / "val" / "dog" / "2.jpg").write_bytes(b"")
    said = refused(run, newest, "--data", images, "--workers", "0")
    assert "made/sparse: its stored predictions do not cover the test images that can be read now" in said
    assert "then: number 2; now: number 2, 6" in said
    mended = copy(images, tmp_path / "mended")
    for broken in ("cat/1.jpg", "dog/2.jpg"):
        shutil.copy(mended / "val" / "cat" / "0.jpg", mended / "val" / broken)
    assert "then: number 2; now: none" in refused(run, newest, "--data", mended, "--workers", "0")
    other = copy(run, tmp_path / "other")
    predictions.add(other, {name: Made(kept.logits(), [4]) for name, kept in predictions.kept(run).items()})
    assert "test images that could not be read: number 2 and number 5" in refused(run, other, "--data", images)


def test_a_test_set_that_cannot_be_read_is_said(
    trained_on_jpegs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, images = trained_on_jpegs[0], copy(trained_on_jpegs[1], tmp_path / "images")
    for path in (images / "val").rglob("*.jpg"):
        path.write_bytes(b"")
    newest = sorted((run / "checkpoints").glob("*.pt"))[-1]
    said = "6 of the 6 images in"
    assert said in refused(run, newest, "--data", images, "--workers", "0")
    assert main(["eval", str(run), "--data", str(images), "--workers", "0", "--device", "cpu"]) == 2
    assert said in capsys.readouterr().err


def test_predictions_that_do_not_say_of_which_images_are_made_again(
    trained_on_jpegs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, images = copy(trained_on_jpegs[0], tmp_path / "run"), trained_on_jpegs[1]
    predictions.add(run, {name: Made(kept.logits()) for name, kept in predictions.kept(run).items()})
    (row,) = as_json(tmp_path, run, "--data", images, "--workers", "0")
    assert (row["samples"], row["source"]) == (5, "run again")
    assert (
        "stored predictions cover 5 of 6 test images, but do not say which: the model is run again"
        in capsys.readouterr().out
    )
    (run / "sparse.safetensors").unlink()
    assert "5 predictions for 6 test images, and nothing says for which; remove it" in refused(run, "--data", images)


# What cannot be


def test_different_data_is_refused_by_naming_all_that_differs(trained: Path, run: Path) -> None:
    kept = load_file(run / "predictions.safetensors")
    write_safetensors({run / "predictions.safetensors": {name: torch.zeros(10, 7) for name in kept}})
    for name in kept:
        (run / f"{name}.safetensors").unlink()
    change_config(run, name="synthetic", options={"classes": 7, "shape": [1, 8, 8]}, test=10)
    said = refused(trained, run).splitlines()
    assert said[0] == f"{trained} and {run} were not tested on the same images, so they cannot be compared:"
    assert [line.strip() for line in said[1:]] == [
        "data: digits and synthetic",
        "test images: 400 and 10",
        "data.classes: not set and 7",
        "data.shape: not set and [1, 8, 8]",
        "classes: 10 and 7",
    ]


def test_other_test_images_than_now_are_refused(run: Path) -> None:
    kept = load_file(run / "predictions.safetensors")
    change_config(run, test=390)
    assert "400 predictions for 390 test images" in refused(run)
    predictions.add(run, {name: Made(logits[:390]) for name, logits in kept.items()})
    assert "was tested on 390 images, but digits has 400 here" in refused(run)


def test_another_number_of_classes_is_refused(run: Path) -> None:
    kept = load_file(run / "predictions.safetensors")
    predictions.add(run, {name: Made(logits[:, :9]) for name, logits in kept.items()})
    assert "run/sparse distinguishes 9 classes, but digits has 10" in refused(run)


def test_other_weights_are_refused(run: Path) -> None:
    (run / "predictions.safetensors").unlink()
    save_file({"fc.weight": torch.zeros(2, 2)}, run / "dense.safetensors")
    assert "does not fit the run's model" in refused(run / "sparse.safetensors", run / "dense.safetensors")


def test_predictions_that_are_no_numbers_are_refused(run: Path) -> None:
    kept = load_file(run / "predictions.safetensors")
    kept["sparse"][3] = torch.nan
    predictions.add(run, {"sparse": Made(kept["sparse"])})
    assert "logits of 1 of 400 samples are not finite" in refused(run)


def test_a_damaged_file_of_predictions_is_refused(run: Path) -> None:
    content = (run / "predictions.safetensors").read_bytes()
    (run / "predictions.safetensors").write_bytes(content[:100])
    assert "predictions.safetensors: it is truncated, or not a safetensors file" in refused(run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: it holds no run (no config.json); name a folder written by acdc train"),
        (["made", "made"], "are the same model; name two different ones"),
        (["made/sparse.safetensors"], "is a single model, and B is missing"),
        (["made/best.safetensors", "made"], "there is no such model in"),
        (["made", "made/masks.safetensors"], "there is no such model in"),
    ],
)
def test_refused(arguments: list[str], message: str, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parent)
    assert message in refused(*arguments)


def test_a_run_of_one_model_wants_another(run: Path) -> None:
    for path in run.glob("*.safetensors"):
        if path.stem != "baseline":
            path.unlink()
    assert "holds only one model, baseline, and B is missing" in refused(run)
    (run / "baseline.safetensors").unlink()
    assert "it holds neither a model nor predictions; name the folder" in refused(run)


def test_a_run_of_several_seeds_wants_one_of_them(trained: Path, tmp_path: Path) -> None:
    copy(trained, tmp_path / "all" / "seed-0")
    assert f"it holds several seeds; name one of them, such as {tmp_path / 'all' / 'seed-0'}" in refused(
        tmp_path / "all"
    )


def test_json_that_cannot_be_written(trained: Path, tmp_path: Path) -> None:
    assert "--json" in refused(trained, "--json", tmp_path / "nowhere" / "facts.json")
