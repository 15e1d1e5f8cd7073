"""The check for NaN and Inf, which abort a run and never enter a checkpoint."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.sparsifier import Sparsifier
from acdc.sparsity.layers import local_part
from acdc.train.optim import Rates
from acdc.train.precision import Scaler
from acdc.train.step import Totals

_LOWEST_SCALE = 1e-6  # fp16's loss scale: below it every step overflows


class DivergedError(ArithmeticError):
    """A loss, weight, running statistic or optimizer state that is no longer finite."""


def not_finite(model: nn.Module, optimizer: Optimizer, sparsifier: Sparsifier | None) -> tuple[str, str] | None:
    """Describe and name what is not finite among all that the next step reads, reading the device once."""
    read = [
        (kind, name, local_part(tensor.detach()))
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
    """Yield the optimizer's state, except step counts, which may be on the host."""
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
    """Describe what is not finite on this rank, with the number of steps; return None if everything is finite.

    `first_step` is that of the epoch.
    """
    if scaler:  # it has skipped the steps whose loss was not finite
        scale = scaler.get_scale()
        if scale < _LOWEST_SCALE:
            return step, f"{stage}: fp16's loss scale fell to {scale:g}"
    else:
        alive, steps = totals.values[3:].tolist()
        if not alive:
            bad = first_step + round(steps)
            lr = f"at learning rate {rates.at(bad):g}"
            return bad, f"{stage}: the loss of step {bad} (epoch {epoch + 1}) is not finite, {lr}"
    if (wrong := not_finite(model, optimizer, sparsifier)) is None:
        return None
    kind, name = wrong
    return step, f"{stage}: {kind} of epoch {epoch + 1} are not finite ({name})"
