"""JSON as this library writes it: stricter than json.loads, which takes NaN, keys twice and numbers of any length."""

import json
from collections.abc import Mapping
from typing import Any

_MOST_DIGITS = 19  # of a whole number: those of 64 bits


def parse(content: bytes) -> Any:
    """Return what UTF-8 text holds; a ValueError where it is not such JSON."""
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
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{shown(twice)} stands there twice")
    return found


def shown(value: Any) -> str:
    """As JSON writes it, cut where it is long."""
    if isinstance(value, Mapping | list):
        return "{…}" if isinstance(value, Mapping) else "[…]"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
