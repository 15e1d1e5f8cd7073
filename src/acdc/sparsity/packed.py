"""Stores sparse models in safetensors files: the elements of a tensor that are not 0, and where they are.

A tensor NAME that becomes smaller is stored as two, and the metadata hold its shape (docs/export.md has every byte):

    NAME.acdc_values   as was the elements that are not 0, in row-major order; a single one if all are the same
    NAME.acdc_gaps     U8     how many zeros are before each of them (acdc.sparsity.gaps)
    NAME.acdc_mask     U8     or, where that is smaller, one bit for each element, lowest bit first: 1 for a value

An element is omitted only if all its bits are 0, so -0.0 and NaN are restored exactly. Tensors that share memory, such
as tied weights, are stored once. Files are written and read one tensor at a time.
"""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from acdc.errors import ArgumentTypeError
from acdc.io import (
    DETAILS,
    WIDTHS,
    IntegrityError,
    UnsealedError,
    find_bad_entry,
    safetensors_details,
    verify_safetensors,
    write_files,
)
from acdc.sparsity.packing import write
from acdc.sparsity.unpacking import KEY, MOST_GROWTH, PARTS, VALUES, read_description, read_tensors


def save(tensors: Mapping[str, Tensor], path: str | Path, details: Mapping[str, Any] | None = None) -> None:
    """Write a state dict atomically, with a digest. Tensors are packed if that is smaller."""
    if not isinstance(tensors, Mapping):
        allowed = "expected a state dict: tensors by their names"
        raise ArgumentTypeError("tensors", tensors, allowed, "write model.state_dict()")
    path = Path(path)
    write_files({path: lambda temporary: write(temporary, tensors, details)})


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
            packed = read_description(details.pop(KEY, None), names)
            tensors = dict(read_tensors(file, names, packed, MOST_GROWTH * path.stat().st_size))
    except SafetensorError as error:
        reason = find_bad_entry(path) or f"it is truncated, or not a safetensors file ({error})"
        raise IntegrityError(f"{path}: {reason}") from None
    except IntegrityError as error:
        raise IntegrityError(f"{path}: {error}") from None
    return tensors, details


def dense_bytes(path: Path) -> tuple[int, bool] | None:
    """Return the bytes of a file's tensors once loaded, and whether any is packed; None if it cannot be read.

    Only the header is read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata, names = file.metadata() or {}, {*file.keys()}
            details = safetensors_details(metadata) if DETAILS in metadata else {}
            packed = read_description(details.get(KEY), names)
            total = 0
            for name in names:
                stored, part = file.get_slice(name), next((p for p in PARTS if name.endswith(p)), "")
                shape = packed.shapes.get(name.removesuffix(part)) if part else stored.get_shape()
                if shape is not None and part in ("", VALUES):
                    total += math.prod(shape) * WIDTHS[stored.get_dtype()]
            return total, bool(packed.shapes)
    except (SafetensorError, IntegrityError, OSError, KeyError):
        return None
