"""Files are written whole or not at all, and tell by themselves whether they are as they were written."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from acdc.io import (
    IntegrityError,
    UnsealedError,
    safetensors_details,
    seal_safetensors,
    seal_zip,
    verify_safetensors,
    write_json,
    write_safetensors,
)

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "mask": torch.tensor([True, False]), "acdc": torch.ones(1)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_safetensors({path: TENSORS}, {"models": {"sparse": [1, 2]}})
    return path


def test_json_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write_json(file, {"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(file, {"a": float("nan")})
    assert json.loads(file.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [file]


def refusal(path: Path, content: bytes | bytearray) -> type[Exception] | None:
    path.write_bytes(content)
    try:
        verify_safetensors(path)
    except IntegrityError as error:
        return type(error)
    return None


def test_a_file_stays_one_of_safetensors_with_details_in_its_metadata(file: Path) -> None:
    verify_safetensors(file)
    assert {name: value.tolist() for name, value in load_file(file).items()} == {
        name: value.tolist() for name, value in TENSORS.items()
    }
    with safe_open(file, framework="pt") as opened:
        assert safetensors_details(opened.metadata()) == {"models": {"sparse": [1, 2]}}


def test_the_same_tensors_give_the_same_bytes(file: Path, tmp_path: Path) -> None:
    write_safetensors({tmp_path / "again": TENSORS}, {"models": {"sparse": [1, 2]}})
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_no_bit_of_a_file_can_flip_unnoticed(file: Path) -> None:
    """Wherever it is: in the header's length, a key of the metadata, a tensor's shape, the digest or the data."""
    whole = file.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            content = bytearray(whole)
            content[position] ^= 1 << bit
            assert refusal(file, content) is not None, (position, bit)
    assert refusal(file, whole) is None


@pytest.mark.parametrize("mark", [b'"acdc":"', b"acdc_sha256"])
def test_one_of_the_two_marks_alone_is_damage(file: Path, mark: bytes) -> None:
    whole = file.read_bytes()
    assert whole.count(mark) == 1
    assert refusal(file, whole.replace(mark, mark.replace(b"cdc", b"cbc"))) is IntegrityError


def test_a_file_of_another_tool_is_told_apart_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file(TENSORS, path, {"sha256": "0" * 64})
    assert refusal(path, path.read_bytes()) is UnsealedError
    for content in (b"", b"short", bytes(100)[:7], b"\xff" * 100):
        assert refusal(path, content) is IntegrityError


def test_what_has_no_room_for_a_digest_is_not_sealed(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file(TENSORS, path)
    with pytest.raises(RuntimeError, match="expected a file written with write_safetensors"):
        seal_safetensors(path)
    with pytest.raises(RuntimeError, match="expected a file written with write_safetensors"):
        seal_safetensors(file)  # a second time
    with file.open("r+b") as opened, pytest.raises(RuntimeError, match="expected a zip archive"):
        seal_zip(opened)
