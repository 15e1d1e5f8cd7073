"""What is not a finite number ends a run, and no checkpoint holds it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.sparsifier import Sparsifier


class DivergedError(ArithmeticError):
    """The loss, a weight, a running statistic or what an optimizer keeps is no longer a finite number."""


def not_finite(model: nn.Module, optimizer: Optimizer, sparsifier: Sparsifier | None) -> tuple[str, str] | None:
    """What is not, of all that the next step reads, in words; and the name of the first. The device is asked once."""
    read = [
        (kind, name, tensor.detach())
        for kind, named in (
            ("weights", model.named_parameters()),
            ("running statistics", model.named_buffers()),
            ("weights behind the model's", sparsifier.context.weights.items() if sparsifier else ()),
            ("optimizer states", _states(model, optimizer)),
        )
        for name, tensor in named
        if tensor.is_floating_point()
    ]
    finite = torch.stack([tensor.isfinite().all() for *_, tensor in read]).tolist()
    return next(((kind, name) for (kind, name, _), fine in zip(read, finite, strict=True) if not fine), None)


def _states(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Not counts of steps, which may lie on the host."""
    for name, param in model.named_parameters():
        for key, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor) and value.device == param.device:
                yield f"{key} of {name}", value
