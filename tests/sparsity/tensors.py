"""Tensors of every kind and layout that masks are taken from and applied to."""

import math

import torch
from torch import Tensor

BITS = {
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}
MANTISSA = {torch.float16: 10, torch.bfloat16: 7, torch.float32: 23, torch.float64: 52}
DTYPES = list(BITS)
KINDS = ("normal", "few", "equal", "zeros", "bits", "denormal")
LAYOUTS = ("contiguous", "transposed", "channels_last", "strided", "offset")


def make(shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int) -> Tensor:
    """Finite values of one kind: drawn by their bits, so that signed zeros, denormals and huge values all come up."""
    generator = torch.Generator().manual_seed(seed)
    integer = BITS[dtype]
    limits = torch.iinfo(integer)

    def integers(low: int, high: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=integer)

    if kind == "normal":
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if kind == "few":
        smallest = torch.tensor(1, dtype=integer).view(dtype).item()
        values = torch.tensor([0.0, -0.0, smallest, -smallest, 1.0, -1.0, 1.5], dtype=dtype)
        return values[integers(0, len(values)).long()]
    if kind == "equal":
        return torch.full(shape, 0.25, dtype=dtype) * (1 - 2 * integers(0, 2)).to(dtype)
    if kind == "zeros":
        return torch.where(integers(0, 2) > 0, 0.0, -0.0).to(dtype)
    if kind == "denormal":
        return (integers(0, 1 << MANTISSA[dtype]) | (integers(0, 2) << limits.bits - 1)).view(dtype)
    values = integers(limits.min, limits.max).view(dtype)
    return torch.where(values.isfinite(), values, 0.0)


def lay_out(tensor: Tensor, layout: str) -> Tensor:
    """The same values under other strides. What lies in the holes is NaN: reading it would be refused."""
    backwards = tuple(reversed(range(tensor.ndim)))
    if layout == "channels_last" and tensor.ndim == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if layout in ("channels_last", "transposed"):
        return tensor.permute(backwards).contiguous().permute(backwards)
    if layout == "strided" and tensor.ndim:
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] * 2), math.nan, dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if layout == "offset":
        return torch.cat([torch.full((3,), math.nan, dtype=tensor.dtype), tensor.flatten()])[3:].view(tensor.shape)
    return tensor
