"""Errors and warnings about a recipe, as data: each finding knows the setting that it is about."""

import reprlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from acdc.errors import ArgumentError

if TYPE_CHECKING:
    from acdc.recipes.schema import Recipe

_LETTERS = 60
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 6, 20, 20
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = _LETTERS


class SettingError(ArgumentError):
    """A setting that cannot be used. Its text shows the value as in a recipe: `data.flip = true`."""

    def __str__(self) -> str:
        value = f" = {show_setting(self.received)}" if self.was_received else ""
        advice = "; ".join(filter(None, (self.allowed, self.instead)))
        return ": ".join(filter(None, (f"{self.argument}{value}", advice)))


@dataclass(frozen=True)
class Finding:
    """An error or a warning about a recipe. An error prevents training; a warning is printed when training begins.

    `depends` names other settings that the finding follows from: if one of them is wrong, it says nothing new.
    """

    error: ArgumentError
    level: Literal["error", "warning"] = "error"
    depends: tuple[str, ...] = ()

    @classmethod
    def of(cls, error: Exception) -> "Finding":
        """Return an error as a finding; an error without fields is not about any setting."""
        return cls(error if isinstance(error, ArgumentError) else SettingError("", allowed=str(error)))

    @property
    def setting(self) -> str:
        """Return the setting's dotted name, such as "train.epochs"; "" if the finding is about none."""
        return self.error.argument.partition("[")[0]

    @property
    def table(self) -> str:
        return self.setting.partition(".")[0]

    def follows_from(self, others: "Iterable[Finding]") -> bool:
        """Return True if one of the others is about the same setting, its table, or one that this depends on."""
        named = {other.setting for other in others} - {""}
        mine = {*self.depends, self.setting} - {""}
        return any(one == name or one.startswith(f"{name}.") for one in mine for name in named)

    def __str__(self) -> str:
        return str(self.error)


class RecipeError(ValueError):
    """A recipe that cannot be trained: its source, every error in it, and as much of it as could be read.

    `recipe` has defaults in place of values that could not be read; it is None if a model or data set has no name.
    """

    def __init__(self, source: str, findings: Sequence[Finding], recipe: "Recipe | None" = None) -> None:
        super().__init__(source, findings, recipe)
        self.source, self.findings, self.recipe = source, tuple(findings), recipe

    @property
    def problems(self) -> tuple[str, ...]:
        """Return the text of each finding."""
        return tuple(map(str, self.findings))

    def __str__(self) -> str:
        return "\n  ".join((f"{self.source}:", *self.problems))


def show_setting(value: Any) -> str:
    """Return a value as in a recipe, shortened if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= _LETTERS else f'"{value[:_LETTERS]}…"'
    try:
        return _SHORT.repr(list(value) if isinstance(value, tuple) else value)
    except ValueError:  # Python does not print numbers of more than 4,300 digits
        return "a number of thousands of digits"


@contextmanager
def naming_settings() -> Iterator[None]:
    """Translate the arguments in errors of methods and schedules to their names in a recipe."""
    try:
        yield
    except SettingError:
        raise
    except (ValueError, TypeError) as error:
        raise as_setting(error) from None


def as_setting(error: Exception) -> ArgumentError:
    """Return a method's error with its argument named as in a recipe."""
    if not isinstance(error, ArgumentError):
        error = ArgumentError("", allowed=str(error))
    root = error.argument.partition("[")[0].partition(".")[0]
    if root == "method":  # a name that no method has
        return error.about("method.name")
    if root == "epochs":
        return error.under("train")
    if root in ("phases", "total", "steps_per_epoch", "compress", "decompress"):
        return error.under("method", "schedule")
    return error.under("method")
