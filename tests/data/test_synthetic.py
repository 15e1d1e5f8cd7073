"""Made images: any shape, the same for the same seed, and classes that can be told apart; and data sets by name."""

import subprocess
import sys

import pytest
import torch

from acdc.data import describe, find_root, load, names
from acdc.data.images import ImageData, InMemory
from acdc.data.synthetic import load_synthetic


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (4, 5, 7), (2, 1, 1)])
def test_shapes_types_and_balance(shape: tuple[int, int, int]) -> None:
    data = load_synthetic(classes=7, shape=shape, train=30, test=15)
    assert (data.shape, data.classes, len(data.train), len(data.test)) == (shape, 7, 30, 15)
    assert (data.train.pixels.dtype, data.train.labels.dtype) == (torch.uint8, torch.int64)
    assert data.train.pixels.shape == (30, *shape)
    counts = data.train.labels.bincount(minlength=7)
    assert counts.max() - counts.min() <= 1


def test_normalised_by_its_mean_and_deviation() -> None:
    data = load_synthetic(train=2000, test=1)
    ((images, _),) = InMemory(data.train, data, batch_size=2000).batches(0)
    assert images.mean((0, 2, 3)).abs().max() < 0.1
    assert (images.std((0, 2, 3)) - 1).abs().max() < 0.1


def test_a_function_of_its_seed_and_of_nothing_else() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = load_synthetic(train=20, test=20)
    assert torch.equal(torch.get_rng_state(), before)
    again, other = load_synthetic(train=20, test=20), load_synthetic(train=20, test=20, seed=1)
    assert torch.equal(first.train.pixels, again.train.pixels)
    assert torch.equal(first.test.pixels, again.test.pixels)
    assert not torch.equal(first.train.pixels, other.train.pixels)
    assert not torch.equal(first.train.pixels, first.test.pixels)


def accuracy_of_nearest_mean(data: ImageData) -> float:
    """Of the classifier that takes the class whose mean training image is nearest."""
    train, test = (part.pixels.flatten(1).float() for part in (data.train, data.test))
    means = torch.stack([train[data.train.labels == label].mean(0) for label in range(data.classes)])
    return (torch.cdist(test, means).argmin(1) == data.test.labels).float().mean().item()


@pytest.mark.parametrize(("shape", "least"), [((3, 32, 32), 0.99), ((1, 8, 8), 0.5)])
def test_it_can_be_learnt(shape: tuple[int, int, int], least: float) -> None:
    assert accuracy_of_nearest_mean(load_synthetic(shape=shape)) > least


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"classes = 0, test = 1.5, shape = \(3, 32\): .* as in load_synthetic"):
        load_synthetic(classes=0, test=1.5, shape=(3, 32))  # pyright: ignore[reportArgumentType]


# By name


def test_load_passes_options_on() -> None:
    data = load("synthetic", classes=3, shape=[1, 4, 4], train=6, test=3)
    assert (data.classes, data.shape, len(data.train), len(data.test)) == (3, (1, 4, 4), 6, 3)
    assert load("digits", root="ignored").name == "digits"


def test_every_name_is_described() -> None:
    assert names()[:6] == ("digits", "cifar10", "cifar100", "synthetic", "imagenet", "folder")
    assert names()[6:] == ("text", "wikitext2", "wikitext103")
    kinds = {name: describe(name).kind for name in names()}
    assert kinds == {
        **dict.fromkeys(names()[:4], "memory"),
        **dict.fromkeys(names()[4:6], "folder"),
        **dict.fromkeys(names()[6:], "text"),
    }
    assert all(describe(name).summary for name in names())


@pytest.mark.parametrize(
    ("name", "guess"),
    [("CIFAR-10", "cifar10"), ("cifar_100", "cifar100"), ("digit", "digits"), ("ImageNet", "imagenet")],
)
def test_an_unknown_name_gets_a_guess(name: str, guess: str) -> None:
    with pytest.raises(ValueError, match=f"name='{name}': expected one of digits, .*did you mean {guess}[?]"):
        load(name)


def test_a_name_unlike_all_gets_the_list_alone() -> None:
    with pytest.raises(ValueError, match=r"expected one of digits, .*103, or an import path such as 'mypkg\.\S+$"):
        load("audio")


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="size=3: synthetic takes classes, shape, train, test, seed; remove"):
        load("synthetic", size=3)
    with pytest.raises(ValueError, match="split=3: cifar10 takes no options; remove split"):
        load("cifar10", split=3)


def test_a_folder_of_images_is_not_loaded_whole() -> None:
    with pytest.raises(ValueError, match=r"use acdc\.data\.image_folder"):
        load("imagenet")


def test_root_is_argument_then_environment_then_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACDC_DATA", raising=False)
    assert str(find_root()) == "data"
    monkeypatch.setenv("ACDC_DATA", "")
    assert str(find_root()) == "data"
    monkeypatch.setenv("ACDC_DATA", "/there")
    assert str(find_root()) == "/there"
    assert str(find_root("here")) == "here"


def test_the_table_loads_no_data_set() -> None:
    code = "import sys, acdc.data; acdc.data.names(); print(*(name for name in sys.modules if 'acdc.data.' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
