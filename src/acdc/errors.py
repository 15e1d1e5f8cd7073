"""Errors as data: the argument that was set, the value received, what is allowed, and what to type instead.

Code reads the fields of an error and never its text. A caller that knows a value by a longer name gives the error that
name: a method's error about `sparsity` becomes one about `method.sparsity` in a recipe, by `error.under("method")`.
"""

import pickle
import reprlib
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Self, TypeVar

T = TypeVar("T")

_NOTHING: Any = object()
_LONGEST = 200  # characters of a received value: a data loader full of tensors would fill the screen


class ArgumentError(ValueError):
    """A value that cannot be used; its text is "argument=received: allowed; instead".

    argument  the dotted name of what was set, such as "sparsity" or "method.sparsity"; "" where it has none.
    received  the value; left out where the mistake is that none was given.
    allowed   what is expected, or why the value is refused.
    instead   what to type instead.
    """

    def __init__(self, argument: str, received: Any = _NOTHING, allowed: str = "", instead: str = "") -> None:
        super().__init__(argument, received, allowed, instead)
        self.argument = argument
        self.received = received
        self.allowed = allowed
        self.instead = instead

    @property
    def was_received(self) -> bool:
        """Return True if a value was given at all."""
        return self.received is not _NOTHING

    def under(self, *outer: str) -> Self:
        """Return the same error about an argument of `outer`: "sparsity" under "method" is "method.sparsity"."""
        return self.about(".".join(filter(None, (*outer, self.argument))))

    def about(self, argument: str) -> Self:
        """Return the same error under another name."""
        return type(self)(argument, self.received, self.allowed, self.instead)

    def __str__(self) -> str:
        value = f"={show(self.received)}" if self.was_received else ""
        advice = "; ".join(filter(None, (self.allowed, self.instead)))
        return ": ".join(filter(None, (f"{self.argument}{value}", advice)))

    def __reduce__(self) -> Any:
        """Make the error picklable whatever was received: a value that cannot be pickled is sent as text."""
        received = self.received
        try:
            pickle.dumps(received)
        except Exception:  # pickle passes on whatever the value's own code raises
            received = Shown(show(received))
        keywords = {"received": received} if self.was_received else {}
        return _rebuild, (type(self), self.argument, keywords, self.allowed, self.instead)


class ArgumentTypeError(ArgumentError, TypeError):
    """A value of the wrong type."""


class ConflictError(ArgumentError):
    """A value that does not suit another argument's: it may be right once that one is changed."""


class NotFiniteError(ValueError):
    """Scores to choose weights by that are NaN or infinite; `where` names the layers."""

    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return (
            f"NaN or infinite scores in {self.where}: the k largest are undefined. Training has most likely diverged; "
            "resume from an earlier checkpoint with a lower learning rate or gradient clipping"
        )


class Shown:
    """A stand-in for a received value that cannot be pickled, or whose own repr would not help."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _rebuild(
    kind: type[ArgumentError], argument: str, keywords: dict[str, Any], allowed: str, instead: str
) -> ArgumentError:
    return kind(argument, **keywords, allowed=allowed, instead=instead)


class UsageError(Exception):
    """A command that cannot run, with all of its problems at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n      ".join(self.problems))

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...]]]:
        """Make an error of rank 0 picklable, for the other ranks."""
        return type(self), (self.problems,)


class Problems(list[str]):
    """A list of problems, collected so that a user reads all of them at once."""

    def attempt(self, act: Callable[..., T], *arguments: Any) -> T | None:
        """Return `act(*arguments)`; if it fails, record why and return None."""
        if any(value is None for value in arguments):
            return None  # an earlier attempt failed, and its reason is recorded
        try:
            return act(*arguments)
        except UsageError as error:
            self.extend(error.problems)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            self.append(str(error))
        return None


def check_whole(argument: str, value: object, least: int, instead: str) -> None:
    """Raise unless `value` is a whole number, `least` or more."""
    allowed = f"expected a whole number, {least} or more"
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentTypeError(argument, value, allowed, instead)
    if value < least:
        raise ArgumentError(argument, value, allowed, instead)


def wrong(argument: str, received: Any, allowed: str, instead: str) -> ArgumentError:
    return ArgumentError(argument, received, allowed, instead)


def show(value: Any) -> str:
    """Return the repr of `value`, shortened if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print numbers of more than 4,300 digits
        return "a number of thousands of digits"
    if len(text) <= _LONGEST:
        return text
    return reprlib.repr(value) if isinstance(value, str | int) else f"<{type(value).__name__}>"


def did_you_mean(word: object, known: Iterable[str], *, most: int = 1) -> str:
    """Return "; did you mean …?" with the known words closest to `word`, or "" if none is close."""
    folded = {fold(candidate): candidate for candidate in known}
    return suggest([folded[near] for near in get_close_matches(fold(str(word)), folded, n=most)])


def suggest(words: Sequence[str]) -> str:
    """Return "; did you mean …?" with these words, or "" if there are none."""
    return f"; did you mean {' or '.join(words)}?" if words else ""


def fold(word: str) -> str:
    """Return a word without the things people get wrong: capitals, hyphens and underscores."""
    return word.lower().replace("-", "").replace("_", "")
