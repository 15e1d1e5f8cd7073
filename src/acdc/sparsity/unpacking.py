"""Rebuilds the tensors of a packed file, each from its two parts, after checking that they fit together."""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from acdc.io import IntegrityError
from acdc.sparsity import gaps
from acdc.sparsity.masks import unpack
from acdc.typed_data import AtLeastOne, DataError, Limits, decode

MASK, GAPS, VALUES = ".acdc_mask", ".acdc_gaps", ".acdc_values"
PARTS = (VALUES, GAPS, MASK)
KEY, VERSION = "packed", 2  # version 1 had no gaps, and a value for each bit
MOST_GROWTH = 256  # tensors with gaps are, all together, at most this many times as large as their file
SAME_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_AXES = 64
_Size = Annotated[int, Limits(least=1, most=2**63 - 1)]


@dataclass(frozen=True, kw_only=True)
class PackedTensors:
    """Holds the metadata: shapes of packed tensors, and for each tied name the name that its tensor is stored under."""

    version: AtLeastOne
    shapes: dict[str, tuple[_Size, ...]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)


def read_description(content: Any, names: Collection[str]) -> PackedTensors:
    """Read the metadata of packed tensors; they are empty if none is packed."""
    if content is None:
        lost = [name.removesuffix(VALUES) for name in sorted(names) if name.endswith(VALUES)]
        if packed := [name for name in lost if name + GAPS in names or name + MASK in names]:
            raise IntegrityError(f"{packed[0]}: it is packed, but the metadata with its shape are missing")
        return PackedTensors(version=VERSION)
    try:
        packed = decode(PackedTensors, content)
    except DataError as error:
        raise IntegrityError(f"its metadata: {error.under(KEY)}") from None
    if packed.version > VERSION:
        raise IntegrityError(
            f"it is packed in version {packed.version}, and this acdc reads {VERSION}; install a newer acdc"
        )
    return packed


def read_tensors(file: Any, stored: set[str], packed: PackedTensors, most: int) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its name, reading one at a time. Those with gaps take at most `most` bytes together."""
    known, parts = dict[str, Tensor](), set[str]()
    for name in packed.shapes:
        if name in stored or name in packed.same:
            raise IntegrityError(f"{name}: it is stored twice")
        index = [name + part for part in (GAPS, MASK) if name + part in stored]
        if name + VALUES not in stored or not index:
            missing = name + VALUES if index else f"{name}{GAPS} or {MASK}"
            raise IntegrityError(f"{name}: {missing} is missing")
        if len(index) > 1:
            raise IntegrityError(f"{name}: it has both {GAPS} and {MASK}")
        parts |= {name + VALUES, *index}
    for name in sorted(stored - parts):
        known[name] = file.get_tensor(name)
    for name, shape in packed.shapes.items():
        if name + GAPS in stored:
            tensor = _from_gaps(file, name, shape, packed.version, most)
            most -= tensor.numel() * tensor.element_size()
        else:
            tensor = _from_mask(file, name, shape, packed.version)
        known[name] = tensor
    for name, other in packed.same.items():
        if name in stored or other not in known:
            raise IntegrityError(f"{name}: {'it is stored twice' if name in stored else f'there is no {other}'}")
    known |= {name: known[other] for name, other in packed.same.items()}
    yield from sorted(known.items())


def _from_mask(file: Any, name: str, shape: tuple[int, ...], version: int) -> Tensor:
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


def _from_gaps(file: Any, name: str, shape: tuple[int, ...], version: int, most: int) -> Tensor:
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
