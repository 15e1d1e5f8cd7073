"""Checks nested data against types: JSON into dataclasses, and state dicts against TypedDicts. Pure Python.

    decode(EpochRow, parse(line))        parsed JSON as a record; keys that the class does not name are ignored
    check(state, Contents, "state")      plain data and tensors, unchanged; other keys are left alone

Data from elsewhere may hold anything, so anything wrong with it raises a DataError that names the first wrong part:
`inner.sizes[3] = "x": expected a whole number, 0 or more`. A type is a class, a dataclass, a TypedDict,
`T | None`, Literal, list[T], tuple[T, ...], tuple[A, B], dict[K, V] or one with a range:
`Annotated[int, Limits(least=0)]`.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

T = TypeVar("T")
_MOST_DEPTH = 20  # nesting of settings that are stored unchanged
_MOST_LETTERS = 10_000
_MOST_DIGITS = 19  # in a whole number of 64 bits
_LARGEST = 1e100  # sums and squares of such numbers are finite
_NOUNS: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class DataError(ValueError):
    """Data that does not match its type: where, what is expected, and what was found there, as text."""

    def __init__(self, path: str, expected: str, received: str = "") -> None:
        super().__init__(path, expected, received)
        self.path, self.expected, self.received = path, expected, received

    def under(self, outer: str) -> Self:
        """Return the same error about a part of `outer`."""
        return type(self)(_inside(outer, self.path), self.expected, self.received)

    def __str__(self) -> str:
        place = f"{self.path} = {self.received}" if self.received else self.path
        return f"{place}: expected {self.expected}" if place else f"expected {self.expected}"


class MissingError(DataError):
    """Data that lacks a required part."""

    def __init__(self, path: str, expected: str = "a value", received: str = "") -> None:
        super().__init__(path, expected, received)

    def __str__(self) -> str:
        return f"{self.path} is missing"


# Ranges


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The range of a number, written beside its type.

    `text` describes the range to people. `cap` is a distant bound that no real use comes near, and is mentioned only
    when exceeded.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    cap: float | None = None
    text: str = ""

    def complaint(self, value: float) -> str | None:
        """Return what is expected instead of `value`, or None if it lies in the range."""
        inside = (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )
        if not inside:
            return str(self)
        return f"{self}, and at most {self.cap:,}" if self.cap is not None and value > self.cap else None

    def __str__(self) -> str:
        if self.text:
            return self.text
        low = f"above {self.above:,}" if self.above is not None else f"{self.least:,}" if self.least is not None else ""
        high = f"below {self.below:,}" if self.below is not None else f"{self.most:,}" if self.most is not None else ""
        if low and high:
            return f"from {low} to {high}"
        if high:
            return high if self.below is not None else f"{high} or less"
        return low if self.above is not None else f"{low} or more"


Count = Annotated[int, Limits(least=0)]
AtLeastOne = Annotated[int, Limits(least=1)]
NonNegative = Annotated[float, Limits(least=0)]
Share = Annotated[float, Limits(least=0, most=1)]
Percent = Annotated[float, Limits(least=0, most=100)]
Epoch = Annotated[int, Limits(least=0, most=10_000_000)]

Plain = Annotated[Any, "plain"]
"""Numbers, strings, None, and lists, tuples and dicts of them, stored unchanged."""


def whole() -> Any:
    """Declare a field that holds the whole object, including keys that the class does not name."""
    return field(default_factory=dict, repr=False, metadata={"whole": True})


# JSON


def parse(content: bytes) -> Any:
    """Parse UTF-8 JSON text as this library writes it, or raise a ValueError.

    NaN, duplicate keys and endless numbers, all of which json.loads accepts, are refused.
    """
    try:
        text = content.decode("utf-8")
        return json.loads(text, parse_constant=_no_number, parse_int=_whole_number, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("brackets are nested too deeply") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _whole_number(text: str) -> int:
    if len(text.lstrip("-")) > _MOST_DIGITS:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{show(twice)} appears twice")
    return table


# Reading


def decode(kind: type[T], value: Any) -> T:
    """Return parsed JSON as an instance of this dataclass, or raise a DataError about the first wrong key."""
    return _JSON.read(kind, value, "")


def check(value: Any, kind: Any, name: str) -> None:
    """Raise a DataError about the first part of nested plain data and tensors that has the wrong type."""
    _STATE.read(kind, value, name)


@dataclass(frozen=True)
class _Reader:
    """A walk over data and its type, side by side.

    JSON has no tuples, and JSON files may come from anywhere: strings and numbers that no run writes are refused.
    """

    from_json: bool

    def read(self, kind: Any, value: Any, path: str) -> Any:
        origin, inner = get_origin(kind), get_args(kind)
        if kind is Any:
            return value
        if origin is NotRequired:
            return self.read(inner[0], value, path)
        if origin is Annotated:
            return self._plain(value, path) if kind == Plain else self._limited(inner[0], inner[1], value, path)
        if origin in (Union, UnionType):
            (some,) = (option for option in inner if option is not NoneType)
            return None if value is None else self.read(some, value, path)
        if origin is Literal:
            if not isinstance(value, str) or value not in inner:
                raise DataError(path, f"one of {', '.join(map(show, inner))}", show(value))
            return value
        if origin in (tuple, list):
            return origin(self._items(origin, inner, value, path))
        if origin in (dict, Mapping):
            table = _table(value, path)
            return {
                self.read(inner[0], key, f"a key of {path}"): self.read(inner[1], item, _inside(path, str(key)))
                for key, item in table.items()
            }
        if is_typeddict(kind) or is_dataclass(kind):
            return self._record(kind, _table(value, path), path)
        return self._simple(kind, value, path)

    def _record(self, kind: Any, table: Mapping[str, Any], path: str) -> Any:
        values: dict[str, Any] = {}
        for name, (hint, needed, as_it_is) in _fields(kind).items():
            if as_it_is:
                values[name] = self.read(hint, table, path)
            elif name in table:
                values[name] = self.read(hint, table[name], _inside(path, name))
            elif needed:
                raise MissingError(_inside(path, name))
        try:
            return kind(**values)
        except DataError as error:  # a problem that no single value shows
            raise error.under(path) from None

    def _items(self, origin: type, inner: tuple[Any, ...], value: Any, path: str) -> list[Any]:
        if not isinstance(value, list if self.from_json else origin):
            raise DataError(path, f"a {'tuple' if origin is tuple and not self.from_json else 'list'}", show(value))
        kinds = [inner[0]] * len(value) if origin is list or inner[1:] == (...,) else inner
        if len(kinds) != len(value):
            raise DataError(path, f"{len(kinds)} items, not {len(value)}", show(value))
        return [self.read(kind, item, f"{path}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value, strict=True))]

    def _limited(self, kind: Any, limits: Limits, value: Any, path: str) -> Any:
        number = self._simple(kind, value, path, str(limits))
        if complaint := limits.complaint(number):
            raise DataError(path, f"{_NOUNS[kind]}, {complaint}", show(value))
        return number

    def _simple(self, kind: Any, value: Any, path: str, limits: str = "") -> Any:
        """Read a value of exactly this type: true is not a number, and 1.5 is not a whole one."""
        if kind is str and isinstance(value, str):
            return self._text(value, path)
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool) and self._usable(value):
            return float(value)
        if kind is not float and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        noun = _NOUNS.get(kind, f"a {kind.__name__.lower()}")
        raise DataError(path, ", ".join(filter(None, (noun, limits))), show(value))

    def _usable(self, number: float) -> bool:
        return not self.from_json or abs(number) <= _LARGEST

    def _text(self, value: str, path: str) -> str:
        if not self.from_json:
            return value
        if len(value) > _MOST_LETTERS:
            raise DataError(path, f"at most {_MOST_LETTERS:,} characters", show(value))
        try:
            value.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, which cannot be written to a file
            raise DataError(path, "text", show(value)) from None
        return value

    def _plain(self, value: Any, path: str, depth: int = 0) -> Any:
        """Read a recipe's settings, written by this version or another."""
        if depth > _MOST_DEPTH:
            raise DataError(f"{path[:40]}…", f"tables nested at most {_MOST_DEPTH} deep")
        if isinstance(value, Mapping):
            return {
                self._plain(key, f"a key of {path}"): self._plain(item, _inside(path, str(key)), depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._plain(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, float) and self.from_json and not math.isfinite(value):
            raise DataError(path, "a number", show(value))
        if not isinstance(value, bool | int | float | str | NoneType):
            raise DataError(path, "plain data", show(value))
        return self._text(value, path) if isinstance(value, str) else value


_JSON, _STATE = _Reader(from_json=True), _Reader(from_json=False)


@cache
def _fields(kind: Any) -> dict[str, tuple[Any, bool, bool]]:
    """Return each field's type, whether it is required, and whether it is the whole object."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {name: (hint, name in kind.__required_keys__, False) for name, hint in hints.items()}
    return {
        f.name: (
            hints[f.name],
            f.default is MISSING and f.default_factory is MISSING,
            bool(f.metadata.get("whole")),
        )
        for f in fields(kind)
    }


def _table(value: Any, path: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise DataError(path, "a table", show(value) if path else "")
    return value


def _inside(path: str, name: str) -> str:
    return f"{path}.{name}" if path and not name.startswith("[") else f"{path}{name}"


def show(value: Any) -> str:
    """Return a value as JSON, shortened if it is long; a tensor by its shape and type."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"a tensor of shape {list(value.shape)} ({str(value.dtype).removeprefix('torch.')})"
    if isinstance(value, Mapping):
        return "{…}"
    if isinstance(value, list | tuple):
        return "[…]"
    if not isinstance(value, bool | int | float | str | NoneType):
        return type(value).__name__
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
