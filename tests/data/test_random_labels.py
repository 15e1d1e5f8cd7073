"""Random labels: which samples get one, what it is, and that both are known afterwards."""

import json
from pathlib import Path

import pytest
import torch

from acdc.data.images import ImageData, InMemory, hold_out
from acdc.data.random_labels import corrupt, read_indices, save_indices
from acdc.data.synthetic import load_synthetic


@pytest.fixture(scope="module")
def clean() -> ImageData:
    return load_synthetic(classes=10, shape=(1, 2, 2), train=4000, test=10)


@pytest.mark.parametrize("kind", ["always-wrong", "uniform"])
def test_exactly_the_recorded_labels_are_given(clean: ImageData, kind) -> None:
    data = corrupt(clean, 1000, seed=3, kind=kind)
    index, given, true = (data.corrupted[key] for key in ("index", "given", "true"))
    assert len(index.unique()) == 1000
    assert torch.equal(clean.train.labels[index], true)
    assert torch.equal(data.train.labels[index], given)
    rest = torch.ones(4000, dtype=torch.bool).index_fill(0, index, False)
    assert torch.equal(data.train.labels[rest], clean.train.labels[rest])
    assert torch.equal(data.train.pixels, clean.train.pixels)
    assert torch.equal(data.test.labels, clean.test.labels)
    assert clean.corrupted == {}, "the data given are not changed"


def test_always_wrong_is_never_right_and_takes_all_other_classes(clean: ImageData) -> None:
    data = corrupt(clean, 4000, seed=0)
    given, true = data.corrupted["given"], data.corrupted["true"]
    assert (given != true).all()
    counts = torch.zeros(10, 10).index_put((true, given), torch.ones(4000), accumulate=True)
    assert counts.diagonal().sum() == 0
    assert counts[~torch.eye(10, dtype=torch.bool)].min() > 20  # of 44 on average
    assert data.notes == (
        "4,000 of 4,000 training labels are random (always-wrong, seed 0); 4,000 differ from the true one",
    )


def test_uniform_keeps_about_a_tenth_and_says_so(clean: ImageData) -> None:
    data = corrupt(clean, 4000, seed=0, kind="uniform")
    changed = int((data.corrupted["given"] != data.corrupted["true"]).sum())
    assert 3500 < changed < 3700
    assert f"{changed:,} differ from the true one" in data.notes[0]


def test_a_function_of_its_seed_and_of_nothing_else(clean: ImageData) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = corrupt(clean, 100, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = corrupt(clean, 100, seed=5), corrupt(clean, 100, seed=6)
    assert all(torch.equal(first.corrupted[key], again.corrupted[key]) for key in first.corrupted)
    assert not torch.equal(first.corrupted["index"], other.corrupted["index"])


def test_the_choice_is_unrelated_to_shuffling_with_the_same_seed(clean: ImageData) -> None:
    """One stream for all would corrupt just the first images of the first epoch, and hold out just those."""
    chosen = corrupt(clean, 400, seed=0).corrupted["index"]
    order, *_ = InMemory(clean.train, clean, batch_size=10, train=True, seed=0)._draw(0)
    assert torch.isin(chosen, order[:400]).sum() < 100  # 40 on average
    held = hold_out(corrupt(clean, 400, seed=0), 400, seed=0)
    assert len(held.corrupted["index"]) > 300


def test_held_out_images_leave_the_record(clean: ImageData) -> None:
    before = corrupt(clean, 1000, seed=0)
    data = hold_out(before, 500)
    index, given, true = (data.corrupted[key] for key in ("index", "given", "true"))
    assert torch.equal(data.train.labels[index], given)
    assert torch.equal(hold_out(clean, 500).train.labels[index], true)
    assert data.validation is not None
    held = hold_out(clean, 500).validation
    assert held is not None
    moved = int((data.validation.labels != held.labels).sum())
    assert len(index) + moved == 1000
    assert data.notes[1] == f"{moved} of the random labels were set aside with the validation images"


def test_set_aside_first_the_validation_labels_stay_true(clean: ImageData) -> None:
    held = hold_out(clean, 500)
    data = corrupt(held, 1000, seed=0)
    assert data.validation is held.validation
    assert torch.equal(data.train.labels[data.corrupted["index"]], data.corrupted["given"])


@pytest.mark.parametrize("count", [0, -1, 4001])
def test_a_count_out_of_range_is_refused(clean: ImageData, count: int) -> None:
    with pytest.raises(ValueError, match=f"count={count}: synthetic has 4,000 training images; corrupt 1 to 4000"):
        corrupt(clean, count, seed=0)


def test_what_makes_no_sense_is_refused(clean: ImageData) -> None:
    with pytest.raises(ValueError, match="'always-wrong', 'uniform'"):
        corrupt(clean, 1, seed=0, kind="wrong")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="no other label to give"):
        corrupt(load_synthetic(classes=1, shape=(1, 2, 2), train=4, test=1), 1, seed=0)
    with pytest.raises(ValueError, match="already has 10 random labels"):
        corrupt(corrupt(clean, 10, seed=0), 10, seed=1)
    with pytest.raises(ValueError, match="no random labels to save"):
        save_indices(clean, "unused.json")


# The file


def test_saved_and_read_back(clean: ImageData, tmp_path: Path) -> None:
    data = corrupt(clean, 50, seed=7, kind="uniform")
    save_indices(data, tmp_path / "labels.json")
    read = read_indices(tmp_path / "labels.json")
    assert (read.data, read.samples, read.kind, read.seed) == ("synthetic", 4000, "uniform", 7)
    for key in ("index", "given", "true"):
        assert torch.equal(getattr(read, key), data.corrupted[key])
    assert json.loads((tmp_path / "labels.json").read_text())["index"] == data.corrupted["index"].tolist()
    assert [path.name for path in tmp_path.iterdir()] == ["labels.json"]


def test_a_failed_write_leaves_the_old_file(clean: ImageData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "labels.json"
    save_indices(corrupt(clean, 5, seed=0), path)
    old = path.read_text()

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space left"):
        save_indices(corrupt(clean, 5, seed=1), path)
    assert path.read_text() == old
    assert [path.name for path in tmp_path.iterdir()] == ["labels.json"]


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"data": 1}'])
def test_another_file_is_named_as_such(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match="not a file of random labels"):
        read_indices(tmp_path / "x.json")


def test_a_damaged_file_is_named_as_such(clean: ImageData, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    save_indices(corrupt(clean, 5, seed=0), path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"true": content["true"][1:]}))
    with pytest.raises(ValueError, match="differ in length"):
        read_indices(path)
