"""Errors that are the user's to fix: shown as they are, without a traceback."""

from collections.abc import Sequence


class UsageError(Exception):
    """All that is wrong with a command, at once."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n      ".join(self.problems))

    def __reduce__(self) -> tuple[type, tuple[tuple[str, ...]]]:
        """Errors of rank 0 travel to the others."""
        return type(self), (self.problems,)
