"""A small file system in memory, which can be filled and made read-only: the errors are the operating system's own."""

import contextlib
import errno
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

SIZE = 8  # MiB: several runs' files


class Disk:
    def __init__(self, path: Path) -> None:
        self.path, self._filler = path, path / "filler"

    def fill(self, left: int) -> None:
        """Leave about so many bytes."""
        with self._filler.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017
            file.truncate(max(0, file.tell() - left))

    def make_room(self) -> None:
        self._filler.unlink(missing_ok=True)

    def read_only(self) -> None:
        """Wait for a moment when no file is open for writing: the system allows no other."""
        while subprocess.run(["mount", "-o", "remount,ro", self.path], capture_output=True, check=False).returncode:
            time.sleep(0.01)

    def writable(self) -> None:
        subprocess.run(["mount", "-o", "remount,rw", self.path], check=True)


def why_not() -> str | None:
    """Return why there can be no such file system here, or None."""
    return None if os.geteuid() == 0 else "mounting a tmpfs needs root"


@contextlib.contextmanager
def mounted() -> Iterator[Disk]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}m", "drill", folder], check=True)
        try:
            yield Disk(Path(folder))
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
