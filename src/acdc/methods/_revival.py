"""Two helps for weights that come back: random weights for filters that lost all, and Adam's bias correction."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from acdc.core.context import MethodContext

_INITIAL_NORM = 3**-0.5  # of a filter as torch draws it first, where a layer has none left to go by


def bias_correction(group: Mapping[str, Any], own: int, all_steps: int) -> float:
    """Return what turns Adam's step after so many steps into that of a weight with only its own behind it.

    m̂ / √v̂ with the corrections 1 − β₁ᵗ and √(1 − β₂ᵗ) of t = `own` in place of `all_steps`; LAMB may have none.
    """
    if "betas" not in group:
        return 1.0
    first, second = group["betas"]
    ours = (1 - second**own) ** 0.5 / (1 - first**own)
    theirs = (1 - second**all_steps) ** 0.5 / (1 - first**all_steps) if group.get("bias_correction", True) else 1.0
    return ours / theirs


@torch.no_grad()
def revive(context: MethodContext, masks: Mapping[str, Tensor]) -> None:
    """Give filters that `masks` left nothing of random weights: a function of the step, so the same on all ranks."""
    generator = torch.Generator().manual_seed(context.step)
    for weight in context.layers.weights:
        filters = weight.param.movedim(weight.out_dim, 0)
        kept = masks[weight.name].movedim(weight.out_dim, 0).flatten(1).any(1)
        if kept.all():
            continue
        norms = filters[kept].flatten(1).float().norm(dim=1)
        norm = norms.median() if len(norms) else torch.tensor(_INITIAL_NORM)
        drawn = torch.randn(int((~kept).sum()), filters[0].numel(), generator=generator)
        drawn = (drawn / drawn.norm(dim=1, keepdim=True)).to(filters.device) * norm.to(filters.device)
        filters[~kept] = drawn.to(filters.dtype).view(-1, *filters.shape[1:])
