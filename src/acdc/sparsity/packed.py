"""Stores sparse models in safetensors files: the elements of a tensor that are not 0, and where they are.

A tensor NAME that becomes smaller is stored as two, and the metadata hold its shape (docs/export.md has every byte):

    NAME.acdc_values   as was the elements that are not 0, in row-major order; a single one if all are the same
    NAME.acdc_gaps     U8     how many zeros are before each of them (acdc.sparsity.gaps)
    NAME.acdc_mask     U8     or, where that is smaller, one bit for each element, lowest bit first: 1 for a value

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
    find_bad_entry,
    safetensors_details,
    safetensors_metadata,
    seal_safetensors,
    verify_safetensors,
    write_files,
)
from acdc.sparsity import gaps
from acdc.sparsity.masks import pack
from acdc.sparsity.unpacking import GAPS, MASK, MOST_GROWTH, SAME_BITS, VALUES, from_gaps, from_mask
from acdc.typed_data import AtLeastOne, DataError, Limits, decode

_PARTS = (VALUES, GAPS, MASK)
_KEY, _VERSION = "packed", 2  # version 1 had no gaps, and a value for each bit
_OVERHEAD = 256  # bytes of header that a second tensor and the shape take
_LENGTH = 8  # bytes before the header
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip

_Size = Annotated[int, Limits(least=1, most=2**63 - 1)]


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
    entries, forms = dict[str, _Entry](), _smallest_forms(tensors, tensors.keys() - same.keys())
    for name in tensors.keys() - same.keys():
        tensor = tensors[name]
        kind, width = _DTYPES[tensor.dtype], tensor.element_size()
        if name in forms:
            form = forms[name]
            entries[name + VALUES] = kind, [form.values], form.values * width
            entries[name + form.index] = "U8", [form.index_bytes], form.index_bytes
        else:
            entries[name] = kind, [*tensor.shape], tensor.numel() * width
    # Wide elements come first, so that all are aligned; safetensors itself does the same.
    order = sorted(entries, key=lambda name: (-entries[name][2] // max(math.prod(entries[name][1]), 1), name))
    shapes = {name: tuple(tensors[name].shape) for name in sorted(forms)}
    described = asdict(_Packed(version=_VERSION, shapes=shapes, same=dict(sorted(same.items()))))
    with path.open("wb") as file:
        file.write(_header(entries, order, safetensors_metadata({**(details or {}), _KEY: described})))
        for entry in order:
            part = _part(entry, tensors, forms)
            file.write(_memory(part))
    seal_safetensors(path)


_Entry = tuple[str, list[int], int]  # type, shape, bytes


@dataclass(frozen=True)
class _Form:
    """Describes how a packed tensor is stored."""

    values: int  # how many of them
    index: str  # GAPS or MASK
    index_bytes: int
    low: int = 0  # bits of each gap


def _smallest_forms(tensors: Mapping[str, Tensor], names: Collection[str]) -> dict[str, _Form]:
    """Return how to store the tensors that become smaller, within what a file of gaps may grow to."""
    forms = {
        name: form
        for name in sorted(names)
        if not {name + part for part in _PARTS} & tensors.keys() and (form := _smallest_form(tensors[name]))
    }
    bytes_of = {name: tensors[name].numel() * tensors[name].element_size() for name in forms}
    stored = sum(form.values * tensors[name].element_size() + form.index_bytes for name, form in forms.items())
    grown = sum(bytes_of[name] for name, form in forms.items() if form.index == GAPS)
    for name in sorted(forms, key=lambda name: -bytes_of[name]):
        if grown <= MOST_GROWTH * stored:
            break
        if forms[name].index == GAPS:  # nearly nothing is left of the model: masks justify its size
            mask = _Form(forms[name].values, MASK, -(-tensors[name].numel() // 8))
            stored += mask.index_bytes - forms[name].index_bytes
            grown -= bytes_of[name]
            forms[name] = mask
    return forms


def _smallest_form(tensor: Tensor) -> _Form | None:
    """Return how to store a tensor in the fewest bytes, or None if that is as it is."""
    bits, width = _bits(tensor), tensor.element_size()
    positions = bits.nonzero().flatten()
    kept = bits[positions]
    values = 1 if len(kept) and bool((kept == kept[0]).all()) else len(kept)
    low, length = gaps.choose(positions)
    mask = -(-len(bits) // 8)
    best = _Form(values, GAPS, length, low) if length < mask else _Form(values, MASK, mask)
    return best if len(bits) * width - best.index_bytes - values * width > _OVERHEAD else None


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


def _header(entries: Mapping[str, _Entry], order: list[str], metadata: Mapping[str, str]) -> bytes:
    header, begin = dict[str, Any]({"__metadata__": metadata}), 0
    for name in order:
        kind, shape, length = entries[name]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, begin + length]}
        begin += length
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text


def _part(entry: str, tensors: Mapping[str, Tensor], forms: Mapping[str, _Form]) -> Tensor:
    """Return what is stored under a name: a whole tensor, or the values, gaps or mask of one."""
    for suffix in _PARTS:
        name = entry.removesuffix(suffix)
        if name == entry or name not in forms:
            continue
        bits = _bits(tensors[name])
        if suffix == MASK:
            return pack(bits)
        if suffix == GAPS:
            return gaps.encode(bits.nonzero().flatten(), forms[name].low)
        return bits[bits != 0][: forms[name].values]
    return _bits(tensors[entry])


def _bits(tensor: Tensor) -> Tensor:
    """Return the elements on the CPU in row-major order, as integers with the same bits."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return plain.reshape(-1).view(SAME_BITS[tensor.element_size()])


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
            tensors = dict(_tensors(file, names, packed, MOST_GROWTH * path.stat().st_size))
    except SafetensorError as error:
        reason = find_bad_entry(path) or f"it is truncated, or not a safetensors file ({error})"
        raise IntegrityError(f"{path}: {reason}") from None
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error}") from None
    return tensors, details


def _read_packed(content: Any, names: Collection[str]) -> _Packed:
    """Read the metadata of packed tensors; they are empty if none is packed."""
    if content is None:
        lost = [name.removesuffix(VALUES) for name in sorted(names) if name.endswith(VALUES)]
        if packed := [name for name in lost if name + GAPS in names or name + MASK in names]:
            raise IntegrityError(f"{packed[0]}: it is packed, but the metadata with its shape are missing")
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


def _tensors(file: Any, stored: set[str], packed: _Packed, most: int) -> Iterator[tuple[str, Tensor]]:
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
            tensor = from_gaps(file, name, shape, packed.version, most)
            most -= tensor.numel() * tensor.element_size()
        else:
            tensor = from_mask(file, name, shape, packed.version)
        known[name] = tensor
    for name, other in packed.same.items():
        if name in stored or other not in known:
            raise IntegrityError(f"{name}: {'it is stored twice' if name in stored else f'there is no {other}'}")
    known |= {name: known[other] for name, other in packed.same.items()}
    yield from sorted(known.items())
