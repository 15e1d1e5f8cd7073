"""Top-KAST: top-k always sparse training.

Idea       Compute with the largest weights A, but give gradients to a larger set B, so that weights just outside A can
           grow into it; all others stay fixed.
Step       every `every` steps A ← the largest |θ| at the forward sparsity, B ⊃ A those at the backward sparsity. Each
           step takes the gradient at θ·1_A and moves θ on B only:
           θ ← θ − η 1_B (∇f(θ·1_A) + λ θ (1_A + 1_{B∖A} / D)),  D the density of A.
           The penalty (paper, §2.3) makes room in A: weights in it shrink, and those only in B shrink faster.
Knobs      sparsity, of the forward set; backward, of the backward set, at most as high (unset: twice the forward
           density, like the paper's 90 % / 80 %); every ("100st"; the paper updates masks every step and finds 100 as
           good); decay λ (unset: the optimizer's weight decay, which then is the penalty's first part; if set, λ is
           added to it. The paper's ImageNet runs have 1e-4); explore, the fraction of the run after which B = A (1:
           never). distribution "uniform": the paper keeps the largest of each layer and leaves the first and last
           layer dense in some tables (first_and_last_dense).
FLOPs      F_A forward + F_A for the inputs' gradients + F_B for the weights', per sample.
Costs      a dense copy of the weights and up to 8 bytes per weight for the penalty and the mask of B; here the backward
           pass is dense and then masked. Two selections per update; about a dozen passes over the weights per step.
Reference  Jayakumar, Pascanu, Rae, Osindero, Elsen: Top-KAST: Top-K Always Sparse Training. NeurIPS 2020.

The first masks come from the initial weights. The optimizer's own weight decay and momentum move only weights of B.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acdc.core.context import MethodContext
from acdc.core.latent import Bundle
from acdc.core.method import Idle, Method
from acdc.errors import ArgumentError
from acdc.methods._knobs import check_every, check_fraction, check_not_negative, in_steps, never_updates
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Distribution, check_sparsity
from acdc.sparsity.masks import bits_of, from_bool, widen, write_masked


@dataclass(frozen=True, kw_only=True)
class TopKAST(Method):
    """See the module docstring."""

    backward: float | None = None
    distribution: Distribution = "uniform"
    every: str = "100st"
    decay: float | None = None
    explore: float = 1.0

    name: ClassVar[str] = "top_kast"
    by_layer: ClassVar[tuple[str, ...]] = ("share",)
    straight_through: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_every(self.every)
        check_fraction("explore", self.explore, "1.0")
        if self.decay is not None:
            check_not_negative("decay", self.decay, "1e-4, or omit it", "a penalty")
        super().__post_init__()
        if self.backward is None:
            return
        check_sparsity("backward", self.backward)
        if self.sparsity is not None and self.backward > self.sparsity:
            raise ArgumentError(
                "backward",
                received=self.backward,
                allowed=f"expected at most the forward sparsity, {self.sparsity!r}: the weights that get gradients "
                "include those the model computes with",
                instead=f"write backward={self.backward_of(self.sparsity):g}, or omit it",
            )

    @classmethod
    def title(cls) -> str:
        return "Top-KAST"

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def backward_of(self, forward: float) -> float:
        """Return the default sparsity of the backward set: twice as many weights."""
        return round(max(0.0, 2 * forward - 1), 12)

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        """Return F_A + F_A + F_B, assuming that B leaves out the same share of what A does in each layer.

        That is exact if all layers are equally sparse, or left dense.
        """
        forward = self.sparsity if self.sparsity is not None else 1 - flops / dense
        backward = self.backward_of(forward) if self.backward is None else self.backward
        share = min(1.0, backward / forward) if forward else 0.0
        return 2 * flops + dense - share * (dense - flops)

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.decompress(reset="momentum")
        else:
            self._choose(context)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        each = context.steps_per_epoch
        return step % in_steps(self.every, each) == 0 and self.schedule.phase_at(step, each).kind == "sparse"

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> Idle | None:
        return never_updates(self, total_steps - 1, total_steps, steps_per_epoch)

    def update(self, context: MethodContext) -> None:
        self._choose(context)

    @torch.no_grad()
    def _choose(self, context: MethodContext) -> None:
        """Write A into the masks, and each weight's share of the penalty into memory: 1 on A, 1/D on B∖A, else 0."""
        context.use_latent_weights()
        weights, wider = context.weights, {}
        if context.step < math.floor(self.explore * context.total_steps):
            budgets = self.budgets_along(
                context.layers,
                lambda forward: self.backward_of(forward) if self.backward is None else min(self.backward, forward),
            )
            wider = context.choose_masks(weights, budgets)
        context.compress(scores=weights)
        shares = context.memory["share"] = {}
        context.memory.pop("moves", None)
        for name, kept in context.masks.items():
            share = kept.to(weights[name].dtype)
            if wider:
                count = kept.count_nonzero().clamp_(min=1)
                share = torch.where(wider[name] & ~kept, torch.full_like(count, kept.numel()) / count, share)
            shares[name] = share

    def _moves(self, context: MethodContext) -> dict[str, Tensor]:
        """Return masks of the weights that move, computed from their shares."""
        memory = context.memory
        if "moves" not in memory:
            memory["moves"] = {name: widen(from_bool(share != 0), share) for name, share in memory["share"].items()}
        return memory["moves"]

    def effective_weights(self, context: MethodContext, bundle: Bundle, latent: Tensor, out: Tensor) -> None:
        context.write_masked(bundle, latent, out)

    def latent_gradient(self, context: MethodContext, bundle: Bundle, grad: Tensor, latent: Tensor) -> None:
        share = bundle.join(context.memory["share"])
        write_masked(grad, bundle.join(self._moves(context)), out=grad)
        if self.decay is not None:
            grad.addcmul_(share, latent, value=self.decay)
        elif decay := context.param_group(bundle).get("weight_decay", 0.0):
            grad.add_((share - 1).clamp_(min=0).mul_(latent).mul_(decay))  # the optimizer itself adds λθ

    def after_step(self, context: MethodContext, bundle: Bundle, before: Tensor, after: Tensor) -> None:
        """Undo the step of weights that stay fixed: before + moves · (after − before), on the bits."""
        before, after = bits_of(before), bits_of(after)
        after.bitwise_xor_(before).bitwise_and_(bundle.join(self._moves(context))).bitwise_xor_(before)
