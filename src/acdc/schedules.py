"""The paper's schedules by name, and any schedule drawn as a line of text.

`Schedule` offers the names as constructors: `acdc.Schedule.imagenet()`.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from acdc.schedule import Schedule

_NAMES = (
    "imagenet",
    "imagenet_150",
    "imagenet_200",
    "imagenet_short_dense",
    "imagenet_130_10_10",
    "imagenet_130_5_10",
    "cifar100_20",
    "cifar100_14",
    "cifar100_7",
    "cifar10_memorization",
    "transformer_xl",
)


class PaperSchedules:
    """Constructors of the paper's schedules.

    Those marked inferred are not printed epoch by epoch in the paper; they fit the figures that are.
    """

    @classmethod
    @abstractmethod
    def alternating(
        cls, *, warmup: str, sparse: str, dense: str, last_dense: str, final_sparse: str, total: str
    ) -> Self:
        """Build the schedule from the lengths of its phases; see Schedule.alternating."""

    @classmethod
    def named(cls) -> dict[str, Callable[[], Self]]:
        """Return the constructors of the paper's schedules by name."""
        return {name: getattr(cls, name) for name in _NAMES}

    @classmethod
    def _in_epochs(cls, warmup: int, sparse: int, dense: int, last_dense: int, final_sparse: int, total: int) -> Self:
        """Build a schedule from Δ_w, Δ_s, Δ_d, Δ_D, the final compressed phase and the total, in epochs."""
        return cls.alternating(
            warmup=f"{warmup}ep",
            sparse=f"{sparse}ep",
            dense=f"{dense}ep",
            last_dense=f"{last_dense}ep",
            final_sparse=f"{final_sparse}ep",
            total=f"{total}ep",
        )

    @classmethod
    def imagenet(cls) -> Self:
        """Build the ImageNet schedule: 100 epochs, half of them compressed (paper and published code)."""
        return cls._in_epochs(10, 5, 5, 10, 15, 100)

    @classmethod
    def imagenet_150(cls) -> Self:
        """Build the ImageNet schedule extended to 150 epochs (paper and published code)."""
        return cls._in_epochs(10, 5, 5, 10, 15, 150)

    @classmethod
    def imagenet_200(cls) -> Self:
        """Build the ImageNet schedule at twice the epochs (published code)."""
        return cls._in_epochs(10, 5, 5, 10, 15, 200)

    @classmethod
    def imagenet_short_dense(cls) -> Self:
        """Build ImageNet's with dense phases of 2 epochs, the last one too (paper; epochs inferred, 70 compressed)."""
        return cls._in_epochs(10, 5, 2, 2, 20, 100)

    @classmethod
    def imagenet_130_10_10(cls) -> Self:
        """Build ImageNet's over 130 epochs, phases of 10 (paper; epochs inferred from its .7x training FLOPs)."""
        return cls._in_epochs(10, 10, 10, 10, 20, 130)

    @classmethod
    def imagenet_130_5_10(cls) -> Self:
        """Build ImageNet's over 130 epochs, phases of 5 compressed and 10 dense (paper; inferred from its .85x)."""
        return cls._in_epochs(10, 5, 10, 10, 15, 130)

    @classmethod
    def cifar100_20(cls) -> Self:
        """Build AC/DC-20 for CIFAR-100, 200 epochs (paper and published code)."""
        return cls._in_epochs(10, 20, 20, 20, 30, 200)

    @classmethod
    def cifar100_14(cls) -> Self:
        """Build AC/DC-14 for CIFAR-100, 225 epochs (paper; the published code has dense phases of 13 epochs)."""
        return cls._in_epochs(10, 20, 13, 13, 50, 225)

    @classmethod
    def cifar100_7(cls) -> Self:
        """Build AC/DC-7 for CIFAR-100, 240 epochs (paper; epochs inferred)."""
        return cls._in_epochs(10, 20, 7, 7, 68, 240)

    @classmethod
    def cifar10_memorization(cls) -> Self:
        """Build the schedule for CIFAR-10 with random labels, 200 epochs (published code)."""
        return cls._in_epochs(10, 20, 20, 20, 30, 200)

    @classmethod
    def transformer_xl(cls) -> Self:
        """Build Transformer-XL's on WikiText-103, 48 epochs, 100k steps (paper; epochs counted from 0: inferred)."""
        return cls._in_epochs(5, 3, 3, 7, 9, 48)


def draw(schedule: "Schedule") -> str:
    """Return title, bar, ruler and legend; the bar is to scale where all phases share a unit."""
    from acdc.schedule import number, round_half_up  # it imports this module

    phases, compressions = schedule.phases, sum(phase.kind == "sparse" for phase in schedule.phases)
    if len({phase.length.unit for phase in phases}) > 1:
        edges = [Fraction(edge) for edge in range(len(phases) + 1)]
        labels = [str(phase.length) for phase in phases]
        title, legend = f"{len(phases)} phases in mixed units", "length of each phase, not to scale"
    else:
        word = "epoch" if schedule.unit == "ep" else "step"
        edges = list(accumulate((phase.length.value for phase in phases), initial=Fraction(0)))
        values = (*edges, schedule.dense_length.value, schedule.sparse_length.value)
        *labels, total, dense, sparse = (f"{int(v):,}" if v.denominator == 1 else number(v) for v in values)
        title, legend = f"{total} {word}s, {dense} dense, {sparse} compressed", f"first {word} of each phase"
    title += f", {compressions} compression{'s' if compressions > 1 else ''}"

    exact = math.lcm(*((edge / edges[-1]).denominator for edge in edges))  # with so many columns nothing is rounded
    width = 72 // exact * exact or 72
    columns = [round_half_up(edge * width / edges[-1]) for edge in edges]
    crowded = any(left == right for left, right in pairwise(columns))
    bar = ""
    for phase, (start, end), (left, right) in zip(phases, pairwise(edges), pairwise(columns), strict=True):
        hidden = crowded and (end - start) * width < edges[-1]
        bar += ("▒" if hidden else "█" if phase.kind == "sparse" else "░") * (right - left)
    hint = "▒ both, too short to draw  " if crowded else ""

    ruler = [" "] * 100
    for label, left in [(labels[-1], columns[-2]), *zip(labels, columns, strict=False)]:  # the last one always shows
        right = left + len(label)
        if not "".join(ruler[max(0, left - 1) : right + 1]).strip():
            ruler[left:right] = label
    legend = f"░ dense  █ compressed  {hint}(numbers: {legend})"
    return f"schedule: {title}\n{bar}\n{''.join(ruler).rstrip()}\n{legend}"
