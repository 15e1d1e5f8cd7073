"""Words for mistakes in a recipe: what was meant, what is allowed."""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from acdc.spelling import did_you_mean, fold, meant
from acdc.train.mistakes import SettingError
from acdc.train.recipe import Recipe


def no_such(table: str, key: str, known: Iterable[str]) -> SettingError:
    """With the setting that was meant: of this table, or of the same name in another one."""
    known = list(known)
    instead = did_you_mean(key, known)
    if fold(key) not in map(fold, known):
        instead = meant(elsewhere(key)) or instead
    allowed = f"allowed are {', '.join(known)}" if known else "there are none"
    return SettingError(f"{table}.{key}", f": no such setting; {allowed}{instead}")


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(list(value) if isinstance(value, tuple) else value)


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
