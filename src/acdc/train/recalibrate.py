"""Batch-norm statistics taken anew over the training images, for a model whose weights are done.

The running averages that training leaves are of the last batches only, weighted by their momentum; the published
WRN-28-10 has momentum .9 in its last batch norm, so that its statistics there are those of one batch or two, and its
test accuracy moves by tenths of a point between epochs that hardly change a weight. Here every batch counts the same.
And where dropout stands before a batch norm, training's averages are of activations more spread out than evaluation's;
here dropout is off, as in evaluation.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from acdc.data.images import Batches
from acdc.train.distributed import World
from acdc.train.setting import Setting
from acdc.train.step import autocast


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Batches, *, precision: str, setting: Setting) -> None:
    """In place, over one epoch of training batches, augmented as in training. Nothing else is in training mode.

    Every rank takes its share of each batch, as in training, and all end with the mean over all shares. A stop breaks
    it off, as an evaluation.
    """
    norms = norms_of(model)
    before = [(module.momentum, getattr(module, "splits", 1)) for module in norms]
    training = model.training
    model.eval()
    for module in norms:
        module.reset_running_stats()
        module.train()
        module.momentum = None  # a plain mean over batches
        if hasattr(module, "splits"):
            module.splits = 1
    try:
        for images, _ in batches.batches(0):
            setting.stop_if_asked()
            with autocast(precision, setting.device):
                model(images)
    finally:
        for module, (momentum, splits) in zip(norms, before, strict=True):
            module.momentum = momentum
            if hasattr(module, "splits"):
                module.splits = splits
        model.train(training)
    for module in norms:
        _average(module, setting.world)


def norms_of(model: nn.Module) -> list[Any]:
    """The batch norms that keep statistics, in the model's order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


def _average(norm: Any, world: World) -> None:
    """Over ranks, each as much as it has seen batches."""
    if world.size > 1:
        seen = norm.num_batches_tracked.clone()
        total = world.sum(norm.num_batches_tracked)
        for mean in (norm.running_mean, norm.running_var):
            world.sum(mean.mul_(seen / total))
