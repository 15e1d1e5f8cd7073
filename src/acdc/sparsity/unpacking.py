"""Rebuilds one tensor of a packed file from its two parts, after checking that they fit together."""

import math
from typing import Any

import torch
from torch import Tensor

from acdc.io import IntegrityError
from acdc.sparsity import gaps
from acdc.sparsity.masks import unpack

MASK, GAPS, VALUES = ".acdc_mask", ".acdc_gaps", ".acdc_values"
MOST_GROWTH = 256  # tensors with gaps are, all together, at most this many times as large as their file
SAME_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_AXES = 64


def from_mask(file: Any, name: str, shape: tuple[int, ...], version: int) -> Tensor:
    """Return a tensor packed with a mask. Memory for it is allocated only after the mask proves to be as long."""
    size = _size(name, shape)
    length = file.get_slice(name + MASK).get_shape()
    if length != [-(-size // 8)]:
        raise IntegrityError(f"{name}: {size:,} elements need a mask of {-(-size // 8):,} bytes, not {length}")
    mask, values = _index_and_values(file, name, MASK)
    if size % 8 and int(mask[-1]) >> size % 8:
        raise IntegrityError(f"{name}: its mask has bits set after its last element")
    out = torch.zeros(size, dtype=SAME_BITS[values.element_size()])
    keep = unpack(mask, out) != 0
    values = _values_for(name, int(torch.count_nonzero(keep)), values, "mask keeps", version)
    out.masked_scatter_(keep, values.view(out.dtype))
    return out.view(values.dtype).view(shape)


def from_gaps(file: Any, name: str, shape: tuple[int, ...], version: int, most: int) -> Tensor:
    """Return a tensor packed with gaps. Memory for it is allocated only if it takes `most` bytes or fewer."""
    size = _size(name, shape)
    if version < 2:
        raise IntegrityError(f"{name}: it has {GAPS}, which version {version} does not know")
    code, values = _index_and_values(file, name, GAPS)
    width = values.element_size()
    if size * width > most:
        raise IntegrityError(
            f"{name}: with its {size:,} elements, tensors take more than {MOST_GROWTH} times the bytes of the file"
        )
    try:
        positions = gaps.decode(code, size)
    except gaps.GapError as error:
        raise IntegrityError(f"{name}: {error}") from None
    values = _values_for(name, len(positions), values, "gaps keep", version)
    out = torch.zeros(size, dtype=SAME_BITS[width])
    out[positions] = values.view(out.dtype)
    return out.view(values.dtype).view(shape)


def _size(name: str, shape: tuple[int, ...]) -> int:
    if len(shape) > _MOST_AXES:
        raise IntegrityError(f"{name}: it has {len(shape):,} axes, and torch allows {_MOST_AXES} at most")
    return math.prod(shape)


def _index_and_values(file: Any, name: str, part: str) -> tuple[Tensor, Tensor]:
    index, values = file.get_tensor(name + part), file.get_tensor(name + VALUES)
    if index.dtype != torch.uint8 or index.ndim != 1 or values.ndim != 1 or values.element_size() not in SAME_BITS:
        raise IntegrityError(f"{name}: expected bytes in {part} and a row of values")
    return index, values


def _values_for(name: str, kept: int, values: Tensor, index: str, version: int) -> Tensor:
    """Return a value for each element that is kept; a single stored one is that of all."""
    if len(values) == 1 < kept and version > 1:
        return values.expand(kept).clone()
    if kept != len(values):
        raise IntegrityError(f"{name}: its {index} {kept:,} elements, but {len(values):,} values are stored")
    return values
