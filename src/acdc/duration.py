"""Lengths of training with their unit: "10ep", "500st", "10%"."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Unit = Literal["ep", "st", "%"]

_DURATION = re.compile(r"(-?[0-9]+(?:\.[0-9]+|/[1-9][0-9]*)?)(ep|st|%)")
_LONGEST = 40  # characters, which a fraction such as 1000/3 ep is far from
_UNITS: dict[Unit, str] = {"ep": "for epochs", "st": "for optimizer steps", "%": "of the total"}
ABSOLUTE: tuple[Unit, ...] = ("ep", "st")


def wrong(
    argument: str, received: object, allowed: str, instead: str, error: type[Exception] = ValueError
) -> Exception:
    """An error in four parts: what was set, what was received, what is allowed, what to type instead."""
    shown = repr(str(received) if isinstance(received, Duration) else received)
    if len(shown) > 200:  # a data loader full of tensors, say
        shown = f"<{type(received).__name__}>"
    return error(f"{argument}={shown}: {allowed}: {instead}")


def check_whole(argument: str, value: object, least: int, instead: str) -> None:
    allowed = f"it is a whole number, {least} or more"
    if not isinstance(value, int) or isinstance(value, bool):
        raise wrong(argument, value, allowed, instead, TypeError)
    if value < least:
        raise wrong(argument, value, allowed, instead)


def round_half_up(value: Fraction) -> int:
    """To the nearest whole number, halves up (Python's round would send 0.5 and 2.5 down but 1.5 up)."""
    return math.floor(value + Fraction(1, 2))


def number(value: Fraction) -> str:
    """10, 2.5 or, where no short decimal is exact, 1/3."""
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value else str(value)


@dataclass(frozen=True, repr=False)
class Duration:
    """A length of training with its unit: "10ep" (epochs), "500st" (optimizer steps) or "10%" (of the total)."""

    value: Fraction
    unit: Unit

    def __post_init__(self) -> None:
        if not isinstance(self.value, Fraction) or self.unit not in _UNITS:
            allowed = 'it holds a Fraction and one of "ep", "st", "%"'
            raise wrong("Duration", (self.value, self.unit), allowed, 'write Duration.parse("10ep")', TypeError)
        if self.value < 0 or (self.unit == "st" and self.value.denominator > 1):
            Duration.parse(str(self))  # refuses it and says why

    @classmethod
    def parse(
        cls, value: "str | Duration", argument: str = "duration", units: Sequence[Unit] = tuple(_UNITS)
    ) -> "Duration":
        """Read "10ep", "500st" or "2.5%" (a Duration passes through); an error calls it `argument`."""
        readable = isinstance(value, str | Duration)
        match = _DURATION.fullmatch(str(value)) if readable else None
        if len(str(value)) > _LONGEST:
            allowed = f"durations have at most {_LONGEST} characters"
        elif not match:
            allowed = "durations carry a unit"
        elif match[1].startswith("-"):
            allowed = "durations are not negative"
        elif match[2] == "st" and Fraction(match[1]).denominator > 1:
            allowed = "optimizer steps are whole"
        elif match[2] not in units:
            allowed = "it cannot be a percentage"
        else:
            return cls(Fraction(match[1]), match[2])  # pyright: ignore[reportArgumentType]
        digits = re.search(r"[0-9]+(\.[0-9]+)?", str(value))
        amount = digits[0] if digits and len(digits[0]) <= _LONGEST else "10"
        typed = {"ep": amount, "st": max(1, round_half_up(Fraction(amount))), "%": amount}
        *choices, last = (f'"{typed[unit]}{unit}" {_UNITS[unit]}' for unit in units)
        instead = f"write {', '.join(choices)} or {last}"
        raise wrong(argument, value, allowed, instead, ValueError if readable else TypeError)

    def of(self, total: "Duration | None") -> tuple[Fraction, Unit]:
        """Value and unit, with a percentage expressed in the unit of the total."""
        return (self.value * total.value / 100, total.unit) if self.unit == "%" and total else (self.value, self.unit)

    def __str__(self) -> str:
        return f"{number(self.value)}{self.unit}"

    def __repr__(self) -> str:
        return f"Duration.parse({str(self)!r})"
