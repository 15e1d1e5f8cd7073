"""Knobs that several methods share: checks of their values, and times in steps."""

import math
from typing import Any, TypeGuard

from acdc.core.method import Idle
from acdc.errors import ArgumentError
from acdc.schedule import ABSOLUTE, Duration


def check_fraction(knob: str, value: object, instead: str, of: str = "the run") -> None:
    if not (_is_number(value) and 0 <= value <= 1):
        allowed = f"expected a fraction of {of}, from 0 to 1"
        raise ArgumentError(knob, received=value, allowed=allowed, instead=f"write {knob}={instead}")


def check_positive(knob: str, value: object, instead: str) -> None:
    if not (_is_number(value) and value > 0):
        allowed = "expected a number above 0"
        raise ArgumentError(knob, received=value, allowed=allowed, instead=f"write {knob}={instead}")


def check_not_negative(knob: str, value: object, instead: str, kind: str = "a number") -> None:
    if not (_is_number(value) and 0 <= value < math.inf):
        allowed = f"expected {kind}, 0 or more"
        raise ArgumentError(knob, received=value, allowed=allowed, instead=f"write {knob}={instead}")


def check_every(value: str) -> None:
    """Raise unless updates are some epochs or steps apart."""
    if not Duration.parse(value, "every", ABSOLUTE).value:
        allowed = "updates must be some steps or epochs apart"
        raise ArgumentError("every", received=value, allowed=allowed, instead='write every="1st" or more')


def in_steps(length: str, steps_per_epoch: int | None) -> int:
    """Convert "1ep" or "100st", the time between two updates, to a number of steps, at least 1."""
    duration = Duration.parse(length, "every", ABSOLUTE)
    if duration.unit == "st":
        return max(1, int(duration.value))
    if steps_per_epoch is None:
        instead = "write acdc.attach(..., steps_per_epoch=…)"
        raise ArgumentError("every", received=length, allowed="epochs need steps_per_epoch", instead=instead)
    return max(1, round(duration.value * steps_per_epoch))


def never_updates(method: Any, last: int, total: int, steps_per_epoch: int | None) -> Idle | None:
    """Return why masks would never change, if the first update would come after `last`, the last step for one."""
    first = in_steps(method.every, steps_per_epoch)
    if first <= last:
        return None
    return Idle(method=type(method).title(), every=method.every, first=first, last=last, total=total)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
