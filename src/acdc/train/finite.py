"""What is not a finite number ends a run, and no checkpoint holds it."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class DivergedError(ArithmeticError):
    """The loss, a weight or a running statistic is no longer a finite number."""


def not_finite(model: nn.Module) -> tuple[str, str] | None:
    """What of a model is not, in words, and the name of the first."""
    for kind, named in (("weights", model.named_parameters()), ("running statistics", model.named_buffers())):
        if name := _first(named):
            return kind, name
    return None


def _first(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The device is asked once, for all."""
    floating = {name: tensor.detach() for name, tensor in named if tensor.is_floating_point()}
    if not floating:
        return None
    finite = torch.stack([tensor.isfinite().all() for tensor in floating.values()]).tolist()
    return next((name for name, fine in zip(floating, finite, strict=True) if not fine), None)
