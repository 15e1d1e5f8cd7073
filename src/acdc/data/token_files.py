"""Packed text: the tokens of each part in a file of whole numbers, built once and then mapped into memory.

CACHE/KEY/tokens.json       the counts and digests of the parts, and what they were made from
CACHE/KEY/vocabulary.json   see vocabulary.py
CACHE/KEY/train.bin, ...    one number of 2 bytes for each token, or of 4 if there are more than 65,536 different ones

KEY is a digest of the source files and of everything that decides their tokens, so other text never meets these files.
A folder is written under a temporary name and renamed: it is complete or absent, also if several runs build it at once.
CACHE is $ACDC_CACHE, or else acdc in the user's own cache folder.
"""

import hashlib
import json
import os
import shutil
import tempfile
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from acdc.data.text_files import PARTS
from acdc.data.vocabulary import VOCABULARY, Vocabulary, count_words, read_vocabulary
from acdc.errors import ArgumentError
from acdc.io import default_mode
from acdc.typed_data import AtLeastOne, Count, DataError, decode

FORMAT = 1
_CODES = {2: "H", 4: "I"}
_DTYPES = {2: torch.int16, 4: torch.int32}  # torch computes little with unsigned numbers; see `read_tokens`


@dataclass(frozen=True, kw_only=True)
class PartCounts:
    """The size of a part of a text: its tokens, and the bytes and words of its text."""

    tokens: Count
    bytes: Count
    words: Count  # with ends of lines, as WikiText counts
    unknown: Count  # tokens that the vocabulary does not have
    sha256: str  # of the token file


@dataclass(frozen=True, kw_only=True)
class PackedInfo:
    """The contents of tokens.json."""

    format: int
    source: str
    vocabulary: str
    width: AtLeastOne  # bytes for each token
    parts: dict[str, PartCounts]


@dataclass(frozen=True)
class PackedText:
    """A text in tokens. The numbers are read from disk only where they are used."""

    folder: Path
    vocabulary: Vocabulary
    info: PackedInfo

    def tokens(self, part: str) -> Tensor:
        """Map a part's token file into memory."""
        size, dtype = self.info.parts[part].tokens, _DTYPES[self.info.width]
        return torch.from_file(str(self.folder / f"{part}.bin"), shared=False, size=size, dtype=dtype)


def read_tokens(stored: Tensor) -> Tensor:
    """Return stored tokens as int64: those of 2 bytes are unsigned, whatever their type says."""
    return stored.to(torch.int64) & 0xFFFF if stored.dtype == torch.int16 else stored.to(torch.int64)


def cache_folder() -> Path:
    """Return the folder of packed text: $ACDC_CACHE, or acdc in the user's cache folder."""
    if own := os.environ.get("ACDC_CACHE"):
        return Path(own).expanduser() / "text"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "acdc" / "text"


def packed_key(source: str, *settings: object) -> str:
    """Return the name of the folder for a source's digest and all settings that decide its tokens."""
    return hashlib.sha256(json.dumps([FORMAT, source, *settings]).encode()).hexdigest()[:32]


def open_packed(folder: Path) -> PackedText | None:
    """Open packed text and verify every file; None if it was never built, an ArgumentError if it is damaged."""
    path = folder / "tokens.json"
    try:
        info = decode(PackedInfo, json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        if folder.exists():
            raise _damaged(folder, "tokens.json is missing") from None
        return None
    except (OSError, ValueError, DataError) as error:
        raise _damaged(folder, f"tokens.json cannot be read ({error})") from None
    if info.format != FORMAT or info.width not in _DTYPES or {*info.parts} != {*PARTS}:
        raise _damaged(folder, "tokens.json is not of this version")
    try:
        vocabulary = read_vocabulary(folder / VOCABULARY)
    except ArgumentError as error:
        raise _damaged(folder, f"vocabulary.json: {error.allowed}") from None
    if vocabulary.digest != info.vocabulary:
        raise _damaged(folder, "vocabulary.json belongs to another text")
    for part, counts in info.parts.items():
        _verify(folder / f"{part}.bin", counts, info.width)
    return PackedText(folder, vocabulary, info)


def _verify(path: Path, counts: PartCounts, width: int) -> None:
    expected = counts.tokens * width
    try:
        size = path.stat().st_size
        if size != expected:
            how = "it is cut short" if size < expected else "it is too long"
            raise _damaged(path.parent, f"{path.name}: {how}: {size:,} bytes, but {counts.tokens:,} tokens of {width}")
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != counts.sha256:
                raise _damaged(path.parent, f"{path.name}: its contents do not match the digest in tokens.json")
    except OSError as error:
        raise _damaged(path.parent, f"{path.name} cannot be read ({error.strerror})") from None


def _damaged(folder: Path, why: str) -> ArgumentError:
    instead = "remove this folder, and it is built again from the text"
    return ArgumentError("data", received=str(folder), allowed=f"damaged token files: {why}", instead=instead)


def pack(folder: Path, parts: Mapping[str, str], vocabulary: Vocabulary, source: str) -> PackedText:
    """Encode a text and write its folder, complete or not at all; a folder that another run finished first is kept."""
    try:
        _write_folder(folder, parts, vocabulary, source)
    except OSError as error:
        raise ArgumentError(
            "data",
            received=str(folder),
            allowed=f"the tokens of the text cannot be written there ({error.strerror})",
            instead="make room, or set ACDC_CACHE to a folder with more, for example: export ACDC_CACHE=./cache",
        ) from None
    packed = open_packed(folder)
    assert packed is not None, "it has just been written, by this process or another"
    return packed


def _write_folder(folder: Path, parts: Mapping[str, str], vocabulary: Vocabulary, source: str) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        counts = {part: _write_part(temporary / f"{part}.bin", text, vocabulary) for part, text in parts.items()}
        info = PackedInfo(
            format=FORMAT, source=source, vocabulary=vocabulary.digest, width=vocabulary.width, parts=counts
        )
        vocabulary.save(temporary / VOCABULARY)
        _write(temporary / "tokens.json", (json.dumps(asdict(info), indent=2) + "\n").encode())
        readable = default_mode()
        temporary.chmod(readable | (readable & 0o444) >> 2)  # whoever may read the files may enter the folder
        try:
            temporary.replace(folder)
        except OSError:
            if not (folder / "tokens.json").is_file():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_part(path: Path, text: str, vocabulary: Vocabulary) -> PartCounts:
    numbers, unknown = vocabulary.encode(text)
    stored = array(_CODES[vocabulary.width], numbers)
    content = stored.tobytes()
    _write(path, content)
    return PartCounts(
        tokens=len(numbers),
        bytes=len(text.encode()),
        words=count_words(text),
        unknown=unknown,
        sha256=hashlib.sha256(content).hexdigest(),
    )


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
