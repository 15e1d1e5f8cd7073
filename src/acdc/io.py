"""Files that are whole or not there, and that others may read as any other."""

import os
from pathlib import Path


def write_bytes(path: Path, content: bytes) -> None:
    """All or nothing: under a temporary name first, then renamed."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def usual_mode() -> int:
    """Of a new file: what makes one under a temporary name may let only its owner read it."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
