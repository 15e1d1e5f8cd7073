"""The digits: sizes, a stratified split that stays put, and a clear word where scikit-learn is missing."""

import builtins
import sys

import pytest
import torch

from acdc.data.digits import CLASSES, TEST, TRAIN, load_digits


def test_sizes_and_types() -> None:
    data = load_digits()
    assert data.images.shape == (TRAIN, 1, 8, 8)
    assert data.test_images.shape == (TEST, 1, 8, 8)
    assert (len(data.labels), len(data.test_labels), TRAIN + TEST) == (1397, 400, 1797)
    assert (data.images.dtype, data.labels.dtype) == (torch.float32, torch.int64)


def test_every_class_has_its_share_of_the_test_set() -> None:
    data = load_digits()
    train, test = (labels.bincount(minlength=CLASSES) for labels in (data.labels, data.test_labels))
    assert ((train + test) * TEST / (TRAIN + TEST) - test).abs().max() <= 1


def test_the_two_parts_are_the_whole_and_labels_belong_to_their_images() -> None:
    from sklearn.datasets import load_digits as read

    pixels, classes = read(return_X_y=True)
    whole = {(tuple(image), label) for image, label in zip(pixels.astype(int).tolist(), classes.tolist(), strict=True)}
    data = load_digits()
    images, labels = torch.cat([data.images, data.test_images]).flatten(1), torch.cat([data.labels, data.test_labels])
    blank = images.min()  # pixel value 0; the largest is 16
    counts = ((images - blank) * 16 / (images.max() - blank)).round().int()
    found = [(tuple(image), label) for image, label in zip(counts.tolist(), labels.tolist(), strict=True)]
    assert len(found) == len(whole)
    assert set(found) == whole


def test_training_images_are_standardised() -> None:
    images = load_digits().images
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std().item() == pytest.approx(1, abs=1e-5)


def test_the_split_is_a_function_of_its_seed() -> None:
    first, again, other = load_digits(), load_digits(), load_digits(split_seed=1)
    assert torch.equal(first.test_images, again.test_images)
    assert not torch.equal(first.test_labels, other.test_labels)


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
