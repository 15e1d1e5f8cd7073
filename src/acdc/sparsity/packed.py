"""Stores sparse models in safetensors files: one bit for each element of a tensor, and the elements that are not 0.

A tensor NAME that becomes smaller is stored as two, and the metadata hold its shape (docs/export.md has every byte):

    NAME.acdc_mask     U8     one bit for each element in row-major order, lowest bit first: 1 where a value is stored
    NAME.acdc_values   as was the elements whose bit is 1, in that order

An element is omitted only if all its bits are 0, so -0.0 and NaN are restored exactly. Tensors that share memory, such
as tied weights, are stored once. Files are written and read one tensor at a time.
"""

import contextlib
import ctypes
import json
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from acdc.errors import ArgumentError, ArgumentTypeError
from acdc.io import (
    DETAILS,
    IntegrityError,
    UnsealedError,
    safetensors_details,
    safetensors_metadata,
    seal_safetensors,
    verify_safetensors,
    write_files,
)
from acdc.sparsity.masks import pack, unpack
from acdc.typed_data import AtLeastOne, DataError, Limits, decode

MASK, VALUES = ".acdc_mask", ".acdc_values"
_KEY, _VERSION = "packed", 1
_OVERHEAD = 256  # bytes of header that a second tensor and the shape take
_LENGTH = 8  # bytes before the header
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip

_Size = Annotated[int, Limits(least=1, most=2**63 - 1)]
_MOST_AXES = 64


@dataclass(frozen=True, kw_only=True)
class _Packed:
    """Holds the metadata: shapes of packed tensors, and for each tied name the name that its tensor is stored under."""

    version: AtLeastOne
    shapes: dict[str, tuple[_Size, ...]] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)


# Writing


def save(tensors: Mapping[str, Tensor], path: str | Path, details: Mapping[str, Any] | None = None) -> None:
    """Write a state dict atomically, with a digest. Tensors are packed if that is smaller."""
    if not isinstance(tensors, Mapping):
        allowed = "expected a state dict: tensors by their names"
        raise ArgumentTypeError("tensors", tensors, allowed, "write model.state_dict()")
    path = Path(path)
    write_files({path: lambda temporary: write(temporary, tensors, details)})


def write(path: Path, tensors: Mapping[str, Tensor], details: Mapping[str, Any] | None = None) -> None:
    """Write the file that `save` puts in place; its metadata also hold `details`, which is plain data."""
    if sys.byteorder != "little":
        raise RuntimeError("cannot write safetensors: the format is little-endian, and this machine is big-endian")
    for name, tensor in tensors.items():
        _check(name, tensor)
    same = _sharing(tensors)
    entries, shapes = dict[str, tuple[str, list[int], int]](), dict[str, tuple[int, ...]]()
    for name in tensors.keys() - same.keys():
        tensor = tensors[name]
        kept = int(torch.count_nonzero(_bits(tensor)))
        kind, size, width = _DTYPES[tensor.dtype], tensor.numel(), tensor.element_size()
        smaller = size * width - -(-size // 8) - kept * width > _OVERHEAD
        if smaller and not {name + MASK, name + VALUES} & tensors.keys():
            shapes[name] = tuple(tensor.shape)
            entries[name + VALUES] = kind, [kept], kept * width
            entries[name + MASK] = "U8", [-(-size // 8)], -(-size // 8)
        else:
            entries[name] = kind, [*tensor.shape], size * width
    # Wide elements come first, so that all are aligned; safetensors itself does the same.
    order = sorted(entries, key=lambda name: (-entries[name][2] // max(math.prod(entries[name][1]), 1), name))
    described = asdict(_Packed(version=_VERSION, shapes=dict(sorted(shapes.items())), same=dict(sorted(same.items()))))
    with path.open("wb") as file:
        file.write(_header(entries, order, safetensors_metadata({**(details or {}), _KEY: described})))
        for entry in order:
            part = _part(entry, tensors, shapes)
            file.write(_memory(part))
    seal_safetensors(path)


def _check(name: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        allowed = "expected a tensor; safetensors stores nothing else"
        raise ArgumentTypeError(name, tensor, allowed, "leave it out, or use torch.save")
    if tensor.dtype not in _DTYPES or tensor.layout != torch.strided or tensor.is_meta:
        received = f"{tensor.layout} of {tensor.dtype} on {tensor.device}"
        raise ArgumentError(name, received, "expected a plain tensor of a type that safetensors has")
    if not name.isprintable() or name == "__metadata__":
        raise ArgumentError("name", name, "expected the name of a tensor in printable characters")


def _sharing(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return, for each name whose tensor is the same memory as another's, the first name of that tensor."""
    first, same = dict[Any, str](), dict[str, str]()
    for name in sorted(tensors):
        tensor = tensors[name]
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if not tensor.numel() or tensor.is_conj() or tensor.is_neg():
            continue
        if first.setdefault(place, name) != name:
            same[name] = first[place]
    return same


def _header(entries: Mapping[str, tuple[str, list[int], int]], order: list[str], metadata: Mapping[str, str]) -> bytes:
    header, begin = dict[str, Any]({"__metadata__": metadata}), 0
    for name in order:
        kind, shape, length = entries[name]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, begin + length]}
        begin += length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text


def _part(entry: str, tensors: Mapping[str, Tensor], shapes: Mapping[str, Any]) -> Tensor:
    """Return what is stored under a name: a whole tensor, or the mask or the values of one."""
    for suffix in (MASK, VALUES):
        name = entry.removesuffix(suffix)
        if name != entry and name in shapes:
            bits = _bits(tensors[name])
            return pack(bits) if suffix == MASK else bits[bits != 0]
    return _bits(tensors[entry])


def _bits(tensor: Tensor) -> Tensor:
    """Return the elements on the CPU in row-major order, as integers with the same bits."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(_BITS[tensor.element_size()])


def _memory(tensor: Tensor) -> Any:
    """Return the bytes of a contiguous tensor without a copy; they are valid as long as the tensor lives."""
    size = tensor.numel() * tensor.element_size()
    return (ctypes.c_char * size).from_address(tensor.data_ptr()) if size else b""


# Reading


def load(path: str | Path) -> dict[str, Tensor]:
    """Return the state dict in a safetensors file, packed or plain, on the CPU.

    Raises an IntegrityError that names the tensor if parts of the file do not fit together, and one that names the file
    if its contents do not match its digest. Files that other tools wrote have no digest; they are read without one.
    """
    return load_with_details(Path(path))[0]


def load_with_details(path: Path, *, verify: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state dict as `load` does, and its details. Pass `verify=False` if the digest is verified already."""
    with contextlib.suppress(UnsealedError):
        if verify:
            verify_safetensors(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, {*file.keys()}
            details = safetensors_details(metadata) if DETAILS in metadata else {}
            packed = _read_packed(details.pop(_KEY, None), names)
            tensors = dict(_tensors(file, names, packed))
    except SafetensorError as error:
        raise IntegrityError(f"{path}: it is truncated, or not a safetensors file ({error})") from None
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error}") from None
    return tensors, details


def _read_packed(content: Any, names: Collection[str]) -> _Packed:
    """Read the metadata of packed tensors; they are empty if none is packed."""
    if content is None:
        lost = [name for name in names if name.endswith(MASK) and name.removesuffix(MASK) + VALUES in names]
        if lost:
            name = lost[0].removesuffix(MASK)
            raise IntegrityError(f"{name}: it is packed, but the metadata with its shape are missing")
        return _Packed(version=_VERSION)
    try:
        packed = decode(_Packed, content)
    except DataError as error:
        raise IntegrityError(f"its metadata: {error.under(_KEY)}") from None
    if packed.version > _VERSION:
        raise IntegrityError(
            f"it is packed in version {packed.version}, and this acdc reads {_VERSION}; install a newer acdc"
        )
    return packed


def _tensors(file: Any, stored: set[str], packed: _Packed) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its name, reading one at a time."""
    known = dict[str, Tensor]()
    for name in packed.shapes:
        if name in stored or name in packed.same:
            raise IntegrityError(f"{name}: it is stored twice")
        if missing := [name + part for part in (MASK, VALUES) if name + part not in stored]:
            raise IntegrityError(f"{name}: {missing[0]} is missing")
    parts = {name + part for name in packed.shapes for part in (MASK, VALUES)}
    for name in sorted(stored - parts):
        known[name] = file.get_tensor(name)
    for name, shape in packed.shapes.items():
        known[name] = _unpacked(file, name, shape)
    for name, other in packed.same.items():
        if name in stored or other not in known:
            raise IntegrityError(f"{name}: {'it is stored twice' if name in stored else f'there is no {other}'}")
    known |= {name: known[other] for name, other in packed.same.items()}
    yield from sorted(known.items())


def _unpacked(file: Any, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return a packed tensor. Memory for its shape is allocated only after the mask proves to be as long."""
    size = math.prod(shape[:_MOST_AXES])
    if len(shape) > _MOST_AXES:
        raise IntegrityError(f"{name}: it has {len(shape):,} axes, and torch allows {_MOST_AXES} at most")
    lengths = {part: file.get_slice(name + part).get_shape() for part in (MASK, VALUES)}
    if lengths[MASK] != [-(-size // 8)]:
        raise IntegrityError(f"{name}: {size:,} elements need a mask of {-(-size // 8):,} bytes, not {lengths[MASK]}")
    mask, values = file.get_tensor(name + MASK), file.get_tensor(name + VALUES)
    if mask.dtype != torch.uint8 or values.ndim != 1 or values.element_size() not in _BITS:
        raise IntegrityError(f"{name}: expected a mask of bytes and a row of values")
    if size % 8 and int(mask[-1]) >> size % 8:
        raise IntegrityError(f"{name}: its mask has bits set after its last element")
    out = torch.zeros(size, dtype=_BITS[values.element_size()])
    keep = unpack(mask, out) != 0
    kept = int(torch.count_nonzero(keep))
    if kept != len(values):
        raise IntegrityError(f"{name}: its mask keeps {kept:,} elements, but {len(values):,} values are stored")
    out.masked_scatter_(keep, values.view(out.dtype))
    return out.view(values.dtype).view(shape)
