"""Reads the JSON files of a run as typed records.

A file from elsewhere may hold anything, so anything wrong with it raises a RecordError that names the file, the line,
the key, what it holds and what is expected. Keys that a class does not know are ignored: a newer version wrote them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from acdc.typed_data import DataError, decode, parse, show

T = TypeVar("T")
_MOST_BYTES = 256 * 2**20  # the largest file; metrics of a hundred thousand epochs take 50 MB


class RecordError(ValueError):
    """A file of a run that cannot be read: the file, the line if it has lines, and the reason."""

    def __init__(self, path: Path, problem: str, line: int | None = None) -> None:
        super().__init__(path, problem, line)  # errors of rank 0 are sent to the other ranks complete
        self.path, self.problem, self.line = path, problem, line

    def __str__(self) -> str:
        place = f"{self.path} line {self.line}" if self.line is not None else str(self.path)
        return f"{place}: {self.problem}; restore the run's own file"


@dataclass(frozen=True)
class Lines(Generic[T]):
    """The lines of a file that could be read, and the errors of those that could not, by line number."""

    records: list[T]
    texts: list[bytes]  # of the records
    cut: dict[int, RecordError]  # not a JSON object: a crash truncates the last line
    wrong: dict[int, RecordError]  # objects without what they must hold
    count: int

    def checked(self) -> list[T]:
        """Return the records without lines that a crash truncated; raise the error of a wrong one."""
        if self.wrong:
            raise next(iter(self.wrong.values()))
        return self.records


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is no such file."""
    content = _bytes(path)
    if content is None:
        return None
    try:
        value = parse(content)
    except ValueError as error:
        raise RecordError(path, f"it cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise RecordError(path, f"it holds {show(value)}: expected a table of settings, in {{ }}")
    return value


def read(kind: type[T], path: Path) -> T | None:
    """Return the contents of a JSON file as an instance of this class, or None if there is no such file."""
    value = read_object(path)
    if value is None:
        return None
    try:
        return decode(kind, value)
    except DataError as error:
        raise RecordError(path, str(error)) from None


def require(kind: type[T], path: Path) -> T:
    """Return the contents of a JSON file as an instance of this class; raise a RecordError if there is no such file."""
    record = read(kind, path)
    if record is None:
        raise RecordError(path, "it does not exist")
    return record


def read_lines(kind: type[T], path: Path) -> Lines[T] | None:
    """Read a file with one JSON object per line; None if there is no such file."""
    content = _bytes(path)
    if content is None:
        return None
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    result = Lines[T]([], [], {}, {}, len(lines))
    for number, line in enumerate(lines, 1):
        try:
            value = parse(line)
            if not isinstance(value, dict):
                raise ValueError("not an object")
        except ValueError as error:
            result.cut[number] = RecordError(path, f"it cannot be read ({error})", number)
            continue
        try:
            result.records.append(decode(kind, value))
            result.texts.append(line)
        except DataError as error:
            result.wrong[number] = RecordError(path, str(error), number)
    return result


def _bytes(path: Path) -> bytes | None:
    try:
        if path.exists() and not path.is_file():
            raise RecordError(path, "it is not a regular file")
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise RecordError(path, f"expected at most {_MOST_BYTES:,} bytes, but it has {path.stat().st_size:,}")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RecordError(path, f"it cannot be read ({error.strerror})") from None
