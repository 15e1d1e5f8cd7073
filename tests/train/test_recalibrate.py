"""Batch-norm statistics over the whole training set."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from acdc.data.image_sizes import ImageSizes
from acdc.models.norm import SplitBatchNorm2d
from acdc.train.evaluate import recalibrate
from acdc.train.execution import Setting
from acdc.train.stopping import Stopped, StopRequest
from tests.train.problems import EAGER, MadeBatches

SETTING = Setting(device=torch.device("cpu"), execution=EAGER, checkpoints=Path())


class Batches(MadeBatches):
    samples, batch_size, steps = 30, 10, 3

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(30, 2, 4, 4, generator=generator) * 3 + 1

    def batches(self, epoch: int, first: int = 0):
        for part in self.images.split(10):
            yield part, torch.zeros(len(part), dtype=torch.int64)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d(2, momentum=0.9), SplitBatchNorm2d(2, splits=2, momentum=0.9)])
def test_every_batch_counts_the_same(norm: nn.BatchNorm2d) -> None:
    model = nn.Sequential(nn.Dropout(0.9), norm)
    model.train()
    data = Batches()
    recalibrate(model, data, precision="fp32", setting=SETTING)
    torch.testing.assert_close(norm.running_mean, data.images.mean((0, 2, 3)))
    unbiased = torch.stack([part.var((0, 2, 3)) for part in data.images.split(10)]).mean(0)
    torch.testing.assert_close(norm.running_var, unbiased)
    assert norm.momentum == 0.9
    assert norm.num_batches_tracked == 3
    assert getattr(norm, "splits", 2) == 2
    assert model.training
    assert model[0].training


def test_a_stop_breaks_it_off() -> None:
    model, asked = nn.Sequential(nn.BatchNorm2d(2)), StopRequest()
    asked.signum = 15
    with pytest.raises(Stopped):
        recalibrate(model, Batches(), precision="fp32", setting=replace(SETTING, stop=asked))
    assert model[0].num_batches_tracked == 0
    assert model[0].momentum == 0.1


def test_images_that_grow_are_seen_at_full_size() -> None:
    epochs = []

    class Growing(Batches):
        sizes = ImageSizes(first=2, full=4, step=1, end=3)

        def batches(self, epoch: int, first: int = 0):
            epochs.append(epoch)
            return super().batches(epoch, first)

    recalibrate(nn.Sequential(nn.BatchNorm2d(2)), Growing(), precision="fp32", setting=SETTING)
    assert epochs == [3]


def test_weights_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
    before = [param.clone() for param in model.parameters()]
    model.eval()
    recalibrate(model, Batches(), precision="bf16", setting=SETTING)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not any(module.training for module in model.modules())
