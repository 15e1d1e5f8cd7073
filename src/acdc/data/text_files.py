"""Text as users have it: one UTF-8 file, or a folder, in three parts to train, validate and test on.

    FILE                              its first 90 % to train on, the next 5 % to validate, the last 5 % to test
    DIR/train.txt, valid.txt, test.txt  as they are; WikiText's names (wiki.train.tokens, ...) also count
    DIR/*.txt                         one after the other, in the order of their names, then split like one file

A part that a folder lacks is the last 5 % of its training part. Parts begin where a line does, or else a word. Files
may be compressed: .gz or .xz.
"""

import codecs
import gzip
import hashlib
import lzma
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acdc.errors import ArgumentError

PARTS = ("train", "valid", "test")
HELD_OUT = 0.05  # the share of a text that becomes each of "valid" and "test" if there is no file for it
_PACKED = {".gz": gzip.decompress, ".xz": lzma.decompress}
_TEXT = (".txt", ".text")
_NAMED = re.compile(r"(?:wiki\.)?(train|valid|validation|val|test)(?:\.(?:txt|text|tokens|raw))?(?:\.(?:gz|xz))?")
_SAME = {"validation": "valid", "val": "valid"}
_EXAMPLE = "name a UTF-8 text file, or a folder with train.txt, valid.txt and test.txt"


@dataclass(frozen=True)
class Source:
    """The files of a text, by part; a text in one part is yet to be split."""

    name: str
    files: dict[str, tuple[Path, ...]]
    digest: str  # of all files' bytes, and of which part they are

    @property
    def note(self) -> str | None:
        """Return how parts without files of their own come about; None if there are none."""
        missing = [part for part in PARTS if part not in self.files]
        if not missing:
            return None
        files = len(self.files["train"])
        several = f"{files} files, one after the other; " if files > 1 else ""
        ends = " and the 5 % before them" if len(missing) > 1 else ""
        roles = " and ".join({"valid": "validation", "test": "test"}[part] for part in reversed(missing))
        return f"{several}the last 5 % of the text{ends} are held out for {roles}"


def find_text(path: Path) -> Source:
    """Find the files of a text and take their digest, or raise an error that says what is missing."""
    if path.is_file():
        files = {"train": (path,)}
    elif path.is_dir():
        files = _in_folder(path)
    else:
        raise FileNotFoundError(f"{path}: there is no such file or folder; {_EXAMPLE} (--data)")
    digest = hashlib.sha256()
    for part in PARTS:
        for file in files.get(part, ()):
            digest.update(f"{part} {hashlib.sha256(_read(file)).hexdigest()}\n".encode())
    return Source(_stem(path), files, digest.hexdigest())


def _in_folder(folder: Path) -> dict[str, tuple[Path, ...]]:
    entries = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    named: dict[str, tuple[Path, ...]] = {}
    for path in entries:
        if match := _NAMED.fullmatch(path.name):
            part = _SAME.get(match[1], match[1])
            if part in named:
                both = f"{named[part][0].name} and {path.name} are both its {part} part"
                raise ArgumentError("data", received=str(folder), allowed=both, instead="remove one of them")
            named[part] = (path,)
    if "train" in named:
        return {part: named[part] for part in PARTS if part in named}
    if named:
        there = ", ".join(paths[0].name for paths in named.values())
        raise FileNotFoundError(f"{folder}: it has {there}, but no train.txt; {_EXAMPLE} (--data)")
    texts = tuple(path for path in entries if Path(_stem(path, keep=True)).suffix in _TEXT)
    if not texts:
        raise FileNotFoundError(f"{folder}: it has no text file (*.txt); {_EXAMPLE} (--data)")
    return {"train": texts}


def read_parts(source: Source) -> dict[str, str]:
    """Read a text in its three parts; an empty one, or one that is not UTF-8, raises an ArgumentError."""
    given = {part: "".join(map(_decode, files)) for part, files in source.files.items()}
    for part, text in given.items():
        if not text.strip():
            raise _refused(source.files[part], "there is no text in it: it is empty, or all white space")
    parts = dict(given)
    for part in reversed([part for part in PARTS if part not in given]):
        # 5 % of the whole each: the second time, the text that is left is shorter.
        cut = _line_start(parts["train"], len(parts["train"]) - round(HELD_OUT * len(given["train"])))
        parts["train"], parts[part] = parts["train"][:cut], parts["train"][cut:]
    short = next((part for part in PARTS if len(parts[part]) < 2), None)
    if short:
        raise _refused(source.files["train"], f"too short to split: its {short} part would have no text")
    return {part: parts[part] for part in PARTS}


def _line_start(text: str, near: int) -> int:
    """Return the first start of a line from `near` on, or else of a word, or else `near`; not the text's end."""
    near = max(1, min(near, len(text) - 1))
    room = near + (len(text) - near) // 2  # a part keeps at least half of its share
    for separator in ("\n", " "):
        if found := text.find(separator, near, room) + 1:
            return found
    return near


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArgumentError("data", received=str(path), allowed=f"it cannot be read ({error.strerror})") from None


def _decode(path: Path) -> str:
    content = _read(path)
    if unpack := _PACKED.get(path.suffix):
        try:
            content = unpack(content)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise _refused([path], f"it is damaged or not a {path.suffix} file ({error})") from None
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            "data",
            received=str(path),
            allowed=f"it is not UTF-8 text: byte {error.start:,} is 0x{content[error.start]:02x} ({error.reason})",
            instead=f"convert it, for example: iconv -f {_likely_encoding(content)} -t utf-8 {path.name} > utf8.txt",
        ) from None


def _likely_encoding(content: bytes) -> str:
    """Return the encoding that a mark at the beginning names, or else the most common one."""
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # the first begins as UTF-16's does
        return "utf-32"
    return "utf-16" if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "latin1"


def _stem(path: Path, *, keep: bool = False) -> str:
    """Return a file's name without the suffix of its compression and, unless `keep`, of its kind."""
    path = path.resolve() if not keep else path
    name = path.name.removesuffix(path.suffix) if path.suffix in _PACKED else path.name
    return name if keep or path.is_dir() else Path(name).stem


def _refused(paths: Sequence[Path], why: str) -> ArgumentError:
    return ArgumentError("data", received=", ".join(map(str, paths[:3])), allowed=why, instead=_EXAMPLE)
