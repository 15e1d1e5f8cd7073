"""Writes packed files: chooses the smallest form of each tensor, then streams one part after the other."""

import ctypes
import json
import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acdc.errors import ArgumentError, ArgumentTypeError
from acdc.io import safetensors_metadata, seal_safetensors
from acdc.sparsity import gaps
from acdc.sparsity.masks import pack
from acdc.sparsity.unpacking import GAPS, KEY, MASK, MOST_GROWTH, PARTS, SAME_BITS, VALUES, VERSION, PackedTensors

_OVERHEAD = 256  # bytes of header that a second tensor and the shape take
_LENGTH = 8  # bytes before the header
_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.complex64: "C64",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.bool: "BOOL",
    torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16", torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip


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
    described = asdict(PackedTensors(version=VERSION, shapes=shapes, same=dict(sorted(same.items()))))
    with path.open("wb") as file:
        file.write(_header(entries, order, safetensors_metadata({**(details or {}), KEY: described})))
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
        if not {name + part for part in PARTS} & tensors.keys() and (form := _smallest_form(tensors[name]))
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
    for suffix in PARTS:
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
