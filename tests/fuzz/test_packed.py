"""Damaged packed files: refused by one kind of error, or read within the memory that the file can justify."""

import copy
import hashlib
import json
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from acdc.io import IntegrityError
from acdc.sparsity import packed
from tests.fuzz.mutate import damaged_value
from tests.fuzz.test_checkpoints import damage, same

Mutations = Callable[..., range]
MOST = 256  # bytes in memory for one of the file
SIZES = (0, 1, 2, 7, 8, 41, 210, 211, 212, 1681, 2**31, 2**32, 2**62, 2**63, 2**64, -1, 1.5, "8", None, [], True)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    generator = torch.Generator().manual_seed(0)
    path, shape = tmp_path_factory.mktemp("packed") / "model", (41, 41)
    weight = torch.where(torch.rand(shape, generator=generator) < 0.1, torch.randn(shape, generator=generator), 0.0)
    tensors = {"w": weight, "tied": weight, "h": weight.half(), "b": torch.randn(3, generator=generator),
               "n": torch.tensor(3), "m": weight != 0,
               "half": torch.randn(shape, generator=generator).relu()}  # fmt: skip
    packed.save(tensors, path)
    return path.read_bytes()


def parts_of(content: bytes) -> tuple[dict[str, Any], dict[str, Any], bytearray]:
    """The header, the details in its metadata, and the data."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["acdc"]), bytearray(content[8 + length :])


def sealed(header: Any, details: Any, data: bytes) -> bytes:
    """A file of these parts, whose digest is right: what is wrong with it must be found otherwise."""
    if isinstance(details, dict) and isinstance(header, dict):
        header["__metadata__"] = {"acdc": json.dumps({"acdc_sha256": "0" * 64, **details})}
    text = json.dumps(header, separators=(",", ":")).encode()
    content = struct.pack("<Q", len(text)) + text + data
    digest = hashlib.sha256(content).hexdigest().encode()
    return re.sub(rb"(acdc_sha256[^0-9]{1,12})0{64}", lambda found: found[1] + digest, content, count=1)


def changed(content: bytes, rng: random.Random) -> bytes:
    """One to three changes to sizes, offsets, names, types, details or data, under a right digest."""
    header, details, data = parts_of(content)
    details.pop("acdc_sha256")
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice([key for key in header if key != "__metadata__"] or ["w"])
        entry = header.get(name)
        kind = rng.randrange(9)
        if kind == 0 and isinstance(entry, dict):
            entry["shape"] = [rng.choice(SIZES) for _ in range(rng.randrange(4))]
        elif kind == 1 and isinstance(entry, dict):
            at = [rng.choice((*SIZES, rng.randrange(len(data) + 1))) for _ in range(2)]
            entry["data_offsets"] = at
        elif kind == 2 and isinstance(entry, dict):
            entry["dtype"] = rng.choice(("F32", "F16", "BF16", "U8", "I8", "BOOL", "F64", "I64", "F4", "C64", "X", 3))
        elif kind == 3:
            header[rng.choice(("w", "w.acdc_gaps", "half.acdc_mask", "h.acdc_values", "x", "", "__metadata__"))] = (
                header.pop(name, None)
            )
        elif kind == 4 and data:
            data[_place(header, data, rng)] ^= 1 << rng.randrange(8)
        elif kind == 5:
            del data[rng.randrange(len(data) + 1) :]
        elif kind == 6 and isinstance(details, dict) and isinstance(details.get("packed"), dict):
            shapes = details["packed"].get("shapes")
            if isinstance(shapes, dict):
                shapes[rng.choice(("w", "h", "m", "b", "half", "x"))] = [
                    rng.choice(SIZES) for _ in range(rng.randrange(4))
                ]
        elif kind == 7:
            details = damaged_value(copy.deepcopy(details), rng)
        else:
            header = damaged_value(header, rng)
            if not isinstance(header, dict):
                break
    try:
        return sealed(header, details, bytes(data))
    except (ValueError, UnicodeEncodeError):  # nothing that a file can hold
        return content[: rng.randrange(len(content))]


def _place(header: dict[str, Any], data: bytearray, rng: random.Random) -> int:
    """Any byte of the data, or half the time one of the first of a tensor: those of gaps say how to read the others."""
    starts = [entry.get("data_offsets") for entry in header.values() if isinstance(entry, dict)]
    starts = [at[0] for at in starts if isinstance(at, list) and at and isinstance(at[0], int) and at[0] >= 0]
    first = rng.choice(starts) + rng.randrange(9) if starts and rng.random() < 0.5 else rng.randrange(len(data))
    return first if first < len(data) else rng.randrange(len(data))


def read(path: Path, content: bytes) -> dict[str, Tensor] | None:
    """The tensors; None where the file is refused in words. Anything else ends the test."""
    path.write_bytes(content)
    try:
        return packed.load(path)
    except IntegrityError as error:
        if str(path) not in str(error):
            raise
        return None


def test_no_damage_goes_unnoticed(content: bytes, tmp_path: Path, mutations: Mutations) -> None:
    before = read(tmp_path / "x", content)
    assert before is not None
    for seed in mutations(short=200, long=50_000):
        found = read(tmp_path / "x", damage(content, random.Random(seed)))
        assert found is None or same(found, before), f"mutation {seed}"


def test_other_contents_are_refused_or_fit_the_file(content: bytes, tmp_path: Path, mutations: Mutations) -> None:
    accepted = 0
    for seed in mutations(short=300, long=100_000):
        other = changed(content, random.Random(seed))
        found = read(tmp_path / "x", other)
        if found is not None:
            accepted += 1
            once = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in found.values()}
            assert sum(once.values()) <= MOST * len(other), f"mutation {seed}"
    assert accepted, "else the changes are refused before anything is looked at"
