"""Digests of folders that others write, such as a trainer's checkpoints: one that changed later is not resumed from.

    seal(folder)                          # once all of its files are written; on one process
    newest_intact("out", "checkpoint-*")  # the newest that is as it was sealed, or None

A folder is sealed by a file that names the others with their sha256. A process that is killed while it writes a folder
leaves one without.
"""

import hashlib
import json
import re
import warnings
from collections.abc import Collection
from pathlib import Path

from acdc.io import write_json

SEAL = "acdc-digests.json"


def seal(folder: str | Path, *, without: Collection[str] = ()) -> None:
    """Write the digests of all files in a folder, except those named, which other processes may still be writing."""
    folder = Path(folder)
    left_out = {SEAL, *without}
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in left_out)
    write_json(folder / SEAL, {path.relative_to(folder).as_posix(): _digest(path) for path in paths})


def find_change(folder: str | Path) -> str | None:
    """Return what has changed in a folder since it was sealed, or None."""
    folder = Path(folder)
    try:
        digests = json.loads((folder / SEAL).read_bytes())
    except FileNotFoundError:
        return f"it has no {SEAL}, which is written last"
    except (OSError, ValueError) as error:
        return f"{SEAL} cannot be read ({error})"
    if not isinstance(digests, dict):
        return f"{SEAL} holds no digests"
    for name, digest in digests.items():
        try:
            if _digest(folder / name) != digest:
                return f"{name} does not match the digest written after it"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None


def newest_intact(parent: str | Path, pattern: str) -> Path | None:
    """Return the folder with the highest number at the end of its name that is as it was sealed, or None.

    A warning names each one that is skipped, and why.
    """
    numbered = [(int(end[0]), path) for path in Path(parent).glob(pattern) if (end := re.search(r"\d+$", path.name))]
    for _, path in sorted(numbered, reverse=True):
        change = find_change(path)
        if change is None:
            return path
        warnings.warn(f"Skipped a checkpoint, {path}: {change}", stacklevel=2)
    return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
