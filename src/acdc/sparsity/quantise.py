"""Quantisation to b bits: weights on a uniform grid that is symmetric about 0.

The grid of a group (a layer, or one output channel of it) is Δ·{−L, …, 0, …, L} with L = 2^(b−1) − 1, so that b bits
number its 2L + 1 points, and Δ = max|θ| / L, so that the largest weight is on it. A weight goes to the nearest point.
What is on its grid stays there, but for the last bit.
"""

import torch
from torch import Tensor


def levels(bits: int) -> int:
    """L: points of the grid on each side of 0."""
    return 2 ** (bits - 1) - 1


@torch.no_grad()
def quantise(weight: Tensor, bits: int, dim: int | None = None) -> Tensor:
    """The nearest points of the grid of the whole tensor, or of each of its slices along `dim`."""
    delta = spacing(weight, bits, dim)
    return torch.round(weight / delta).clamp_(-levels(bits), levels(bits)).mul_(delta)


def spacing(weight: Tensor, bits: int, dim: int | None = None) -> Tensor:
    """Δ of each group, in a shape that broadcasts over the weights; 1 where all of them are 0."""
    if dim is None:
        largest = weight.abs().amax()
    else:
        largest = weight.abs().amax([d for d in range(weight.ndim) if d != dim % weight.ndim], keepdim=True)
    return torch.where(largest > 0, largest / levels(bits), 1)


def check_bits(bits: object) -> None:
    if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 16:
        raise ValueError(f"bits={bits!r}: expected a whole number from 2 to 16; write bits=4")
