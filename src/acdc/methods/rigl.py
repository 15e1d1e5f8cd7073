"""RigL: rigged lottery.

Idea       Stay sparse throughout; now and then drop the smallest weights and grow those with the largest gradients.
Step       every ΔT steps until T_end, in each layer: drop the ⌊ζ(t)·k⌋ kept weights of smallest |θ|, grow as many
           pruned ones of largest |∇f|, which start at 0; ζ(t) = ½ α (1 + cos(π t / T_end)).
Knobs      sparsity; distribution ("erk", or "uniform"); drop α (.3); every ΔT ("100st"); end, as a fraction (.75).
FLOPs      3·F per sample, counting the remaining weights, and in every ΔT-th step, until T_end, F_D for the gradients
           of all weights: 3·F + (F_D − F) / ΔT on average until then. The paper: (3·F·ΔT + 2·F + F_D) / (ΔT + 1).
Costs      as AC/DC's compressed phases; in one of every ΔT steps gradients are masked only after the backward pass. A
           loop that clips must call sparsifier.mask_gradients() first, or clipping sees them unmasked in that step.
Reference  Evci, Gale, Menick, Castro, Elsen: Rigging the Lottery: Making All Tickets Winners. ICML 2020.

The gradient is that of the step before the update, which is taken as usual; the paper skips it. If a gradient scaler
skips that step, the update waits for the gradient of a later one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from acdc.core.context import MethodContext
from acdc.methods._knobs import in_steps
from acdc.methods._sparse import SparseThroughout
from acdc.sparsity.distributions import Distribution


@dataclass(frozen=True, kw_only=True)
class RigL(SparseThroughout):
    """See the module docstring."""

    distribution: Distribution = "erk"
    drop: float = 0.3
    every: str = "100st"
    end: float = 0.75

    name: ClassVar[str] = "rigl"
    supports_shards: ClassVar[bool] = True
    by_layer: ClassVar[tuple[str, ...]] = ("gradients",)

    def fraction_at(self, step: int, last: int) -> float:
        """Return ζ, the share of kept weights replaced at an update."""
        return self.drop / 2 * (1 + math.cos(math.pi * step / max(1, last)))

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        """Return the average over the run; no step is added, since the gradient is that of a normal step."""
        if steps_per_epoch is None and self.every.endswith("ep"):
            return 3 * flops
        return 3 * flops + self.end * (dense - flops) / in_steps(self.every, steps_per_epoch)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        made_up_for = "postponed" in context.memory and "gradients" in context.memory
        return made_up_for or super().updates_at(context, step)

    def observes_at(self, context: MethodContext, step: int) -> bool:
        postponed = "postponed" in context.memory and step < self.last_update(context)
        return postponed or super().updates_at(context, step + 1)

    def observe(self, context: MethodContext) -> None:
        """Keep the gradients until the next step begins."""
        context.memory["gradients"] = {name: gradient.abs() for name, gradient in context.gradients.items()}

    def update(self, context: MethodContext) -> None:
        memory = context.memory
        if "gradients" not in memory:  # a gradient scaler skipped their step, and the host counted it
            memory["postponed"] = True
            return
        gradients = memory.pop("gradients")
        memory.pop("postponed", None)
        self.replace_weights(context, gradients.get)
