"""Evaluation of a model on images, and recalibration of its batch-norm statistics."""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from acdc.data.images import Batches, full_share, full_size_epoch
from acdc.recipes.schema import Recipe
from acdc.train.distributed import World, skipped_images
from acdc.train.execution import Setting, without_kernel_search
from acdc.train.precision import autocast

log = logging.getLogger("acdc")


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float
    samples: int
    precision: str  # that it was computed in: the recipe's, or fp32 if fp16 overflows


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Batches,
    recipe: Recipe,
    setting: Setting,
    logits_to: list[Tensor] | None = None,
    *,
    fast: Any = None,
) -> Score:
    """Evaluate a model on all images, in evaluation mode and the precision of training; ranks share the work.

    Raises Stopped if asked to stop meanwhile; several ranks evaluate to the end, where they wait for one another.

    `fast` is the compiled model, for full batches: any other size would be compiled again. fp16 ends at 65,504, and
    after a few steps batch norm's running statistics can be so far off that a sound model exceeds it: then fp32
    decides.
    """
    training = model.training
    model.eval()
    score = _score(model, fast, batches, recipe.train.precision, setting, logits_to)
    if score.precision == "fp16" and not math.isfinite(score.loss):
        if logits_to is not None:
            logits_to.clear()
        with without_kernel_search():
            score = _score(model, None, batches, "fp32", setting, logits_to)
        if math.isfinite(score.loss) and setting.world.first and not setting.said_overflow:
            setting.said_overflow = True
            log.warning(
                "evaluation overflowed in fp16 but is finite in fp32, so it was repeated in fp32, as others will be "
                "(batch norm's statistics are often far off after only a few steps)"
            )
    skipped_images(batches, setting.world)
    model.train(training)
    return score


def _score(
    model: nn.Module, fast: Any, batches: Batches, precision: str, setting: Setting, logits_to: list[Tensor] | None
) -> Score:
    world = setting.world
    full = full_share(batches, world.rank, world.size)
    sums = torch.zeros(3, dtype=torch.float64, device=setting.device)
    for images, labels in batches.batches(0):
        setting.stop_if_asked()
        whole = len(labels) == full
        run = fast if fast is not None and whole else model
        with autocast(precision, setting.device), nullcontext() if whole else without_kernel_search():
            logits = run(images)
        if logits_to is not None:
            logits_to.append(logits.float())
        known = labels >= 0  # an unreadable image has no label
        loss = F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="sum")
        sums += torch.stack((loss, ((logits.argmax(1) == labels) & known).sum(), known.sum())).double()
    loss, correct, count = world.sum(sums).tolist()
    return Score(correct / max(1, count), loss / max(1, count), round(count), precision)


# Batch-norm statistics


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Batches, *, precision: str, setting: Setting) -> None:
    """Recompute batch-norm statistics, in place, over one epoch of training batches, augmented as in training.

    The running averages that training leaves cover only the last batches, weighted by their momentum; the published
    WRN-28-10 has momentum .9 in its last batch norm, so that its statistics there are those of one or two batches, and
    its test accuracy moves by tenths of a point between epochs that hardly change a weight. Here every batch counts
    equally. And if dropout precedes a batch norm, training's averages are of activations more spread out than in
    evaluation; here dropout is off, as in evaluation, as is everything else that training mode changes.

    Every rank takes its share of each batch, as in training, and all end with the mean over all shares. A request to
    stop interrupts it, as it does an evaluation.
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
        for images, _ in batches.batches(full_size_epoch(batches)):
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
        _mean_over_ranks(module, setting.world)


def norms_of(model: nn.Module) -> list[Any]:
    """Return the batch norms that keep statistics, in the model's order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


def _mean_over_ranks(norm: Any, world: World) -> None:
    """Average statistics over ranks, weighted by the number of batches each has seen."""
    if world.size > 1:
        batches = norm.num_batches_tracked.clone()
        total = world.sum(norm.num_batches_tracked)
        for mean in (norm.running_mean, norm.running_var):
            world.sum(mean.mul_(batches / total))
