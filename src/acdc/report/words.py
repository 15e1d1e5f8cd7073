"""Numbers as a reader wants them."""

import math
import re
import statistics
from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal


def fixed(value: float, digits: int = 1) -> str:
    """Halves up, as people round: 99.25 is 99.3. Binary dust far behind the comma does not decide."""
    return str(Decimal(f"{value:.9f}").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def percent(value: float, digits: int = 1) -> str:
    return f"{fixed(100 * value, digits)} %"


def share(value: float) -> str:
    """90 %, 99.5 %, 0.3 %: no more digits than tell something; but what is not 0 is not said to be."""
    if 0 < value < 0.0005:
        return "<0.1 %"
    return fixed(100 * value).removesuffix(".0") + " %"


def mark(value: float) -> str:
    """A number beside a bar: whole, but for the smallest, which are not 0."""
    if not value or value >= 0.95:
        return fixed(value, 0)
    return fixed(value) if value >= 0.05 else "<0.1"


def whole(value: float) -> str:
    return f"{100 * value:.0f} %"


def times(ratio: float) -> str:
    """The paper's "x": a fraction of the dense cost."""
    return f"{ratio:.2f}x"


def si(value: float, unit: str = "", digits: int = 3) -> str:
    """1.73 GFLOPs, 146 MB: with the prefix of a thousand's power."""
    for factor, prefix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{_digits(value / factor, digits)} {prefix}{unit}"
    return f"{_digits(value, digits)} {unit}".rstrip()


def _digits(value: float, digits: int) -> str:
    """Three digits that count, without 1.5e+02."""
    return f"{value:.{max(0, digits - len(str(int(abs(value)))))}f}"


def gap(value: float, other: float, noun: str, *, doubt: float = 0.0, tell: str = "") -> str:
    """ "0.2 points below its dense twin", of two accuracies. Level where they differ by no more than `doubt`.

    `tell` is what leaves the doubt, such as "400 images".
    """
    points = float(fixed(100 * value)) - float(fixed(100 * other))  # as both are shown
    if abs(points) < 0.05:
        return f"level with {noun}"
    if abs(value - other) <= doubt:
        return f"level with {noun}{f', as far as {tell} can tell' if tell else ''}"
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {noun}"


def doubt(values: Sequence[float], others: Sequence[float], images: int | None) -> float:
    """By how much two accuracies may differ and tell nothing.

    One standard deviation over seeds, the larger of the two. One run alone has none: then two standard errors of a
    share of so many test images.
    """
    found = [statistics.stdev(some) for some in (values, others) if len(some) > 1]
    if len(found) < 2 and images:
        share = (statistics.fmean(values) + statistics.fmean(others)) / 2
        found.append(2 * math.sqrt(share * (1 - share) / images))
    return max(found, default=0.0)


def alike(values: Sequence[float], others: Sequence[float], images: int | None) -> bool:
    """Whether the means of two accuracies are shown as the same, or too close to tell apart."""
    one, other = statistics.fmean(values), statistics.fmean(others)
    return fixed(100 * one) == fixed(100 * other) or abs(one - other) <= doubt(values, others, images)


def listed(names: Sequence[str]) -> str:
    """RigL, SET and GMP; where there are more, how many."""
    said = list(names)
    if len(said) > 3:
        said = [*said[:2], f"{len(said) - 2} others"]
    return " and ".join(filter(None, [", ".join(said[:-1]), said[-1]]))


def spread(values: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    """Mean ± standard deviation; one value alone has none."""
    if not values:
        return "–"
    if len(values) == 1:
        return fixed(scale * values[0], digits)
    return f"{fixed(scale * statistics.fmean(values), digits)} ± {fixed(scale * statistics.stdev(values), digits)}"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"


def unbroken(text: str) -> str:
    """Numbers and their units stay on one line."""
    return re.sub(r"(\d) (?=%|[kMGTPE]?(?:FLOPs|B)\b|points)", "\\1\u00a0", text)


def sentence(text: str) -> str:
    """With a capital, as a sentence begins; names that are not words stay as they are."""
    return text[:1].upper() + text[1:]


def clip(text: str, length: int) -> str:
    """Long names keep their end, which tells them apart."""
    return text if len(text) <= length else "…" + text[1 - length :]
