"""JSON files into dataclasses: the types of the fields are what a file must hold.

A file from outside may hold anything, so every way in which it can be wrong ends in a RecordError that names the file,
the line, the key, what stands there and what is expected. Keys that a class does not know are ignored: a newer version
wrote them.
"""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from acdc.limits import Limits
from acdc.runs.strict_json import parse, shown

T = TypeVar("T")
_MOST_BYTES = 256 * 2**20  # of one file; metrics of a hundred thousand epochs take 50 MB
_MOST_DEPTH = 20  # of settings that are kept as they are
_MOST_LETTERS = 10_000
_LARGEST = 1e100  # sums and squares of such numbers are finite
_NOUNS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class RecordError(ValueError):
    """A file of a run that cannot be read: the file, the line where it has lines, and the reason."""

    def __init__(self, path: Path, problem: str, line: int | None = None) -> None:
        super().__init__(path, problem, line)  # errors of rank 0 travel to the others, whole
        self.path, self.problem, self.line = path, problem, line

    def __str__(self) -> str:
        place = f"{self.path} line {self.line}" if self.line is not None else str(self.path)
        return f"{place}: {self.problem}; put the run's own file back"


@dataclass(frozen=True)
class Lines(Generic[T]):
    """The lines of a file that could be read, and the errors of those that could not, by their numbers."""

    records: list[T]
    texts: list[bytes]  # of the records
    cut: dict[int, RecordError]  # no JSON object: a crash cuts the last line
    wrong: dict[int, RecordError]  # objects without what they must hold
    count: int

    def checked(self) -> list[T]:
        """Return the records without the lines that a crash has cut; raise the error of one that is wrong."""
        if self.wrong:
            raise next(iter(self.wrong.values()))
        return self.records


def whole() -> Any:
    """A field that holds the object itself, with the keys that the class does not name."""
    return field(default_factory=dict, repr=False, metadata={"whole": True})


# Files


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the object that a JSON file holds, or None where there is no such file."""
    content = _bytes(path)
    if content is None:
        return None
    try:
        value = parse(content)
    except ValueError as error:
        raise RecordError(path, f"it cannot be read ({error})") from None
    if not isinstance(value, dict):
        raise RecordError(path, f"it holds {shown(value)}: expected a table of settings, in {{ }}")
    return value


def read(kind: type[T], path: Path) -> T | None:
    """Return what a JSON file holds as a record of this class, or None where there is no such file."""
    value = read_object(path)
    if value is None:
        return None
    try:
        return decode(kind, value)
    except ValueError as error:
        raise RecordError(path, str(error)) from None


def require(kind: type[T], path: Path) -> T:
    """Return what a JSON file holds as a record of this class; a RecordError also where there is no such file."""
    found = read(kind, path)
    if found is None:
        raise RecordError(path, "it is not there")
    return found


def read_lines(kind: type[T], path: Path) -> Lines[T] | None:
    """Read a file of one JSON object in each line; None where there is no such file."""
    content = _bytes(path)
    if content is None:
        return None
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    found = Lines[T]([], [], {}, {}, len(lines))
    for number, line in enumerate(lines, 1):
        try:
            value = parse(line)
            if not isinstance(value, dict):
                raise ValueError("no object")
        except ValueError as error:
            found.cut[number] = RecordError(path, f"it cannot be read ({error})", number)
            continue
        try:
            found.records.append(decode(kind, value))
            found.texts.append(line)
        except ValueError as error:
            found.wrong[number] = RecordError(path, str(error), number)
    return found


def _bytes(path: Path) -> bytes | None:
    try:
        if path.exists() and not path.is_file():
            raise RecordError(path, "expected a file, and it is none")
        if path.is_file() and path.stat().st_size > _MOST_BYTES:
            raise RecordError(path, f"expected at most {_MOST_BYTES:,} bytes, and it has {path.stat().st_size:,}")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise RecordError(path, f"it cannot be read ({error.strerror})") from None


# Values


def decode(kind: type[T], value: Any, key: str = "") -> T:
    """Return parsed JSON as a record of this class; or a ValueError about the first key that is wrong."""
    if not isinstance(value, Mapping):
        raise _mismatch(key, value, "a table")
    given: dict[str, Any] = {}
    for name, (hint, needed, as_it_is) in _fields(kind).items():
        inner = _inside(key, name)
        if as_it_is:
            given[name] = _convert(hint, value, key)
        elif name in value:
            given[name] = _convert(hint, value[name], inner)
        elif needed:
            raise ValueError(f"{inner} is missing")
    try:
        return kind(**given)
    except ValueError as error:  # what single values cannot show
        raise ValueError(f"{key}.{error}" if key else str(error)) from None


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool, bool]]:
    """The type of each field, whether it must be there, and whether it is the whole object."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        f.name: (
            hints[f.name],
            f.default is MISSING and f.default_factory is MISSING,
            bool(f.metadata.get("whole")),
        )
        for f in fields(kind)
    }


def _convert(hint: Any, value: Any, key: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(inner[0], inner[1], value, key)
    if origin in (Union, UnionType):
        (kind,) = (kind for kind in inner if kind is not NoneType)
        return None if value is None else _convert(kind, value, key)
    if origin is Literal:
        if not isinstance(value, str) or value not in inner:
            raise _mismatch(key, value, f"one of {', '.join(map(shown, inner))}")
        return value
    if origin in (tuple, list):
        if not isinstance(value, list):
            raise _mismatch(key, value, "a list")
        return origin(_convert(inner[0], item, f"{key}[{index}]") for index, item in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise _mismatch(key, value, "a table")
        return {_text(name, key): _convert(inner[1], item, _inside(key, name)) for name, item in value.items()}
    if is_dataclass(hint):
        return decode(hint, value, key)  # pyright: ignore[reportArgumentType]
    return _plain(value, key) if hint is Any else _simple(hint, value, key)


def _limited(kind: Any, limits: Limits, value: Any, key: str) -> Any:
    found = _simple(kind, value, key, str(limits))
    if complaint := limits.complaint(found):
        raise _mismatch(key, value, f"{_NOUNS[kind]}, {complaint}")
    return found


def _simple(kind: Any, value: Any, key: str, range_: str = "") -> Any:
    """A text, a number or a truth value of the very type: true is no number, and 1.5 is not whole."""
    if kind is str and isinstance(value, str):
        return _text(value, key)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST:
        return float(value)
    raise _mismatch(key, value, ", ".join(filter(None, (_NOUNS[kind], range_))))


def _text(value: str, key: str) -> str:
    if len(value) > _MOST_LETTERS:
        raise _mismatch(key, value, f"at most {_MOST_LETTERS:,} letters")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a pair, which no file can be written with
        raise _mismatch(key, value, "text") from None
    return value


def _plain(value: Any, key: str, depth: int = 0) -> Any:
    """A value that is kept as it is, of any type: settings of a recipe, of this version or another."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"{key[:40]}…: expected tables nested at most {_MOST_DEPTH} deep")
    if isinstance(value, Mapping):
        return {_text(name, key): _plain(item, _inside(key, name), depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, f"{key}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise _mismatch(key, value, "a number")
    return _text(value, key) if isinstance(value, str) else value


def _inside(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _mismatch(key: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{key} = {shown(value)}: expected {expected}" if key else f"expected {expected}")
