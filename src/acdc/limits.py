"""The range of a number, written beside its type: `epoch: Annotated[int, Limits(least=0)]`. Pure Python."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A number may lie in this range.

    `text` says the range to people. `cap` is a far end that no use comes near; it is mentioned where it is exceeded.
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    cap: float | None = None
    text: str = ""

    def complaint(self, value: float) -> str | None:
        """Return what is expected in place of `value`, or None where it lies in the range."""
        inside = (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )
        if not inside:
            return str(self)
        return f"{self}, and at most {self.cap:,}" if self.cap is not None and value > self.cap else None

    def __str__(self) -> str:
        if self.text:
            return self.text
        low = f"above {self.above:,}" if self.above is not None else f"{self.least:,}" if self.least is not None else ""
        high = f"below {self.below:,}" if self.below is not None else f"{self.most:,}" if self.most is not None else ""
        if low and high:
            return f"from {low} to {high}"
        if high:
            return high if self.below is not None else f"{high} or less"
        return low if self.above is not None else f"{low} or more"


Count = Annotated[int, Limits(least=0)]
AtLeastOne = Annotated[int, Limits(least=1)]
NonNegative = Annotated[float, Limits(least=0)]
Share = Annotated[float, Limits(least=0, most=1)]
Percent = Annotated[float, Limits(least=0, most=100)]
Epoch = Annotated[int, Limits(least=0, most=10_000_000)]
