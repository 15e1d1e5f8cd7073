"""GMP: gradual magnitude pruning.

Idea       Train densely, then raise the sparsity step by step, and train on at the target.
Step       every `every` steps from the end of the dense phase to `end`: θ ← T_k(t)(θ), with the sparsity
           s(t) = s_f + (s_i − s_f) · (1 − (t − t_0) / (t_1 − t_0))³. The last update reaches s_f exactly, at t_1.
Knobs      sparsity; initial (0); when the rise begins and ends, as fractions of the run (.25 and .75: the CIFAR-100
           runs of the AC/DC paper, 50 + 100 + 50 epochs); every ("1ep").
FLOPs      3·F per sample by the weights that are left; dense before.
Costs      as AC/DC's compressed phases; one selection an update.
Reference  Zhu, Gupta: To prune, or not to prune. 2017. Gale, Elsen, Hooker: The State of Sparsity. 2019.
"""

from dataclasses import dataclass
from typing import ClassVar

from acdc.core.sparsifier import Sparsifier
from acdc.methods.base import check_every, check_free
from acdc.methods.scored import Scored
from acdc.methods.timing import fraction, in_steps
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import check_sparsity


@dataclass(frozen=True, kw_only=True)
class GMP(Scored):
    """See the module. The schedule is a dense phase and a sparse one; the rise begins where the sparse one does."""

    initial: float = 0.0
    begin: float = 0.25
    end: float = 0.75
    every: str = "1ep"

    name: ClassVar[str] = "gmp"

    def __post_init__(self) -> None:
        fraction("begin", self.begin, "0.25")
        fraction("end", self.end, "0.75")
        check_sparsity("initial", self.initial)
        check_every(self.every)
        if not self.begin < self.end:
            raise ValueError(f"begin={self.begin}, end={self.end}: the rise ends after it begins; write end=0.75")
        super().__post_init__()
        check_free(self, "leave pattern out, or use OneShot")
        if self.sparsity is not None and self.initial > self.sparsity:
            raise ValueError(f"initial={self.initial}: the sparsity rises to {self.sparsity}; start lower")

    def default_schedule(self, epochs: int) -> Schedule:
        dense = max(1, round(self.begin * epochs))
        return Schedule.from_phases([("dense", f"{dense}ep"), ("sparse", f"{epochs - dense}ep")])

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        if phase.kind == "dense":
            sparsifier.decompress(reset="momentum")
            return
        if phase.index:
            sparsifier.keep_twin()  # the dense model it began from
        self._prune(sparsifier)

    def updates_at(self, sparsifier: Sparsifier, step: int) -> bool:
        first, last, every = self._times(sparsifier.steps_per_epoch)
        return first < step <= last and ((step - first) % every == 0 or step == last)

    def update(self, sparsifier: Sparsifier) -> None:
        self._prune(sparsifier)

    def next_compression(self, steps_per_epoch: int | None, step: int) -> int | None:
        first, last, every = self._times(steps_per_epoch)
        return None if step > last else min(first + max(0, -(-(step - first) // every)) * every, last)

    def sparsity_at(self, target: float, step: int, first: int, last: int) -> float:
        """The cubic rise, at the target from `last` on."""
        if step >= last:
            return target
        left = 1 - max(step - first, 0) / (last - first)
        return target + (min(self.initial, target) - target) * left**3

    def risen(self, epoch: int) -> float:
        (first, last), target = self._span(1), self.sparsity or 1.0
        return self.sparsity_at(target, epoch, first, last) / target

    def _prune(self, sparsifier: Sparsifier) -> None:
        first, last, _ = self._times(sparsifier.steps_per_epoch)
        step = sparsifier.step
        self.compress(
            sparsifier,
            budgets=self.budgets_along(sparsifier.layers, lambda target: self.sparsity_at(target, step, first, last)),
        )

    def _times(self, steps_per_epoch: int | None) -> tuple[int, int, int]:
        """The first update, the last, which a step follows, and the steps between two."""
        return *self._span(steps_per_epoch), in_steps(self.every, steps_per_epoch)

    def _span(self, steps_per_epoch: int | None) -> tuple[int, int]:
        first = next(start for start, phase in self.schedule.starts(steps_per_epoch) if phase.kind == "sparse")
        total = self.schedule.total_steps(steps_per_epoch)
        return first, min(max(first, round(self.end * total)), total - 1)
