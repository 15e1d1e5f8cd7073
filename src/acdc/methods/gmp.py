"""GMP: gradual magnitude pruning.

Idea       Train densely, then raise the sparsity step by step, and continue training at the target.
Step       every `every` steps from the end of the dense phase to `end`: θ ← T_k(t)(θ), with the sparsity
           s(t) = s_f + (s_i − s_f) · (1 − (t − t_0) / (t_1 − t_0))³. The last update reaches s_f exactly, at t_1.
Knobs      sparsity; initial (0); when the rise begins and ends, as fractions of the run (.25 and .75: the CIFAR-100
           runs of the AC/DC paper, 50 + 100 + 50 epochs); every ("1ep").
FLOPs      3·F per sample, counting the remaining weights; dense before.
Costs      as AC/DC's compressed phases; one selection per update.
Reference  Zhu, Gupta: To prune, or not to prune. 2017. Gale, Elsen, Hooker: The State of Sparsity. 2019.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from acdc.core.context import MethodContext
from acdc.errors import ArgumentError, check_whole
from acdc.methods._knobs import check_every, check_fraction, in_steps
from acdc.methods._scored import Scored
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import check_sparsity


@dataclass(frozen=True, kw_only=True)
class GMP(Scored):
    """See the module docstring. The schedule is a dense phase and a sparse one, with which the rise begins."""

    initial: float = 0.0
    begin: float = 0.25
    end: float = 0.75
    every: str = "1ep"

    name: ClassVar[str] = "gmp"
    supports_shards: ClassVar[bool] = True
    raises_sparsity: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fraction("begin", self.begin, "0.25")
        check_fraction("end", self.end, "0.75")
        check_sparsity("initial", self.initial)
        check_every(self.every)
        if not self.begin < self.end:
            allowed = f"the rise must end after it begins, at begin={self.begin}"
            raise ArgumentError("end", received=self.end, allowed=allowed, instead="write end=0.75")
        super().__post_init__()
        self._refuse_fixed_sparsity("omit pattern, or use OneShot")
        if self.sparsity is not None and self.initial > self.sparsity:
            allowed = f"the sparsity rises to {self.sparsity}"
            raise ArgumentError("initial", received=self.initial, allowed=allowed, instead="start lower")

    def default_schedule(self, epochs: int) -> Schedule:
        check_whole("epochs", epochs, 2, "GMP needs a dense epoch and a sparse one, so write epochs=2 or more")
        dense = max(1, round(self.begin * epochs))
        return Schedule.from_phases([("dense", f"{dense}ep"), ("sparse", f"{epochs - dense}ep")])

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.decompress(reset="momentum")
            return
        if phase.index:
            context.keep_twin()  # the dense model it began from
        self._prune(context)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        first, last, every = self._times(context.steps_per_epoch)
        return first < step <= last and ((step - first) % every == 0 or step == last)

    def update(self, context: MethodContext) -> None:
        self._prune(context)

    def next_compression(self, steps_per_epoch: int | None, step: int, memory: Mapping[str, Any]) -> int | None:
        first, last, every = self._times(steps_per_epoch)
        return None if step > last else min(first + max(0, -(-(step - first) // every)) * every, last)

    def sparsity_at(self, target: float, step: int, first: int, last: int) -> float:
        """Return the sparsity along the cubic rise, which reaches the target at `last`."""
        if step >= last:
            return target
        left = 1 - max(step - first, 0) / (last - first)
        return target + (min(self.initial, target) - target) * left**3

    def sparsity_fraction(self, epoch: int) -> float:
        (first, last), target = self._span(1), self.sparsity or 1.0
        return self.sparsity_at(target, epoch, first, last) / target

    def _prune(self, context: MethodContext) -> None:
        first, last, _ = self._times(context.steps_per_epoch)
        step = context.step
        self.compress(
            context,
            budgets=self.budgets_along(context.layers, lambda target: self.sparsity_at(target, step, first, last)),
        )

    def _times(self, steps_per_epoch: int | None) -> tuple[int, int, int]:
        """Return the steps of the first and the last update, and the steps between two; a step follows the last."""
        return *self._span(steps_per_epoch), in_steps(self.every, steps_per_epoch)

    def _span(self, steps_per_epoch: int | None) -> tuple[int, int]:
        first = next(start for start, phase in self.schedule.starts(steps_per_epoch) if phase.kind == "sparse")
        total = self.schedule.total_steps(steps_per_epoch)
        return first, min(max(first, round(self.end * total)), total - 1)
