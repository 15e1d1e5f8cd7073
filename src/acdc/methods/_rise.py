"""The rise of the sparsity with time: when masks are taken anew, and how far it has come by then.

    s · (1 − (1 − t)³)    from t = 0 at the first compression to t = 1 at the end of the rise

A net recovers from what it loses while the learning rate is high. Where the rate falls from early on, the sparsity has
to be there in time; where it does not, a longer rise is better. So a rise may be slow until the rate is seen to fall.
If it has not by a quarter of the run, because it is constant, or one cycle before its peak, the rise stays slow.
docs/decompression.md has the measurements.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from torch.optim import Optimizer

DECIDED = 0.25  # of the run: one cycle has its peak later, as a rule, and warm-ups of other shapes end before
_FALLEN = 0.995  # of the highest rate so far: below it the rate has fallen
_HIGHEST, _FELL = "highest_rate", "rate_fell"  # keys of a method's memory


@dataclass(frozen=True)
class Rise:
    """The steps of a rise: of its first compression, of its usual and its late end, and between two masks."""

    first: int
    end: int
    late: int  # the end of a slow rise, or the usual one where there is no other
    every: int
    decided: int  # the first look from this step on is the last: then the rate makes no difference

    def looks_after(self, step: int) -> bool:
        """Return True if the rate is looked at after this step: not after each, as one on a GPU is waited for."""
        return (step + 1 - self.first) % self.every == 0

    def takes_masks_at(self, step: int, *, slow: bool) -> bool:
        """Return True if masks are taken anew when this step begins, after the first ones."""
        last = self.late if slow else self.end
        return self.first < step <= last and ((step - self.first) % self.every == 0 or step in (self.end, self.late))

    def candidates(self, step: int) -> list[int]:
        """Return steps from `step` on in which masks may be taken next, in a usual rise and in a slow one."""
        regular = max(self.first, step + (self.first - step) % self.every)
        return [min(regular, last) for last in (self.end, self.late) if last >= step]

    def share(self, step: int, *, slow: bool) -> float:
        """Return the share of the target sparsity that masks taken at `step` have."""
        last = self.late if slow else self.end
        return 1.0 if step >= last else 1 - (1 - (step - self.first) / (last - self.first)) ** 3


def watch_rate(memory: MutableMapping[str, Any], optimizer: Optimizer, *, last: bool) -> None:
    """Remember whether the learning rate has fallen below its highest; after the `last` look nothing changes."""
    rate = sum(float(group.get("lr") or 0.0) for group in optimizer.param_groups)  # some optimizers find their own
    highest = max(rate, memory.pop(_HIGHEST, 0.0))
    if not highest and not last:
        return  # a warm-up may begin at 0
    memory[_FELL] = rate <= _FALLEN * highest
    if not memory[_FELL] and not last:
        memory[_HIGHEST] = highest


def is_watched(memory: Mapping[str, Any]) -> bool:
    """Return True if the rate may still make a difference."""
    return _FELL not in memory or _HIGHEST in memory


def is_slow(memory: Mapping[str, Any]) -> bool:
    """Return True if the rate was looked at and has not fallen."""
    return not memory.get(_FELL, True)
