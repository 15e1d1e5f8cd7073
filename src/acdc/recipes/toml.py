"""Values as TOML writes them: the standard library only reads it."""

import json
from collections.abc import Mapping
from typing import Any


def write_value(value: Any) -> str:
    """One value, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {write_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(write_value, value))}]"
    return repr(value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)
