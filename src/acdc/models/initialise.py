"""Initial weights that depend on a seed alone, and the checks that models share.

"he" draws all weights as He et al. 2015 do. "published" is what the published code of AC/DC does: for ResNets He's
weights in convolutions and torch's own in the last linear layer, for MobileNet torch's own in all layers.
"""

import math
from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from acdc.errors import ArgumentError

Init = Literal["he", "published"]


def initialise(model: nn.Module, seed: int | None, *, linear_as_torch: bool = False) -> None:
    """Draw weights as in He et al. 2015: normal, with variance 2 / fan-out, and 1 / fan-in in the last linear layer.

    An input of a grouped convolution meets only the outputs of its own group: only those count as its fan-out. With
    `linear_as_torch` linear layers are as torch draws them.
    """
    generator = generator_of(seed)
    for module in model.modules():
        if isinstance(module, nn.Linear) and linear_as_torch:
            _draw_as_torch(module, generator)
            continue
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


def initialise_as_torch(model: nn.Module, seed: int | None) -> None:
    """Draw the weights that torch.manual_seed(seed) would give: uniform within ± 1 / sqrt(fan-in), biases too."""
    generator = generator_of(seed)
    if generator is None:  # torch's constructors have drawn them already
        return
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            _draw_as_torch(module, generator)


def _draw_as_torch(module: nn.Conv2d | nn.Linear, generator: torch.Generator | None) -> None:
    bound = 1 / math.sqrt(module.weight[0].numel())

    def draw(param: Tensor) -> Tensor:
        return param.uniform_(-bound, bound, generator=generator)

    fill(module.weight, draw)
    if module.bias is not None:
        fill(module.bias, draw)


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


def check_init(init: str) -> None:
    """Raise unless this is a known way to draw initial weights."""
    if init not in get_args(Init):
        allowed = "expected 'he' (He et al.'s weights) or 'published' (as in the published code of AC/DC)"
        raise ArgumentError("init", received=init, allowed=allowed, instead="write init='published'")
