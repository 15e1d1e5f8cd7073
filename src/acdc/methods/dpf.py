"""DPF: dynamic model pruning with feedback.

Idea       Keep the dense weights and move them by gradients taken at their pruned version: a weight that was pruned too
           early comes back once it has grown.
Step       every `every` steps m ← the largest |θ| at the sparsity s(t); each step θ ← θ − η ∇f(m·θ), all of θ. s(t)
           rises as in GMP, s_f + (s_i − s_f) · (1 − (t − t_0) / (t_1 − t_0))³, and masks keep changing at s_f.
Knobs      sparsity; initial (0); begin and end of the rise, as fractions of the run (0 and .5); every ("16st"); freeze,
           the fraction after which masks stay (1: never). distribution "global", as in the paper.
FLOPs      2·F for the forward pass and the inputs' gradients, counting the remaining weights, and F_D for the weights'
           gradients: all of them get one.
Costs      a dense copy of the weights; one selection every 16 steps; five passes over the weights per step.
Reference  Lin, Stich, Barba, Dmitriev, Jaggi: Dynamic Model Pruning with Feedback. ICLR 2020.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from acdc.core.context import MethodContext
from acdc.core.latent import Bundle
from acdc.errors import ArgumentError
from acdc.methods._knobs import check_fraction
from acdc.methods.gmp import GMP
from acdc.schedule import Phase, Schedule


@dataclass(frozen=True, kw_only=True)
class DPF(GMP):
    """See the module docstring. A criterion scores the dense weights, by gradients taken at the pruned ones."""

    begin: float = 0.0
    end: float = 0.5
    every: str = "16st"
    freeze: float = 1.0

    name: ClassVar[str] = "dpf"
    supports_shards: ClassVar[bool] = False  # latent weights
    raises_sparsity: ClassVar[bool] = False  # weights that a layer lost may be back at the next update

    def __post_init__(self) -> None:
        check_fraction("freeze", self.freeze, "1.0")
        if self.freeze < self.end:
            raise ArgumentError(
                "freeze",
                received=self.freeze,
                allowed=f"masks must still change when the rise ends, at end={self.end!r}",
                instead=f"write freeze={self.end!r} or more",
            )
        super().__post_init__()

    def default_schedule(self, epochs: int) -> Schedule:
        dense = round(self.begin * epochs)
        first = [("dense", f"{dense}ep")] if dense else []
        return Schedule.from_phases([*first, ("sparse", f"{epochs - dense}ep")])

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.decompress(reset="momentum")
            return
        if phase.index:
            context.keep_twin()  # the dense model it started from
        context.use_latent_weights()
        self._prune(context)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        each = context.steps_per_epoch
        return self.next_compression(each, step, context.memory) == step and step > self._times(each)[0]

    def next_compression(self, steps_per_epoch: int | None, step: int, memory: Mapping[str, Any]) -> int | None:
        first, last, every = self._times(steps_per_epoch)
        regular = first + max(0, -(-(step - first) // every)) * every
        upcoming = min(regular, last) if step <= last else regular
        total = self.schedule.total_steps(steps_per_epoch)
        frozen = min(math.floor(self.freeze * total), total - 1)
        return upcoming if upcoming <= max(last, frozen) else None

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        return 2 * flops + dense

    def effective_weights(self, context: MethodContext, bundle: Bundle, latent: Tensor, out: Tensor) -> None:
        context.write_masked(bundle, latent, out)
