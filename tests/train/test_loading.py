"""From a recipe to batches and a model, and what is refused on the way."""

import json
from pathlib import Path

import pytest
import torch

from acdc.cli import main
from acdc.data.data_facts import ImageFacts
from acdc.train.distributed import World
from tests.train.problems import JPEGS, jpegs, problem, recipe


def test_the_model_fits_the_data_and_is_a_function_of_the_seed() -> None:
    said = recipe()
    learned = problem(said)
    assert learned.facts == ImageFacts(train=70, test=40, shape=(1, 8, 8), classes=4)
    model = learned.new_model(said)
    assert len(model.get_parameter("fc.weight")) == 4
    first, again, other = (
        made.get_parameter("conv1.weight")
        for made in (model, learned.new_model(said), learned.new_model(said.with_seed(1)))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_images_set_aside_are_not_trained_on() -> None:
    loaders = problem(recipe("data.validation=20")).loaders
    assert loaders.validation is not None
    assert (loaders.train.samples, loaders.validation.samples, loaders.test.samples) == (50, 20, 40)


def test_labels_are_corrupted_in_the_training_set_only() -> None:
    plain, learned = problem(recipe()), problem(recipe("data.corrupt=9", "data.validation=20"))
    images = learned.images
    assert plain.images is not None
    assert images is not None
    assert images.corrupted is not None
    index = images.corrupted["index"]
    assert len(index) == 9
    assert (images.train.labels[index] == images.corrupted["given"].to(images.train.labels.device)).all()
    assert (images.corrupted["given"] != images.corrupted["true"]).all()
    assert torch.equal(images.test.labels, plain.images.test.labels)
    assert "9" in " ".join(learned.notes)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train.batch_size=71: synthetic has 70 training images; set it to 70"):
        problem(recipe("train.batch_size=71"))


def test_a_last_batch_too_small_for_the_processes_is_refused() -> None:
    with pytest.raises(ValueError, match="the last batch of an epoch has 1 images for 2 processes"):
        problem(recipe("train.batch_size=23"), World(0, 2, 0))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return jpegs(tmp_path / "images")


def train(tree: Path, out: Path, *settings: str) -> int:
    sets = [part for setting in ("train.epochs=4", *JPEGS, *settings) for part in ("--set", setting)]
    place = ["--data", str(tree), "--device", "cpu", "--workers", "0", "--out", str(out)]
    return main(["train", "--no-report", "imagenet-mobilenet", *place, *sets])


def test_a_tree_of_jpegs_trains_and_a_bad_one_is_skipped_by_name(tree: Path, tmp_path: Path, caplog) -> None:
    (tree / "train" / "cat" / "3.jpg").write_bytes((tree / "train" / "cat" / "3.jpg").read_bytes()[:300])
    assert train(tree, tmp_path / "run") == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert rows[-1]["skipped_images"] == 1
    assert "3.jpg" in caplog.text
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    files = config["data"].pop("files")
    assert config["data"] == {"train": 12, "test": 6}
    assert len(set(files.split())) == 2


def test_accuracy_is_of_the_test_images_that_can_be_read(tree: Path, tmp_path: Path, capsys) -> None:
    (tree / "val" / "dog" / "1.jpg").write_bytes(b"")
    assert train(tree, tmp_path / "run") == 0
    assert "Test accuracy on 5 of 6 images (1 cannot be read); FLOPs" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["unreadable_test_images"] == 1
    assert {row["test_images"] for row in result["models"]} == {5}
    assert main(["eval", str(tmp_path / "run"), "--data", str(tree), "--device", "cpu", "--workers", "0"]) == 0
    assert "test accuracy on 5 of 6 images (1 cannot be read)" in capsys.readouterr().out


def test_too_many_bad_ones_stop_the_run(tree: Path, tmp_path: Path, capsys) -> None:
    for path in (tree / "train").rglob("*.jpg"):
        path.write_bytes(b"not an image")
    assert train(tree, tmp_path / "run", "data.bad_limit=2") == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert ".jpg" in said
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_run_stopped_by_bad_images_goes_on_with_a_higher_limit(tree: Path, tmp_path: Path, capsys) -> None:
    for number in range(2):
        (tree / "train" / "cat" / f"{number}.jpg").write_bytes(b"not an image")
    out = tmp_path / "run"
    assert train(tree, out, "data.bad_limit=1") == 1
    said = capsys.readouterr().err
    assert f"acdc train --resume {out} --set data.bad_limit=4" in said
    assert "free disk space" not in said
    again = ["train", "--resume", str(out), "--device", "cpu", "--workers", "0"]
    assert main([*again, "--set", "data.bad_limit=4", "--lr", "1"]) == 2
    assert "only data.bad_limit, run.checkpoint_every, run.keep may change" in capsys.readouterr().err
    assert main([*again, "--set", "data.bad_limit=-4"]) == 2
    assert main([*again, "--set", "data.bad_limit=4"]) == 0
    assert json.loads((out / "config.json").read_text())["recipe"]["data"]["bad_limit"] == 4


def test_a_run_that_goes_on_counts_the_bad_images_it_had_met(tree: Path, tmp_path: Path, capsys) -> None:
    """As one that never stopped: one that was bad then and one that is now are two, and too many for a limit of 1."""
    bad, worse, out = tree / "train" / "cat" / "3.jpg", tree / "train" / "dog" / "2.jpg", tmp_path / "run"
    whole = {path: path.read_bytes() for path in (bad, worse)}
    bad.write_bytes(b"not an image")
    assert train(tree, out, "data.bad_limit=1", "run.checkpoint_every=1ep", "run.keep=9") == 0
    (out / "result.json").unlink()
    for path in sorted((out / "checkpoints").iterdir())[2:]:
        path.unlink()
    bad.write_bytes(whole[bad])
    worse.write_bytes(b"not an image")
    again = ["train", "--resume", str(out), "--device", "cpu", "--workers", "0"]
    capsys.readouterr()
    assert main(again) == 1
    assert "data.bad_limit=1: 2 of the 12 images" in capsys.readouterr().err
    worse.write_bytes(whole[worse])
    assert main(again) == 0
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["skipped_images"] for row in rows] == [1] * 4


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tree: (tree / "train" / "cat" / "0.jpg").unlink(), "12 train images at the start, 11 now"),
        (lambda tree: (tree / "val" / "dog" / "2.jpg").unlink(), "6 test images at the start, 5 now"),
        (lambda tree: [(tree / s / "cat").rename(tree / s / "wolf") for s in ("train", "val")], "other names"),
    ],
    ids=["training images", "test images", "classes"],
)
def test_a_run_does_not_go_on_with_other_data(tree: Path, tmp_path: Path, capsys, change, said: str) -> None:
    """Labels would be permuted, or the epochs of another length, without a word."""
    out = tmp_path / "run"
    (tree / "val" / "dog" / "1.jpg").write_bytes(b"not an image")
    assert train(tree, out, "data.bad_limit=0") == 1  # stopped after its first epoch
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    change(tree)
    capsys.readouterr()
    again = ["train", "--resume", str(out), "--device", "cpu", "--workers", "0", "--set", "data.bad_limit=4"]
    assert main(again) == 2
    error = capsys.readouterr().err
    assert "its data has changed: " in error
    assert said in error
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_imagenet_has_a_thousand_classes(tree: Path, capsys) -> None:
    assert main(["check", "imagenet-resnet50", "--data", str(tree), "--device", "cpu"]) == 2
    assert "classes=1000" in capsys.readouterr().err


def test_a_tree_that_is_not_there_or_of_other_classes_is_refused(tree: Path, tmp_path: Path, capsys) -> None:
    assert train(tmp_path / "nowhere", tmp_path / "run") == 2
    assert "nowhere" in capsys.readouterr().err
    assert train(tree, tmp_path / "run", "data.classes=1000") == 2
    assert "1000" in capsys.readouterr().err
    (tree / "val" / "cat").rename(tree / "val" / "cow")
    assert train(tree, tmp_path / "run") == 2
    assert "cow" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("setting", ["data.validation=500", "data.corrupt=500"])
def test_more_images_than_there_are_is_told_of_the_setting(setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting}: synthetic has 70 training images"):
        problem(recipe(setting))
