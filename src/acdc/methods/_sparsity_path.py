"""The path of the sparsity to its target: the steps that take masks anew, and the share of the target these have.

    rise      with time; see _rise.py
    gradual   in place of it from compression to compression: 1 − (1 − i/n)³ at the i-th of n
    ease      at the beginning of each compressed phase: 1 − (1 − t)³, by which the others are multiplied

It is a function of the step and of what the method remembers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from acdc.methods._rise import Rise
from acdc.schedule import Schedule

_EASE_STEPS = 10  # compressions in which ease reaches a phase's sparsity


@dataclass(frozen=True)
class SparsityPath:
    """The path under a schedule, for a criterion that looks at `window` gradients before each compression."""

    schedule: Schedule
    steps_per_epoch: int | None
    rise: Rise | None
    gradual: bool
    ease: float
    window: int

    def takes_masks_at(self, step: int, memory: Mapping[str, Any]) -> bool:
        """Return True if masks are taken anew when this step of a compressed phase begins, after the phase's first."""
        rises = self.rise is not None and self.rise.takes_masks_at(step, memory)
        return rises or step in self._eased_steps(step)

    def next_masks(self, step: int, memory: Mapping[str, Any]) -> int | None:
        """Return the first step, `step` or later, that may take masks anew, if no compressed phase begins before."""
        coming = [at for at in self._eased_steps(step) if at >= step][:1]
        while self.rise and (at := self.rise.next_masks(step, memory)) is not None:
            if self.schedule.phase_at(at, self.steps_per_epoch).kind == "sparse":
                coming.append(at)
                break
            step = at + 1
        return min(coming, default=None)

    def share(self, step: int, memory: Mapping[str, Any]) -> float:
        """Return the share of the target sparsity that masks taken at `step` have."""
        return self._share_of_run(step, memory) * self._share_of_phase(step)

    def share_after(self, step: int) -> float:
        """Return the share of the target that is reached after `step`, by the masks taken last in the usual rise."""
        taken = self.rise.last_masks(step) if self.rise else step
        return self._share_of_run(taken, {}) * self._share_of_phase(step)

    def _share_of_run(self, step: int, memory: Mapping[str, Any]) -> float:
        """Return the share that time, or the number of compressions, has brought."""
        if self.rise:
            return self.rise.share(step, memory)
        phase = self.schedule.phase_at(step, self.steps_per_epoch)
        sparse = [p.index for p in self.schedule.phases if p.kind == "sparse"]
        if not self.gradual or phase.index == sparse[-1]:
            return 1.0
        return 1 - (1 - (sparse.index(phase.index) + 1) / len(sparse)) ** 3

    def _share_of_phase(self, step: int) -> float:
        """Return the share of its sparsity that a compressed phase has, while it is eased into."""
        steps = self._eased_steps(step)
        left = sum(at > step for at in steps) / (len(steps) + 1)
        return 1 - left**3

    def _eased_steps(self, step: int) -> range:
        """Return the steps in which the phase of `step` is eased into, without its first; none in a dense phase."""
        phase = self.schedule.phase_at(step, self.steps_per_epoch)
        if not self.ease or phase.kind == "dense":
            return range(0)
        start, end = (0, *self.schedule.boundaries(self.steps_per_epoch))[phase.index : phase.index + 2]
        length = int(self.ease * (end - start))
        every = max(1, length // _EASE_STEPS, self.window)
        return range(start + every, start + length, every)
