"""What becomes of random labels: shares by hand, and views as in training."""

from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from acdc.data.images import ImageData, Images, hold_out
from acdc.data.random_labels import Kind, corrupt
from acdc.measure.memorization import Memorization


def data(count: int = 40) -> ImageData:
    """Every image is of one brightness, and that is its number."""
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4).contiguous()
    images = Images(pixels, torch.arange(count) % 5)
    return ImageData(name="grey", classes=5, train=images, test=images, mean=(0.0,), std=(1.0,), scale=1.0)


class Says(nn.Module):
    """Answers by a table over image numbers, read from the middle of the image."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table, self.bn = nn.functional.one_hot(table, 5).float(), nn.BatchNorm1d(1)
        self.views: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        assert not self.training
        self.views.append(images)
        return self.table[images[:, 0, 2, 2].round().long()]


def spoiled(kind: Kind = "always-wrong", count: int = 10) -> ImageData:
    return corrupt(data(), count, seed=1, kind=kind)


def table_of(found: ImageData, memorised: int, true: int) -> Tensor:
    """The first samples as the random label says, the next as the truth, the rest as neither."""
    index, given, real = (found.corrupted[key] for key in ("index", "given", "true"))
    table = torch.zeros(40, dtype=torch.int64)
    for place, (sample, wrong, right) in enumerate(zip(index, given, real, strict=True)):
        neither = next(label for label in range(5) if label not in (wrong, right))
        table[sample] = wrong if place < memorised else right if place < memorised + true else neither
    return table


def test_shares_by_hand() -> None:
    found = spoiled()
    shares = Memorization(found).measure(Says(table_of(found, 5, 3)))
    assert shares == {"memorised": 0.5, "true": 0.3, "other": pytest.approx(0.2)}


def test_random_labels_that_are_true_are_left_out() -> None:
    found = spoiled("uniform", 40)
    same = int((found.corrupted["given"] == found.corrupted["true"]).sum())
    assert same
    looked = Memorization(found)
    assert looked.samples == 40 - same
    table = torch.zeros(40, dtype=torch.int64).scatter(0, found.corrupted["index"], found.corrupted["given"])
    assert looked.measure(Says(table)) == {"memorised": 1, "true": 0, "other": 0}


def test_samples_set_aside_for_validation_are_not_looked_at() -> None:
    assert Memorization(hold_out(spoiled(count=30), 10)).samples < 30


def test_augmented_views_where_training_augments() -> None:
    found = spoiled()
    model = Says(table_of(found, 5, 3))
    looked = Memorization(found, crop=1, flip=True, seed=3)
    shares = looked.measure(model, epoch=7)
    assert list(shares) == ["memorised", "true", "other", "memorised_augmented", "true_augmented", "other_augmented"]
    assert [shares[f"{key}_augmented"] for key in ("memorised", "true")] == [0.5, 0.3]
    plain, augmented = model.views
    assert (plain == plain[:, :, :1, :1]).all(), "whole images"
    assert not (augmented == augmented[:, :, 2:3, 2:3]).all(), "moved, with black at an edge"
    for epoch, same in ((7, True), (8, False)):
        looked.measure(model, epoch=epoch)
        assert torch.equal(model.views[-1], augmented) == same


def test_it_leaves_the_model_and_random_numbers_as_they_were() -> None:
    found = spoiled()
    model = Says(table_of(found, 5, 3)).train()
    model.bn.eval()
    random, entered = torch.get_rng_state(), []

    @contextmanager
    def noted():
        entered.append(True)
        yield

    Memorization(found, flip=True).measure(model, autocast=noted)
    assert (model.training, model.bn.training) == (True, False)
    assert torch.equal(torch.get_rng_state(), random)
    assert entered == [True, True]


def test_the_device_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.measure.test_dynamics import counting_reads

    found = spoiled()
    looked, model = Memorization(found, crop=1), Says(table_of(found, 5, 3))
    with counting_reads(monkeypatch) as reads:
        looked.measure(model)
    assert reads == ["tolist"]


def test_data_without_random_labels_is_refused() -> None:
    with pytest.raises(ValueError, match=r"data=grey: it has no random labels, .*; set data.corrupt"):
        Memorization(data())
