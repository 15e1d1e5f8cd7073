"""Numbers as a reader wants them."""

import re
import statistics
from collections.abc import Sequence


def percent(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def share(value: float) -> str:
    """90 %, 99.5 %, 0.3 %: no more digits than tell something."""
    return f"{100 * value:.1f}".removesuffix(".0") + " %"


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


def gap(value: float, other: float, noun: str) -> str:
    """ "0.2 points below its dense twin", of two accuracies."""
    points = round(100 * value, 1) - round(100 * other, 1)  # as both are shown
    if abs(points) < 0.05:
        return f"level with {noun}"
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {noun}"


def spread(values: Sequence[float], scale: float = 100, digits: int = 2) -> str:
    """Mean ± standard deviation; one value alone has none."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{scale * values[0]:.{digits}f}"
    return f"{scale * statistics.fmean(values):.{digits}f} ± {scale * statistics.stdev(values):.{digits}f}"


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
