"""Seeded damage to JSON and TOML files: leaves retyped, keys gone, bytes lost, and files that are something else."""

import json
import random
from typing import Any

NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, -1e308, 5e-324, 10**18, 10**30, 10**400, "", "x", "\x00", "\ud800",
    "\u202e", "a" * 20_000, "$\\frac{", "../../x", "nan", "1ep", [], [None], [[]], {}, {"": None}, {"x": {"y": []}},
    float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
WHOLE: tuple[bytes, ...] = (
    b"", b"{}", b"[]", b"null", b"0", b'""', b"\xff\xfe", b"\x00" * 100, b"[" * 100_000, b'{"a":' * 100_000,
    b'{"a": ' + b"9" * 5_000 + b"}", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\n\n\n", b"{}\n" * 50,
)  # fmt: skip


def damaged_value(value: Any, dice: random.Random) -> Any:
    """The value with one to three of its leaves or branches replaced, removed or moved."""
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        holder, key = _place(value, dice)
        if holder is None:
            return dice.choice(NASTY)
        kind = dice.random()
        if kind < 0.2:
            del holder[key]
        elif kind < 0.85:
            holder[key] = dice.choice(NASTY)
        elif isinstance(holder[key], int | float) and abs(holder[key]) < 1e300:
            holder[key] = holder[key] * dice.choice((-1, 0, 0.5, 2, 1000, 10**9)) + dice.choice((0, 1, -1))
        else:
            holder[key] = [holder[key]] if kind < 0.93 else str(holder[key])
    return value


def damaged_bytes(content: bytes, dice: random.Random) -> bytes:
    """Bytes cut off, overwritten, repeated or swapped; or another file altogether."""
    kind, at = dice.random(), dice.randrange(len(content) or 1)
    if kind < 0.25:
        return content[:at]
    if kind < 0.5:
        noise = bytes(dice.randrange(256) for _ in range(dice.choice((1, 1, 4, 40))))
        return content[:at] + noise + content[at + len(noise) :]
    if kind < 0.65:
        return content[:at] + content[at // 2 : at] + content[at:]
    if kind < 0.75:
        return content[:at] + b"[" * dice.choice((30, 2_000, 50_000)) + content[at:]
    return dice.choice(WHOLE)


def damaged_json(content: bytes, dice: random.Random, *, lines: bool) -> bytes:
    """A JSON file, or one of JSON lines, in three of four cases still JSON."""
    if dice.random() < 0.25 or not content.strip():
        return damaged_bytes(content, dice)
    if not lines:
        return json.dumps(damaged_value(json.loads(content), dice)).encode()
    rows = [json.loads(line) for line in content.splitlines()]
    for _ in range(dice.choice((1, 1, 3, len(rows)))):
        at = dice.randrange(len(rows))
        rows[at] = damaged_value(rows[at], dice)
    if dice.random() < 0.15:
        dice.shuffle(rows)
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _place(value: Any, dice: random.Random) -> tuple[Any, Any]:
    """Somewhere in it, each depth as likely as going on; None where it holds nothing."""
    holder, key = None, None
    while isinstance(value, dict | list) and value and (holder is None or dice.random() < 0.75):
        holder, key = value, dice.choice(list(value) if isinstance(value, dict) else range(len(value)))
        value = value[key]
    return holder, key
