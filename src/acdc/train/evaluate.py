"""Evaluates a model on images, and takes its batch-norm statistics anew."""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from acdc.data.images import Batches, full_share
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
    precision: str  # it was computed in: the recipe's, or fp32 where fp16 overflows


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
    """Over all images, in evaluation mode, and in the precision of training; ranks share the work.

    Raises Stopped if asked to stop meanwhile; several ranks evaluate to the end, as they wait for one another there.

    `fast` is the model compiled, for full batches: any other size would be compiled anew. fp16 ends at 65,504, and
    after few steps batch norm's running statistics can be so far off that a sound model passes it: fp32 decides.
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
                "evaluation overflows fp16 and is finite in fp32: it was done again in fp32, as any other like it will "
                "be (batch norm's statistics are often far off after few steps)"
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
    """Take batch-norm statistics anew, in place, over one epoch of training batches, augmented as in training.

    The running averages that training leaves are of the last batches only, weighted by their momentum; the published
    WRN-28-10 has momentum .9 in its last batch norm, so that its statistics there are those of one batch or two, and
    its test accuracy moves by tenths of a point between epochs that hardly change a weight. Here every batch counts the
    same. And where dropout stands before a batch norm, training's averages are of activations more spread out than
    evaluation's; here dropout is off, as in evaluation, as is all else that training mode changes.

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
        _mean_over_ranks(module, setting.world)


def norms_of(model: nn.Module) -> list[Any]:
    """The batch norms that keep statistics, in the model's order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats]


def _mean_over_ranks(norm: Any, world: World) -> None:
    """Over ranks, each as much as it has seen batches."""
    if world.size > 1:
        seen = norm.num_batches_tracked.clone()
        total = world.sum(norm.num_batches_tracked)
        for mean in (norm.running_mean, norm.running_var):
            world.sum(mean.mul_(seen / total))
