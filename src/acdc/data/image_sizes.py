"""Progressive resizing: training images that start small and grow to their own size, as a function of the epoch.

Small images cost less, and a network that has learned from them needs only the last part of a run at full size (FFCV;
Kuznedelev et al. 2023, arXiv:2308.02060, use it for sparse networks). Evaluations always see the full size.
"""

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class ImageSizes:
    """The shorter side of training images: `first` pixels, growing by `step` to `full`, which it has from epoch `end`.

    In between it is the largest of first, first + step, … that the line from first to full has reached.
    """

    first: int
    full: int
    step: int
    end: int

    @classmethod
    def over(cls, epochs: int, *, first: int, full: int, step: int, by: float) -> "ImageSizes":
        """Return the sizes of a run that reaches the full size by this share of its epochs, after one at least."""
        return cls(first, full, step, max(1, round(Fraction(str(by)) * epochs)))

    def at(self, epoch: int) -> int:
        """Return the shorter side in an epoch, counted from 0."""
        if epoch >= self.end:
            return self.full
        return self.first + (self.full - self.first) * epoch // self.end // self.step * self.step

    def changes(self) -> dict[int, int]:
        """Return each size by the epoch that it begins with."""
        sides = {epoch: self.at(epoch) for epoch in range(self.end + 1)}
        return {epoch: side for epoch, side in sides.items() if not epoch or side != sides[epoch - 1]}


def scaled(shape: tuple[int, int, int], side: int) -> tuple[int, int, int]:
    """Return the shape of images of this shape with a shorter side of `side` pixels; the other keeps its proportion."""
    channels, height, width = shape
    short = min(height, width)
    return channels, round(height * side / short), round(width * side / short)
