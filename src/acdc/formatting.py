"""Formatting of numbers and names for people, shared by tables, reports and the console."""

import math
import re
import statistics
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal

LONG = 1e12  # from here on numbers are written with an exponent
_PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


def fixed(value: float, digits: int = 1) -> str:
    """Round halves up, as people do: 99.25 becomes "99.3". Binary noise in distant digits is ignored.

    Numbers of more than 12 digits, such as a failed model's perplexity, are written as "2.80e+17".
    """
    if abs(value) >= LONG:
        return f"{value:.2e}"
    return str(Decimal(f"{value:.9f}").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def percent(fraction: float, digits: int = 1) -> str:
    """Format a fraction with a fixed number of digits: "90.0 %"."""
    return f"{fixed(100 * fraction, digits)} %"


def short_percent(fraction: float) -> str:
    """Format a fraction with no more digits than it needs: "90 %", "99.5 %". Only 0 itself is shown as 0."""
    if 0 < fraction < 0.0005:
        return "<0.1 %"
    return fixed(100 * fraction).removesuffix(".0") + " %"


def bar_label(value: float) -> str:
    """Format the number beside a bar: rounded to a whole, except small values, which are never shown as 0."""
    if not value or value >= 0.95:
        return fixed(value, 0)
    return fixed(value) if value >= 0.05 else "<0.1"


def times(ratio: float) -> str:
    """Format a fraction of the dense cost as the paper does: "0.51x"."""
    return f"{ratio:.2f}x"


def si(value: float, unit: str = "", *, digits: int = 3) -> str:
    """Format a number with an SI prefix: "1.73 GFLOPs", "146 MB"; without a unit "1.73 G".

    It has `digits` significant digits, or more if there are more before the decimal point.
    """
    factor, prefix = si_prefix(value)
    number = round(value / factor, max(0, digits - len(str(int(value / factor)))))
    if number >= 1000 and factor < _PREFIXES[0][0]:  # 999.9 M rounds up to the next prefix
        return si(1000 * factor, unit, digits=digits)
    return f"{number:g} {prefix}{unit}".rstrip()


def si_prefix(value: float) -> tuple[float, str]:
    """Return the largest power of a thousand that is not above `value`, and its prefix: (1e9, "G")."""
    return next(((factor, prefix) for factor, prefix in _PREFIXES if value >= factor), _PREFIXES[-1])


def duration(seconds: float) -> str:
    """Format a time with its two largest units at most: "35 ms", "4.2 s", "12 min", "3 h 05 min", "6 days"."""
    if seconds < 0.1:
        return f"{1000 * seconds:.2g} ms"
    if seconds < 100:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days"


def mean_std(values: Sequence[float], *, scale: float = 100, digits: int = 2) -> str:
    """Format mean ± standard deviation (n − 1); a single value has no deviation."""
    if not values:
        return "–"
    mean = fixed(scale * statistics.fmean(values), digits)
    return f"{mean} ± {fixed(scale * statistics.stdev(values), digits)}" if len(values) > 1 else mean


# Comparing two accuracies


def gap(value: float, other: float, noun: str, *, uncertainty: float = 0.0, limited_by: str = "") -> str:
    """Describe how far an accuracy is from another: "0.2 points below its dense twin".

    They are level if they differ by no more than `uncertainty`, which `limited_by` explains: "400 images".
    """
    points = float(fixed(100 * value)) - float(fixed(100 * other))  # as both are shown
    if abs(points) < 0.05:
        return f"level with {noun}"
    if abs(value - other) <= uncertainty:
        return f"level with {noun}{f', as far as {limited_by} can tell' if limited_by else ''}"
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {noun}"


def uncertainty(values: Sequence[float], others: Sequence[float], images: int | None) -> float:
    """Return how far apart the means of two lists of accuracies may be without it meaning anything.

    This is one standard deviation over seeds, the larger of the two. For a single run, which has none, it is two
    standard errors of a fraction measured on that many test images.
    """
    deviations = [statistics.stdev(some) for some in (values, others) if len(some) > 1]
    if len(deviations) < 2 and images:
        fraction = (statistics.fmean(values) + statistics.fmean(others)) / 2
        deviations.append(2 * math.sqrt(fraction * (1 - fraction) / images))
    return max(deviations, default=0.0)


def indistinguishable(values: Sequence[float], others: Sequence[float], images: int | None) -> bool:
    """Return True if the means of two lists of accuracies look the same, or are too close to tell apart."""
    one, other = statistics.fmean(values), statistics.fmean(others)
    return fixed(100 * one) == fixed(100 * other) or abs(one - other) <= uncertainty(values, others, images)


# Names


def join_names(names: Sequence[str]) -> str:
    """Join names as in a sentence: "RigL, SET and GMP", "RigL, SET and 4 others"."""
    parts = [*names] if len(names) <= 3 else [*names[:2], f"{len(names) - 2} others"]
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))


def capitalize(text: str) -> str:
    """Capitalize the first letter and leave the rest alone."""
    return text[:1].upper() + text[1:]


def shorten(text: str, length: int) -> str:
    """Cut off the beginning of a long name: its end distinguishes it from others."""
    return text if len(text) <= length else "…" + text[1 - length :]


def keep_units_together(text: str) -> str:
    """Put a no-break space between numbers and their units, so that lines never break there."""
    return re.sub(r"(\d) (?=%|[kMGTPE]?(?:FLOPs|B)\b|points)", "\\1\u00a0", text)
