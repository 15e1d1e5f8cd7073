"""How well a model does on images it was not trained on."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.data.images import Batches, share
from acdc.train.recipe import Recipe
from acdc.train.setting import Setting
from acdc.train.step import autocast


@dataclass(frozen=True)
class Score:
    accuracy: float
    loss: float
    samples: int


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

    `fast` is the model compiled, for full batches: any other size would be compiled anew.
    """
    training = model.training
    model.eval()
    full = share(0, min(batches.batch_size, batches.samples), setting.world.rank, setting.world.size)
    sums = torch.zeros(3, dtype=torch.float64, device=setting.device)
    for images, labels in batches.batches(0):
        run = model if fast is None or len(labels) != full.stop - full.start else fast
        with autocast(recipe.train.precision, setting.device):
            logits = run(images)
        if logits_to is not None:
            logits_to.append(logits.float())
        known = labels >= 0  # an unreadable image has no label
        loss = F.cross_entropy(logits.float(), labels, ignore_index=-1, reduction="sum")
        sums += torch.stack((loss, ((logits.argmax(1) == labels) & known).sum(), known.sum())).double()
    model.train(training)
    loss, correct, count = setting.world.sum(sums).tolist()
    return Score(correct / max(1, count), loss / max(1, count), round(count))
