"""The rise of the sparsity with time: when masks are taken anew, and how far it has come by then.

    s · (1 − (1 − t)³)    from t = 0 at the first compression to t = 1 at the end of the rise

A net recovers from what it loses while the learning rate is high. Where the rate is low at the end of the run, the
sparsity has to be there in time; under a constant rate a longer rise is better. A rate is taken for constant if no
scheduler of torch is there to change it, and it neither rises nor falls from the first compression to a quarter of the
run. docs/decompression.md has the measurements.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Self

from torch.optim import Optimizer

from acdc.schedule import Schedule

UPDATES = 40  # of the masks in a run, where an epoch is longer than that
_DECIDED = 0.25  # of the run: warm-ups end before and one cycle still rises, as a rule
_SAME = 0.995  # of another rate: what is above is still the same
_FIRST, _CONSTANT = "first_rate", "constant_rate"  # keys of a method's memory


@dataclass(frozen=True)
class Rise:
    """The steps of a rise: of its first compression, of its usual and its late end, and between two masks."""

    first: int
    end: int
    late: int  # the end under a constant rate, or the usual one where that makes no difference
    every: int
    decided: int  # the first look from this step on is the last: then the rate makes no difference

    @classmethod
    def in_steps(
        cls, schedule: Schedule, steps_per_epoch: int | None, *, rise: float, late_rise: float, window: int
    ) -> Self:
        """Return the rise that ends at these shares of the run, for a criterion that looks at `window` gradients."""
        starts, total = schedule.starts(steps_per_epoch), schedule.total_steps(steps_per_epoch)
        first = next(start for start, phase in starts if phase.kind == "sparse")
        end, late = (min(max(first, round(share * total)), total - 1) for share in (rise, max(rise, late_rise)))
        gradients = min(window, (end - first) // 4)  # that a criterion sees before each of four
        every = max(1, gradients, min(steps_per_epoch or total, total // UPDATES))
        if gradients:  # and before those of a rise that ends late
            late = max(end, late - (late - first) % every)
        decided = min(max(first, round(_DECIDED * total)), end - every)  # before the masks that are taken at its end
        return cls(first, end, late, every, decided)

    def watch(self, step: int, memory: MutableMapping[str, Any], optimizer: Optimizer) -> None:
        """Look at the rate after some steps: not after each, as one on a GPU is waited for."""
        if step + 1 >= self.first and (step + 1 - self.first) % self.every == 0:
            watch_rate(memory, optimizer, last=step >= self.decided)

    def end_of(self, memory: Mapping[str, Any]) -> int:
        """Return the step in which the rise ends, by what has been seen of the rate."""
        return self.late if memory.get(_CONSTANT) else self.end

    def takes_masks_at(self, step: int, memory: Mapping[str, Any]) -> bool:
        """Return True if masks are taken anew when this step begins, after the first ones."""
        end = self.end_of(memory)
        return self.first < step <= end and ((step - self.first) % self.every == 0 or step == end)

    def next_masks(self, step: int, memory: Mapping[str, Any]) -> int | None:
        """Return the first step, `step` or later, that takes masks; or may, while both ends are possible."""
        ends = (self.end, self.late) if is_watched(memory) else (self.end_of(memory),)
        regular = max(self.first, step + (self.first - step) % self.every)
        return min((min(regular, end) for end in ends if end >= step), default=None)

    def last_masks(self, step: int) -> int:
        """Return the step, `step` or earlier, that took masks last, where the rise ends as usual."""
        return step if step >= self.end else step - (step - self.first) % self.every

    def share(self, step: int, memory: Mapping[str, Any]) -> float:
        """Return the share of the target sparsity that masks taken at `step` have."""
        end = self.end_of(memory)
        return 1.0 if step >= end else 1 - (1 - (step - self.first) / (end - self.first)) ** 3


def watch_rate(memory: MutableMapping[str, Any], optimizer: Optimizer, *, last: bool) -> None:
    """Remember whether the learning rate has been constant since the first look. One that has not, has not for good."""
    rate = sum(float(group.get("lr") or 0.0) for group in optimizer.param_groups)  # some optimizers find their own
    scheduled = any("initial_lr" in group for group in optimizer.param_groups)  # as torch's schedulers leave it
    only = _FIRST not in memory and last  # one look alone tells nothing
    first = memory.pop(_FIRST, rate)
    memory[_CONSTANT] = not scheduled and not only and min(first, rate) > _SAME * max(first, rate)
    if memory[_CONSTANT] and not last:
        memory[_FIRST] = first


def is_watched(memory: Mapping[str, Any]) -> bool:
    """Return True if the rate may still make a difference."""
    return _CONSTANT not in memory or _FIRST in memory
