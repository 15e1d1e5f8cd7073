"""Initial weights that depend on a seed alone, and the size check that models share."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from acdc.errors import ArgumentError


def initialise(model: nn.Module, seed: int | None) -> None:
    """Draw weights as in He et al. 2015: normal, with variance 2 / fan-out, and 1 / fan-in in the last linear layer.

    An input of a grouped convolution meets only the outputs of its own group: only those count as its fan-out.
    """
    generator = generator_of(seed)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels // module.groups * math.prod(module.kernel_size)
            std = math.sqrt(2) / math.sqrt(fan_out)
        elif isinstance(module, nn.Linear):
            std = 1 / math.sqrt(module.in_features)
        else:
            continue
        fill(module.weight, lambda weight, std=std: weight.normal_(0, std, generator=generator))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def generator_of(seed: int | None) -> torch.Generator | None:
    """Return a generator with this seed, or None for torch's global one."""
    return None if seed is None else torch.Generator("cpu").manual_seed(seed)


@torch.no_grad()
def fill(param: Tensor, draw: Callable[[Tensor], Tensor]) -> None:
    """Draw on the CPU, whatever the parameter's device, so that a seed gives the same weights everywhere."""
    if not param.is_meta:
        param.copy_(draw(torch.empty(param.shape, dtype=param.dtype, device="cpu")))


def check_counts(**counts: int) -> None:
    """Raise unless each count is above 0."""
    for argument, count in counts.items():
        if count < 1:
            raise ArgumentError(
                argument,
                received=count,
                allowed="expected a whole number above 0",
                instead=f"write {argument}=1 or more",
            )
