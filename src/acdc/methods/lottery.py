"""Lottery tickets: iterative magnitude pruning with rewinding.

Idea       Train, prune a little, rewind the remaining weights to their values early in training, and train again, until
           the target is reached: the result is a network that could have been trained sparse from that early point.
Step       R rounds of equal length. After round i < R: mask the largest |θ| so that a share (1 − s)^(i / (R − 1)) is
           left; kept weights, all other parameters and buffers, and the optimizer's state go back to their values at
           `rewind` of round 1; pruned weights are 0.
Knobs      sparsity; rounds R (12: each prunes 19 % at 90 %, the paper's is 20 %); rewind ("1ep"; "0st" for the original
           tickets). The paper trains every round for the full number of epochs: multiply yours by R for that.
FLOPs      3·F per sample, counting the weights that remain in each round; dense in the first.
Costs      as AC/DC's compressed phases; one selection per round; on the host, a copy of the model and the optimizer
           state at the rewinding point, and the dense twin, the model after round 1.
Reference  Frankle, Dziugaite, Roy, Carbin: Linear Mode Connectivity and the Lottery Ticket Hypothesis. ICML 2020.

Each round runs through the whole learning-rate curve, later rounds from the rewinding point on (`rate_step`). Weights
are written when a round begins: a loop that calls no module must call sparsifier.begin_step().
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from acdc.core.context import MethodContext
from acdc.core.method import Method
from acdc.core.result import to_cpu
from acdc.errors import ArgumentError, check_whole
from acdc.schedule import ABSOLUTE, Duration, Phase, Schedule, round_half_up


@dataclass(frozen=True, kw_only=True)
class LotteryTicket(Method):
    """See the module docstring. The schedule is a dense phase, round 1, and a sparse one for the other rounds."""

    rounds: int = 12
    rewind: str = "1ep"

    name: ClassVar[str] = "lottery"
    on_host: ClassVar[tuple[str, ...]] = ("start",)

    def __post_init__(self) -> None:
        check_whole("rounds", self.rounds, 2, "the first is dense and the last sparse, so write rounds=12")
        Duration.parse(self.rewind, "rewind", ABSOLUTE)
        super().__post_init__()
        self._refuse_fixed_sparsity("omit pattern, or use OneShot")

    def _check_phases(self) -> None:
        if [phase.kind for phase in self.schedule.phases] != ["dense", "sparse"]:
            raise self._wrong_phases("expected a dense phase and a sparse one")

    @classmethod
    def title(cls) -> str:
        return "lottery ticket"

    def default_schedule(self, epochs: int) -> Schedule:
        first = Fraction(epochs, self.rounds)
        return Schedule.from_phases([("dense", Duration(first, "ep")), ("sparse", Duration(epochs - first, "ep"))])

    def starts(self, context: MethodContext) -> list[int]:
        """Return the first step of each round, and the end of the run."""
        first, total = self._second_round(context), context.total_steps
        later = self.rounds - 1
        return [0, *(first + round_half_up(Fraction((total - first) * i, later)) for i in range(later)), total]

    def rewinds_to(self, context: MethodContext) -> int:
        """Return the step whose weights later rounds start from."""
        length = Duration.parse(self.rewind)
        step = round_half_up(length.value * (context.steps_per_epoch or 0 if length.unit == "ep" else 1))
        if step >= (first := self._second_round(context)):
            allowed = f"the first round has {first} steps, and the rewinding point must lie within it"
            instead = "write an earlier point, use fewer rounds, or train longer"
            raise ArgumentError("rewind", received=self.rewind, allowed=allowed, instead=instead)
        return step

    def _second_round(self, context: MethodContext) -> int:
        """Return the first step of the sparse phase."""
        return self.schedule.starts(context.steps_per_epoch)[1][0]

    def rate_step(self, context: MethodContext, step: int) -> int:
        starts, total = self.starts(context), context.total_steps
        index, (start, end) = next((i, s) for i, s in enumerate(pairwise(starts)) if step < s[1] or s[1] == total)
        back = Fraction(self.rewinds_to(context), starts[1]) if index else Fraction(0)  # share of the curve
        return min(int((back + (1 - back) * Fraction(step - start, end - start)) * total), total - 1)

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "sparse":
            context.keep_twin()
            self._next_round(context)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        return step == self.rewinds_to(context) or step in self.starts(context)[2:-1]

    def update(self, context: MethodContext) -> None:
        if context.step == self.rewinds_to(context):
            context.memory["start"] = {
                "model": to_cpu(context.model.state_dict()),
                "optimizer": to_cpu(context.optimizer.state_dict()["state"]),
            }
        else:
            self._next_round(context)

    def left_after(self, target: float, prunings: int) -> float:
        """Return the sparsity after some prunings, each of the same share, the last exactly to the target."""
        return target if prunings == self.rounds - 1 else 1 - (1 - target) ** (prunings / (self.rounds - 1))

    def sparsity_fraction(self, epoch: int) -> float:
        (first, total), target = self.schedule.boundaries(1), self.sparsity or 1.0
        prunings = math.ceil(Fraction((epoch + 1 - first) * (self.rounds - 1), total - first))
        return self.left_after(target, min(max(prunings, 1), self.rounds - 1)) / target

    @torch.no_grad()
    def _next_round(self, context: MethodContext) -> None:
        context.refuse_after_forward()
        if "start" not in context.memory:
            raise RuntimeError(
                f"step {context.step}: there are no weights to rewind to, because the run did not pass "
                f'rewind="{self.rewind}"; start it from step 0, or load the state of a run that did'
            )
        prunings = self.starts(context).index(context.step)
        budgets = self.budgets_along(context.layers, lambda target: self.left_after(target, prunings))
        masks, scores = context.masks, context.weights
        if masks:  # a kept weight that is 0 still comes before the pruned ones
            tiny = {name: torch.finfo(weight.dtype).tiny for name, weight in scores.items()}
            scores = {name: torch.where(masks[name], w.abs().clamp(min=tiny[name]), 0) for name, w in scores.items()}
        masks = context.choose_masks(scores, budgets)
        context.model.load_state_dict(context.memory["start"]["model"])
        _restore(context.optimizer, context.memory["start"]["optimizer"])
        context.set_masks(masks)


def _restore(optimizer: Optimizer, saved: Mapping[int, Mapping[str, Any]]) -> None:
    """Restore an optimizer's state, in place where possible; learning rates and the like stay unchanged."""
    for index, param in enumerate(param for group in optimizer.param_groups for param in group["params"]):
        if index not in saved:
            optimizer.state.pop(param, None)
            continue
        state = optimizer.state[param]
        for key, value in saved[index].items():
            if isinstance(now := state.get(key), Tensor) and isinstance(value, Tensor):
                now.copy_(value)
            else:
                state[key] = value.clone() if isinstance(value, Tensor) else value
