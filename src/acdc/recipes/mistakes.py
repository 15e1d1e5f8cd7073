"""What is wrong with a recipe: each mistake knows the setting it is about, and all of a recipe's are told at once."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acdc.recipes.schema import Recipe

_KNOB = re.compile(r"(\w+)(=|\[|\.| is not set| gives )")  # as an error begins that is about a knob


class SettingError(ValueError):
    """One mistake, raised or kept among others. Its words begin with the setting, unless it is about none.

    Code asks `setting`, `table` and `key`; the words are for people, and may change.
    """

    def __init__(self, setting: str, said: str) -> None:
        super().__init__(setting, said)
        self.setting = setting
        self.table, _, self.key = setting.partition(".")

    @classmethod
    def of(cls, error: Exception) -> "SettingError":
        """As it is; of any other error the words, about no setting in particular."""
        return error if isinstance(error, cls) else cls("", str(error))

    def __str__(self) -> str:
        return "".join(self.args)


class RecipeError(ValueError):
    """All that is wrong with a recipe; and the recipe without that, if so much of it can be read."""

    def __init__(self, source: str, mistakes: Iterable[SettingError], recipe: "Recipe | None" = None) -> None:
        self.source, self.mistakes, self.recipe = source, tuple(mistakes), recipe
        super().__init__("\n  ".join((f"{source}:", *self.problems)))

    @property
    def problems(self) -> tuple[str, ...]:
        """In words."""
        return tuple(map(str, self.mistakes))


def of_knob(table: str, text: str) -> SettingError:
    """What methods and models say of a knob, which begins their words, as the mistake of a recipe: they know nothing of
    tables, and this is the one place that reads their words."""
    if found := _KNOB.match(text):
        return SettingError(f"{table}.{found[1]}", text[found.end(1) :])
    return SettingError(table, f": {text}")
