"""Evaluation of a model on images or text, and recalibration of its batch-norm statistics."""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.core.running_statistics import recompute
from acdc.data.images import Batches, full_share, full_size_epoch
from acdc.data.token_batches import Evaluation, Scored
from acdc.recipes.fit import has_memory
from acdc.recipes.schema import Recipe
from acdc.runs.records import TextScore
from acdc.train.distributed import skipped_images
from acdc.train.execution import Setting, without_kernel_search
from acdc.train.fsdp import whole_weights
from acdc.train.precision import autocast
from acdc.train.tasks import NextToken

log = logging.getLogger("acdc")
_LARGEST = 230.0  # a loss whose exponential, 8e99, records.py still reads as a number


@dataclass(frozen=True)
class Score:
    """The score of a model: on images its accuracy, on text how well it predicts each token."""

    accuracy: float | None
    loss: float
    samples: int  # images or tokens
    precision: str  # that it was computed in: the recipe's, or fp32 if fp16 overflows
    text: TextScore | None = None

    @property
    def goodness(self) -> float:
        """Return a number that is higher the better the model is: accuracy, or the negative loss."""
        return -self.loss if self.accuracy is None else self.accuracy


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
    """Evaluate a model on all images or tokens, in evaluation mode and the precision of training; ranks share the work.

    Raises Stopped if asked to stop meanwhile; several ranks evaluate to the end, where they wait for one another.

    `fast` is the compiled model, for full batches: any other size would be compiled again. fp16 ends at 65,504, and
    after a few steps batch norm's running statistics can be so far off that a sound model exceeds it: then fp32
    decides.
    """
    training = model.training
    model.eval()
    with whole_weights(model):
        score = _score(model, fast, batches, recipe.train.precision, setting, logits_to)
    if score.precision == "fp16" and not math.isfinite(score.loss):
        if logits_to is not None:
            logits_to.clear()
        with whole_weights(model), without_kernel_search():
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
    if isinstance(batches, Evaluation):
        return _score_text(model, fast, batches, precision, setting)
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


def _score_text(model: nn.Module, fast: Any, batches: Evaluation, precision: str, setting: Setting) -> Score:
    """Predict every token but the first. A model with a memory reads on from batch to batch, with its rows."""
    world, module = setting.world, NextToken(model)
    shape = (full_share(batches, world.rank, world.size), batches.length)
    sums = torch.zeros(2, dtype=torch.float64, device=setting.device)
    memory: Any = None
    start: Any = model.start_memory if has_memory(model) else None
    with batches.lengths(model):
        for number, (tokens, targets) in enumerate(batches.batches(0)):
            setting.stop_if_asked()
            if start and batches.restarts(0, number):
                memory = start(len(tokens))
            whole = tokens.shape == shape
            # A memory that still grows has other shapes, too, which are not worth compiling.
            run = fast if fast is not None and whole and not start else module
            with autocast(precision, setting.device), nullcontext() if whole else without_kernel_search():
                answer = run(tokens, targets, memory) if start else run(tokens, targets)
            loss, memory = answer if start else (answer, None)
            sums[0] += loss.double() * targets.numel()
            sums[1] += targets.numel()
    total, count = world.sum(sums).tolist()
    loss = total / max(1, count)
    return Score(None, loss, round(count), precision, text_score(loss, round(count), batches.scored))


def text_score(loss: float, tokens: int, scored: Scored) -> TextScore:
    """Return a loss per token in the units people compare: by tokens, by bytes and by words of the same text."""
    total = loss * tokens
    return TextScore(
        perplexity=perplexity(loss),
        tokens=tokens,
        bits_per_byte=total / math.log(2) / scored.bytes if scored.bytes and math.isfinite(total) else None,
        word_perplexity=perplexity(total / scored.words) if scored.words else None,
    )


def perplexity(loss: float) -> float:
    """Return exp(loss), or a number beyond any real one where that is too large for a record."""
    return math.exp(loss) if loss < _LARGEST else math.exp(_LARGEST)


# Batch-norm statistics


def recalibrate(model: nn.Module, batches: Batches, *, precision: str, setting: Setting) -> None:
    """Recompute batch-norm statistics, in place, over one epoch of training batches, augmented as in training.

    The published WRN-28-10 has momentum .9 in its last batch norm: what training leaves there are the statistics of one
    or two batches, and test accuracy moves by tenths of a point between epochs that hardly change a weight.

    Every rank takes its share of each batch, as in training, and all end with the mean over all shares. A request to
    stop interrupts it, as it does an evaluation.
    """

    def forward(batch: tuple[Tensor, Tensor]) -> None:
        setting.stop_if_asked()
        with autocast(precision, setting.device):
            model(batch[0])

    recompute(model, batches.batches(full_size_epoch(batches)), forward)
