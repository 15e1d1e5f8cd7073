"""Errors that are the user's to fix: shown as they are, without a traceback."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class UsageError(Exception):
    """All that is wrong with a command, at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n      ".join(self.problems))

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...]]]:
        """Errors of rank 0 travel to the others."""
        return type(self), (self.problems,)


class Problems(list[str]):
    """What was found to be wrong so far, to be told at once."""

    def attempt(self, act: Callable[..., T], *given: Any) -> T | None:
        """What `act` makes of what is given; None where it fails, and why is noted."""
        if any(value is None for value in given):
            return None  # what it builds on has failed, and said so
        try:
            return act(*given)
        except UsageError as error:
            self.extend(error.problems)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            self.append(str(error))
        return None
