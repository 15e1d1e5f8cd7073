"""The digits: sizes, a stratified split that stays put, and a clear word where scikit-learn is missing."""

import builtins
import sys

import pytest
import torch
from torch import Tensor

from acdc.data.digits import CLASSES, TEST, TRAIN, load_digits
from acdc.data.images import ImageData, Images, InMemory


def normalised(data: ImageData, part: Images) -> Tensor:
    ((images, _),) = InMemory(part, data, batch_size=len(part)).batches(0)
    return images


def test_sizes_and_types() -> None:
    data = load_digits()
    assert (len(data.train), len(data.test), TRAIN + TEST) == (1397, 400, 1797)
    assert (data.name, data.classes, data.shape) == ("digits", CLASSES, (1, 8, 8))
    assert (data.train.pixels.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
    assert (data.train.pixels.min(), data.train.pixels.max(), data.scale) == (0, 16, 16)


def test_every_class_has_its_share_of_the_test_set() -> None:
    data = load_digits()
    train, test = (part.labels.bincount(minlength=CLASSES) for part in (data.train, data.test))
    assert ((train + test) * TEST / (TRAIN + TEST) - test).abs().max() <= 1


def test_the_two_parts_are_the_whole_and_labels_belong_to_their_images() -> None:
    from sklearn.datasets import load_digits as read

    pixels, classes = read(return_X_y=True)
    whole = {(tuple(image), label) for image, label in zip(pixels.astype(int).tolist(), classes.tolist(), strict=True)}
    data = load_digits()
    images = torch.cat([data.train.pixels, data.test.pixels]).flatten(1)
    labels = torch.cat([data.train.labels, data.test.labels])
    found = [(tuple(image), label) for image, label in zip(images.tolist(), labels.tolist(), strict=True)]
    assert len(found) == len(whole)
    assert set(found) == whole


def test_training_images_are_standardised() -> None:
    data = load_digits()
    images = normalised(data, data.train)
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)


def test_test_images_are_standardised_by_the_training_images() -> None:
    data = load_digits()
    train, test = data.train.pixels.double(), data.test.pixels.double()
    expected = (test - train.mean()) / train.std()
    torch.testing.assert_close(normalised(data, data.test).double(), expected, rtol=1e-5, atol=1e-6)


def test_the_split_is_a_function_of_its_seed() -> None:
    first, again, other = load_digits(), load_digits(), load_digits(split_seed=1)
    assert torch.equal(first.test.pixels, again.test.pixels)
    assert not torch.equal(first.test.labels, other.test.labels)


def test_missing_scikit_learn_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "acdc-torch\[digits\]"'):
        load_digits()


def test_another_missing_module_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn that is there but broken says itself what it misses."""
    original = builtins.__import__

    def broken(name, *args, **kwargs):
        if name == "sklearn.datasets":
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(ModuleNotFoundError, match="scipy"):
        load_digits()
