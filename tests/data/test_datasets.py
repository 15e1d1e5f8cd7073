"""A user's own Datasets, loaded whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from acdc import data
from acdc.data import datasets
from acdc.data.images import ImageData, InMemory
from acdc.errors import ArgumentError

PIXELS = torch.randint(256, (12, 2, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 4


class Items(Dataset):
    classes: list[str] | None = None

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., ImageData]:
    def load(result: Any, **options: Any) -> ImageData:
        (tmp_path / "own_data.py").write_text("def make(root, part=0):\n    return result(root, part)\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr("own_data.result", lambda root, part: result, raising=False)
        return data.load("own_data:make", root=tmp_path, **options)

    return load


def test_images_of_bytes_are_normalised_by_the_training_images(load) -> None:
    loaded = load((TensorDataset(PIXELS[:8], LABELS[:8]), TensorDataset(PIXELS[8:], LABELS[8:])))
    assert (loaded.name, loaded.classes, loaded.shape) == ("own_data:make", 4, (2, 4, 6))
    assert torch.equal(loaded.train.pixels, PIXELS[:8])
    assert torch.equal(loaded.test.labels, LABELS[8:])
    images = torch.cat([images for images, _ in InMemory(loaded.train, loaded, batch_size=3).batches(0)])
    assert images.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0, 0], abs=1e-5)
    assert images.std(dim=(0, 2, 3), correction=0).tolist() == pytest.approx([1, 1], abs=1e-5)


def test_images_of_floats_are_taken_as_they_are(load) -> None:
    given = torch.randn(6, 1, 3, 3, dtype=torch.float64)
    loaded = load((TensorDataset(given[:4], LABELS[:4]), TensorDataset(given[4:], LABELS[4:6])))
    images = torch.cat([images for images, _ in InMemory(loaded.train, loaded, batch_size=4).batches(0)])
    assert torch.equal(images, given[:4].float())


def test_classes_are_counted_or_named(load) -> None:
    train, test = Items((PIXELS[0], 0), (PIXELS[1], 2)), Items((PIXELS[2], torch.tensor(1)))
    assert load((train, test)).classes == 3
    train.classes = ["a", "b", "c", "d", "e"]
    assert load([train, test]).classes == 5


def test_one_colour_is_no_division_by_zero(load) -> None:
    black = Items((torch.zeros(1, 2, 2, dtype=torch.uint8), 0))
    assert load((black, black)).std[0] > 0


GOOD = (PIXELS[0], 1)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (3, "expected two Datasets, but it returns a value of type int"),
        ((1, 2, 3), "expected two Datasets, but it returns 3 values"),
        ((iter([]), Items(GOOD)), "train is a value of type list_iterator: it needs a length and items by index"),
        ((Items(GOOD), Items()), "test is empty"),
        ((Items(PIXELS[0]), Items(GOOD)), "item 0 of train is a uint8 tensor of 2 x 4 x 6; expected (image, label)"),
        ((Items(("a", 1)), Items(GOOD)), "image 0 of train is a value of type str; expected a tensor of channels x"),
        ((Items((PIXELS[0][0], 1)), Items(GOOD)), "image 0 of train is a uint8 tensor of 4 x 6; expected"),
        ((Items((PIXELS[0].long(), 1)), Items(GOOD)), "image 0 of train is a int64 tensor of 2 x 4 x 6; expected"),
        ((Items(GOOD, (PIXELS[0], -1)), Items(GOOD)), "label 1 of train is -1; expected a whole number from 0"),
        ((Items(GOOD, (PIXELS[0], 1.5)), Items(GOOD)), "label 1 of train is 1.5; expected a whole number from 0"),
        ((Items(GOOD), Items(GOOD, (PIXELS[0][:, :2], 1))), "image 1 of test is a uint8 tensor of 2 x 2 x 6, but the"),
        ((Items(GOOD), Items((PIXELS[0].float(), 1))), "image 0 of test is a float32 tensor of 2 x 4 x 6, but the"),
    ],
)
def test_what_is_not_two_datasets_is_refused(load, result: Any, why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        load(result)
    assert (caught.value.argument, caught.value.received) == ("name", "own_data:make")
    assert caught.value.allowed.startswith(why)
    assert caught.value.instead


def test_more_than_fits_into_memory_is_refused(load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "free_memory", lambda: 2 * 2 * 48 - 1)
    with pytest.raises(ArgumentError, match=r"its 2 images of 2 x 4 x 6 need .* GiB.*set data\.name = \"folder\""):
        load((Items(GOOD), Items(GOOD)))
    monkeypatch.setattr(datasets, "free_memory", lambda: 2 * 2 * 48)
    assert len(load((Items(GOOD), Items(GOOD))).train) == 1


def test_options_are_the_function_s(load) -> None:
    load((Items(GOOD), Items(GOOD)), part=3)
    with pytest.raises(ArgumentError, match=r"prat=3: own_data:make takes part; did you mean part\?"):
        load((Items(GOOD), Items(GOOD)), prat=3)
