"""When methods act, in steps."""

from acdc.schedule import Duration


def in_steps(length: str, steps_per_epoch: int | None) -> int:
    """ "1ep" or "100st" as a number of steps, at least 1."""
    duration = Duration.parse(length)
    if duration.unit == "ep":
        if steps_per_epoch is None:
            raise ValueError(
                f'every="{length}": epochs need steps_per_epoch; write acdc.attach(..., steps_per_epoch=…)'
            )
        return max(1, round(duration.value * steps_per_epoch))
    if duration.unit == "%":
        raise ValueError(f'every="{length}": expected epochs or steps; write "1ep" or "100st"')
    return max(1, int(duration.value))


def fraction(knob: str, value: float, instead: str, of: str = "the run") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{knob}={value!r}: expected a fraction of {of}, from 0 to 1; write {knob}={instead}")
