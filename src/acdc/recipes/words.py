"""Words for mistakes in a recipe: what was meant, what is allowed."""

import reprlib
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from acdc.errors import did_you_mean, fold, suggest
from acdc.recipes.mistakes import SettingError
from acdc.recipes.schema import Recipe

_LETTERS = 60
_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxlist, _SHORT.maxdict = 6, 20, 20
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = _LETTERS


def no_such(table: str, key: str, known: Iterable[str]) -> SettingError:
    """With the setting that was meant: of this table, or of the same name in another one."""
    known = list(known)
    instead = did_you_mean(key, known)
    if fold(key) not in map(fold, known):
        instead = suggest(elsewhere(key)) or instead
    allowed = f"allowed are {', '.join(known)}" if known else "there are none"
    return SettingError(f"{table}.{key}", f": no such setting; {allowed}{instead}")


def shown(value: Any) -> str:
    """As a recipe writes it, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= _LETTERS else f'"{value[:_LETTERS]}…"'
    return short(list(value) if isinstance(value, tuple) else value)


def short(value: Any) -> str:
    """As Python writes it, cut where it is long."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not write out numbers of more than 4,300 digits
        return "a number of thousands of digits"


def elsewhere(key: str) -> list[str]:
    """The settings of this name, in whatever table."""
    return [
        f"{table}.{known}"
        for table, part in parts_of_a_recipe().items()
        for known in keys_of(part)
        if fold(known) == fold(key)
    ]


def parts_of_a_recipe() -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(Recipe).items() if is_dataclass(hint)}


def keys_of(part: type) -> list[str]:
    return [f.name for f in fields(part) if f.name != "options"]
