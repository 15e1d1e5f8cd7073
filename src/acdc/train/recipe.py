"""How to train, apart from the sparsity: the same for a dense baseline and for the method compared with it."""

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """SGD with Nesterov momentum; weight decay on all parameters, as in the paper."""

    epochs: int = 40
    batch_size: int = 64
    lr: float = 0.1
    warmup_epochs: int = 2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 0


def learning_rate(recipe: Recipe, epoch: int) -> float:
    """Constant within an epoch: linear warm-up lr·(e+1)/w for e < w, then ½·lr·(1 + cos π(e−w)/(E−w)).

    A pure function of the epoch, so that training on from any epoch is passing a number.
    """
    warmup = min(recipe.warmup_epochs, recipe.epochs - 1)
    if epoch < warmup:
        return recipe.lr * (epoch + 1) / warmup
    return recipe.lr * (1 + math.cos(math.pi * (epoch - warmup) / (recipe.epochs - warmup))) / 2


def make_optimizer(recipe: Recipe, model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(
        model.parameters(),
        lr=recipe.lr,
        momentum=recipe.momentum,
        nesterov=recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )
