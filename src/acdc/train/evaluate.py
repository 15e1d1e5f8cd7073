"""How well a model does on images it was not trained on."""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.data.images import Batches, full_share
from acdc.recipes.schema import Recipe
from acdc.train.setting import Setting
from acdc.train.skipped import skipped
from acdc.train.step import autocast, without_kernel_search

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
    skipped(batches, setting.world)
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
