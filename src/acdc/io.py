"""Atomic writes of bytes, JSON and safetensors, with digests that reveal later changes to a file.

A file is written under a temporary name, synced and renamed: it is either complete or absent. A checkpoint and a
safetensors file also hold their own sha256, where their format has room for it, so other tools read them as usual:

    checkpoints (zip)   The archive's comment is "acdc sha256:HEX". The digest covers every byte before the comment.
    *.safetensors       The metadata has one entry, "acdc": a JSON object that begins with the digest. The digest covers
                        the whole file, with its own 64 digits set to 0.

Digests are computed and checked while streaming: a large file needs no more memory than a small one.
"""

import errno
import hashlib
import json
import math
import os
import re
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

_PIECE = 1 << 20  # bytes read at a time
_DIGITS = 64
_BLANK = "0" * _DIGITS
_MISMATCH = "its contents do not match the digest written with it"

_COMMENT = b"acdc sha256:"
_END = struct.Struct("<4s16sH")  # a zip's last record: its signature, its contents, the length of the comment
_SIGNATURE = b"PK\5\6"

DETAILS, _KEY = "acdc", "acdc_sha256"  # a single entry: safetensors does not keep the order of several
_LENGTH = struct.Struct("<Q")  # the length of a safetensors header
WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
           "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8}  # fmt: skip
_LONGEST = 100_000_000  # bytes in a header, safetensors' own limit
# In a header, the quotes of a JSON text nested in another are escaped.
_MARKS = (f'"{DETAILS}":"'.encode(), f'\\"{_KEY}\\":'.encode())
_SEAL = re.compile(rb'"%s":"\{\\"%s\\": \\"([0-9a-f]{%d})\\"' % (DETAILS.encode(), _KEY.encode(), _DIGITS))


class IntegrityError(ValueError):
    """A file whose contents have changed since it was written."""


class UnsealedError(IntegrityError):
    """A file without a digest, which another tool wrote."""


# Atomic writes


def write_bytes(path: Path, content: bytes) -> None:
    """Write the whole file or nothing."""
    temporary = temporary_name(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an indented JSON file; NaN and infinity raise a ValueError."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def append_json_line(path: Path, content: Mapping[str, Any]) -> str:
    """Append one line, wait until it is on disk, and return it."""
    line = json.dumps(content, allow_nan=False) + "\n"
    with path.open("a", encoding="utf-8") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())
    return line


def write_safetensors(files: Mapping[Path, Mapping[str, Any]], details: Mapping[str, Any] | None = None) -> None:
    """Write all of these state dicts or none, each with its digest and `details` (plain data) in its metadata.

    No file is renamed before all are complete.
    """
    write_files(
        {path: partial(write_safetensors_at, tensors=tensors, details=details) for path, tensors in files.items()}
    )


def write_files(writers: Mapping[Path, Callable[[Path], None]]) -> None:
    """Write all of these files or none: each writer gets a temporary name, and makes sure that the disk has it all."""
    for path in writers:
        check_target(path)
    temporaries = {path: temporary_name(path) for path in writers}
    try:
        for path, write in writers.items():
            write(temporaries[path])
            temporaries[path].chmod(default_mode())  # safetensors makes files that only their owner can read
        for path, temporary in temporaries.items():
            temporary.replace(path)
    finally:
        for temporary in temporaries.values():
            temporary.unlink(missing_ok=True)


def check_target(path: Path) -> None:
    """Raise an OSError that names the file or its folder if no file can be written there, before any work is done."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "this is a folder; give the name of a file in it", str(path))
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "there is no such folder; create it first", str(path.parent))


def write_safetensors_at(path: Path, tensors: Mapping[str, Any], details: Mapping[str, Any] | None = None) -> None:
    """Write one state dict and its digest at exactly this path; `write_files` passes a temporary one."""
    from safetensors.torch import save_file  # so that commands which write only text need not wait for torch
    from torch import Tensor

    other = [key for key, value in tensors.items() if not isinstance(value, Tensor)]
    if other:
        name = path.name.removeprefix(".").removesuffix(".tmp")
        raise TypeError(f"{name} cannot hold {', '.join(other)}: safetensors stores only tensors; use torch.save")
    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    save_file(plain, path, safetensors_metadata(details))
    seal_safetensors(path)


def default_mode() -> int:
    """Return the default permissions of a new file; temporary files may be readable only by their owner."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def temporary_name(path: Path) -> Path:
    """Return the name under which a file is written before it is renamed."""
    return path.with_name(f".{path.name}.tmp")


# Digests of zip archives


def seal_zip(file: BinaryIO) -> None:
    """Append the digest to a complete archive that has no comment. `file` is open for reading and writing."""
    start = file.seek(-_END.size, os.SEEK_END)
    signature, contents, comment = _END.unpack(file.read(_END.size))
    if signature != _SIGNATURE or comment:
        raise RuntimeError("seal_zip: expected a zip archive without a comment, such as torch.save writes")
    file.seek(start)
    file.write(_END.pack(signature, contents, len(_COMMENT) + _DIGITS))
    file.seek(0)
    digest = _hash(file)
    file.write(_COMMENT + digest)


def verify_zip(file: BinaryIO) -> None:
    """Raise an IntegrityError unless the archive is as `seal_zip` left it. Afterwards `file` is at its start."""
    size = file.seek(0, os.SEEK_END)
    comment = len(_COMMENT) + _DIGITS
    tail = _read_at(file, max(0, size - comment), comment)
    if not tail.startswith(_COMMENT):
        end = tail[-_END.size :]
        # An archive that lost its comment still records how long it was.
        if len(end) == _END.size and end.startswith(_SIGNATURE) and end.endswith(bytes(2)):
            raise UnsealedError("it has no digest")
        raise IntegrityError("it does not end with its digest, which is written last")
    file.seek(0)
    if _hash(file, size - comment) != tail.removeprefix(_COMMENT):
        raise IntegrityError(_MISMATCH)
    file.seek(0)


# Digests of safetensors files


def safetensors_metadata(details: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the metadata for a new safetensors file: room for the digest, and the details beside it."""
    return {DETAILS: json.dumps({_KEY: _BLANK, **(details or {})})}


def safetensors_details(entries: Mapping[str, str]) -> dict[str, Any]:
    """Return the details beside the digest in the metadata of a verified file."""
    try:
        content = json.loads(entries.get(DETAILS, "null"))
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"the details in its metadata cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise IntegrityError("its metadata has no details")
    return {key: value for key, value in content.items() if key != _KEY}


def seal_safetensors(path: Path) -> None:
    """Write the digest into a file created with `safetensors_metadata`, and wait until all of it is on disk."""
    with path.open("r+b") as file:
        seal = _SEAL.search(_header(file))
        if seal is None or seal[1] != _BLANK.encode():
            raise RuntimeError(f"seal_safetensors({path}): expected a file written with write_safetensors")
        file.seek(0)
        digest = _hash(file)
        file.seek(_LENGTH.size + seal.start(1))
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def verify_safetensors(path: Path) -> None:
    """Raise an IntegrityError unless the file is as `seal_safetensors` left it."""
    with path.open("rb") as file:
        try:
            _verify_safetensors(file)
        except IntegrityError as error:
            raise type(error)(f"{path}: {error}") from None


def _verify_safetensors(file: BinaryIO) -> None:
    header = _header(file)
    seal = _SEAL.search(header)
    if seal is None:
        if any(mark in header for mark in _MARKS):
            raise IntegrityError("the digest in its metadata is damaged")
        raise UnsealedError("it has no digest: another tool wrote it")
    blank = header[: seal.start(1)] + _BLANK.encode() + header[seal.end(1) :]
    if _hash(file, before=_LENGTH.pack(len(header)) + blank) != seal[1]:
        raise IntegrityError(_MISMATCH)


def find_bad_entry(path: Path) -> str:
    """Return which tensor of a safetensors file has an impossible entry, and why; "" if the trouble is elsewhere.

    For files that safetensors has refused: its own words do not always name the tensor.
    """
    try:
        with path.open("rb") as file:
            header = _header(file)
            entries, left = json.loads(header), file.seek(0, os.SEEK_END) - _LENGTH.size - len(header)
    except (OSError, ValueError, RecursionError):
        return ""
    ranges = dict[str, tuple[int, int]]()
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        if name == "__metadata__":
            continue
        try:
            (begin, end), sizes, kind = entry["data_offsets"], [*entry["shape"]], str(entry["dtype"])
        except (KeyError, TypeError, ValueError):
            return f"{name}: its entry in the header lacks a type, a shape or two offsets"
        if not all(type(number) is int and number >= 0 for number in (*sizes, begin, end)):
            return f"{name}: its shape {sizes} or its offsets {begin}, {end} are not whole numbers from 0"
        if kind not in WIDTHS:
            return f"{name}: its type, {kind[:40]}, is not one that acdc reads"
        if end - begin != WIDTHS[kind] * math.prod(sizes):
            return f"{name}: {sizes} elements of {kind} do not take the bytes from {begin} to {end}"
        if not begin <= end <= left:
            return f"{name}: its bytes, from {begin} to {end}, are not in the {left:,} bytes of data"
        ranges[name] = begin, end
    place, before = 0, ""
    for name, (begin, end) in sorted(ranges.items(), key=lambda item: item[1]):
        if begin != place:
            what = f"overlap those of {before}" if begin < place else f"leave a gap from {place}"
            return f"{name}: its bytes, from {begin} to {end}, {what}"
        place, before = end, name
    return f"no tensor has the last {left - place:,} bytes" if ranges and place != left else ""


def _header(file: BinaryIO) -> bytes:
    """Read the JSON text at the start of a safetensors file; afterwards `file` is just behind it."""
    size = file.seek(0, os.SEEK_END)
    start = _read_at(file, 0, _LENGTH.size)
    length = _LENGTH.unpack(start)[0] if len(start) == _LENGTH.size else size
    if length > min(_LONGEST, size - _LENGTH.size):
        raise IntegrityError("it is truncated, or not a safetensors file")
    return _read_at(file, _LENGTH.size, length)


def _read_at(file: BinaryIO, position: int, length: int) -> bytes:
    file.seek(position)
    return file.read(length)


def _hash(file: BinaryIO, length: int | None = None, *, before: bytes = b"") -> bytes:
    """Return the hex digest of `before` and the next `length` bytes of the file, or of all that follow."""
    digest = hashlib.sha256(before)
    while piece := file.read(_PIECE if length is None else min(length, _PIECE)):
        digest.update(piece)
        length = None if length is None else length - len(piece)
    return digest.hexdigest().encode()
