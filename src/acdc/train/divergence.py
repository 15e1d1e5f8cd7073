"""Aborts a run on NaN or Inf, and never lets a checkpoint hold it."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.sparsifier import Sparsifier
from acdc.train.optim import Rates
from acdc.train.precision import Scaler
from acdc.train.step import Totals

_LOWEST_SCALE = 1e-6  # of fp16's losses: below it every step overflows


class DivergedError(ArithmeticError):
    """The loss, a weight, a running statistic or what an optimizer keeps is no longer a finite number."""


def not_finite(model: nn.Module, optimizer: Optimizer, sparsifier: Sparsifier | None) -> tuple[str, str] | None:
    """Return what is not finite of all that the next step reads, in words, and its name. The device is asked once."""
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
    """Yield what the optimizer keeps, but for counts of steps, which may lie on the host."""
    for name, param in model.named_parameters():
        for key, value in optimizer.state.get(param, {}).items():
            if isinstance(value, Tensor) and value.device == param.device:
                yield f"{key} of {name}", value


def describe(
    stage: str,
    *,
    step: int,
    epoch: int,
    first_step: int,
    totals: Totals,
    rates: Rates,
    scaler: Scaler | None,
    model: nn.Module,
    optimizer: Optimizer,
    sparsifier: Sparsifier | None,
) -> tuple[int, str] | None:
    """Return what is not finite on this rank, in words, and after how many steps; None where all is.

    `first_step` is that of the epoch.
    """
    if scaler:  # which has skipped the steps whose loss was not
        scale = scaler.get_scale()
        if scale < _LOWEST_SCALE:
            return step, f"{stage}: fp16's loss scale fell to {scale:g}"
    else:
        alive, steps = totals.values[3:].tolist()
        if not alive:
            bad = first_step + round(steps)
            lr = f"with learning rate {rates.at(bad):g}"
            return bad, f"{stage}: the loss of step {bad} (epoch {epoch + 1}) is not finite, {lr}"
    if (wrong := not_finite(model, optimizer, sparsifier)) is None:
        return None
    kind, name = wrong
    return step, f"{stage}: {kind} of epoch {epoch + 1} are not finite ({name})"
