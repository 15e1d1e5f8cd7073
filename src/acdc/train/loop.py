"""The training loop, as plain as the one a user would write: nothing in it knows about sparsity but the log.

for row in train("acdc", model, optimizer, data, recipe, sparsifier=acdc.attach(model, optimizer, method, ...)):
    print(row)
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer

from acdc.data.digits import Split
from acdc.sparsifier import Sparsifier
from acdc.sparsity.layers import find_prunable
from acdc.train.recipe import Recipe, learning_rate


@dataclass(frozen=True, kw_only=True)
class Row:
    """One epoch of one run: a line of metrics.jsonl. Epochs count from 0; `step` is the number of steps run."""

    run: str
    epoch: int
    step: int
    phase: str
    kind: str
    loss: float  # training loss and accuracy: over the epoch's batches, each as it was when trained on
    train_accuracy: float
    test_accuracy: float  # after the epoch's last step
    sparsity: float  # zeros / prunable weights, after the epoch's last step
    lr: float
    seconds: float


class DivergedError(ArithmeticError):
    """The loss or a weight is no longer a finite number."""


def steps_per_epoch(data: Split, recipe: Recipe) -> int:
    return -(-len(data.labels) // recipe.batch_size)


def batches(data: Split, recipe: Recipe, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The training set once, in an order that depends on seed and epoch alone."""
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + epoch)
    order = torch.randperm(len(data.labels), generator=generator).to(data.labels.device)
    for chosen in order.split(recipe.batch_size):
        yield data.images[chosen], data.labels[chosen]


def train(
    run: str,
    model: nn.Module,
    optimizer: Optimizer,
    data: Split,
    recipe: Recipe,
    *,
    epochs: range | None = None,
    sparsifier: Sparsifier | None = None,
) -> Iterator[Row]:
    """Train, and give one row after each epoch. `epochs` takes a run up at a later epoch than its first."""
    for epoch in range(recipe.epochs) if epochs is None else epochs:
        start = time.perf_counter()
        lr = learning_rate(recipe, epoch)
        for group in optimizer.param_groups:
            group["lr"] = lr

        model.train()
        losses = correct = torch.zeros((), device=data.labels.device)
        for images, labels in batches(data, recipe, epoch):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses = losses + loss.detach() * len(labels)
            correct = correct + (logits.argmax(1) == labels).sum()

        mean_loss = losses.item() / len(data.labels)
        if not math.isfinite(mean_loss):
            raise DivergedError(f"{run}: the loss of epoch {epoch + 1} is {mean_loss}, with learning rate {lr:g}")
        if not all(bool(param.isfinite().all()) for param in model.parameters()):
            raise DivergedError(f"{run}: weights of epoch {epoch + 1} are not finite, with learning rate {lr:g}")
        # The next phase begins with the next training step, so this is still the model of the phase just trained.
        yield Row(
            run=run,
            epoch=epoch,
            step=(epoch + 1) * steps_per_epoch(data, recipe),
            phase=sparsifier.phase.name if sparsifier else "dense",
            kind=sparsifier.phase.kind if sparsifier else "dense",
            loss=mean_loss,
            train_accuracy=correct.item() / len(data.labels),
            test_accuracy=accuracy(model, data.test_images, data.test_labels),
            sparsity=sparsity(model),
            lr=lr,
            seconds=time.perf_counter() - start,
        )


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Share of images classified right, in evaluation mode."""
    model.eval()
    return (model(images).argmax(1) == labels).sum().item() / len(labels)


def sparsity(model: nn.Module) -> float:
    """Zeros / prunable weights of the whole model, also those a pattern leaves dense."""
    layers = find_prunable(model)
    return 1 - sum(int(weight.param.count_nonzero()) for weight in layers.weights) / layers.size
