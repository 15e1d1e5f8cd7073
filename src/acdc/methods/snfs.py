"""SNFS: sparse networks from scratch, by sparse momentum.

Idea       Stay sparse throughout; after each epoch drop the smallest weights, and redistribute their places over the
           layers, and over the pruned weights in them, by the momentum of the gradient.
Step       M ← β M + (1 − β) ∇f(θ) for every weight, pruned or not. Every epoch: drop the ⌊ζ(t)·k⌋ kept weights of
           smallest |θ| in each layer; of all that were dropped, a layer grows a share ∝ the mean |M| of its kept
           weights, where |M| is largest; ζ(t) = ½ ζ (1 + cos(π t / T)). New weights start at 0.
Knobs      sparsity; distribution at the start ("uniform"); drop ζ (.5, .2 for ImageNet); beta β (.9); every ("1ep");
           end, as a fraction (1); seed.
FLOPs      2·F + F_D per sample: the gradient of all weights is needed at every step.
Costs      another 4 bytes per weight for M, and a pass over all gradients at every step, which are masked only after
           that. A loop that clips must call sparsifier.mask_gradients() first, or clipping sees them unmasked.
Reference  Dettmers, Zettlemoyer: Sparse Networks from Scratch: Faster Training without Losing Performance. 2019.

As in the authors' code, a weight just dropped may grow back at once, and then keeps its value. No layer falls below
one weight; what a full layer cannot take, the others share by the same rule (in the authors' code, equally).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch

from acdc.core.context import MethodContext
from acdc.methods._knobs import check_fraction
from acdc.methods._sparse import SparseThroughout, largest
from acdc.sparsity.distributions import Distribution, round_to_total


@dataclass(frozen=True, kw_only=True)
class SNFS(SparseThroughout):
    """See the module docstring."""

    distribution: Distribution = "uniform"
    drop: float = 0.5
    every: str = "1ep"
    end: float = 1.0
    beta: float = 0.9

    name: ClassVar[str] = "snfs"
    by_layer: ClassVar[tuple[str, ...]] = ("momentum",)

    def __post_init__(self) -> None:
        check_fraction("beta", self.beta, "0.9", "the gradients' running mean")
        super().__post_init__()

    def fraction_at(self, step: int, last: int) -> float:
        return self.drop / 2 * (1 + math.cos(math.pi * step / max(1, last)))

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        return 2 * flops + dense

    def observes_at(self, context: MethodContext, step: int) -> bool:
        return step < self.last_update(context)

    def observe(self, context: MethodContext) -> None:
        gradients, momentum = context.gradients, context.memory.setdefault("momentum", {})
        for name, gradient in gradients.items():
            if name not in momentum:
                momentum[name] = torch.zeros_like(gradient)
        averages = [momentum[name] for name in gradients]
        torch._foreach_lerp_(averages, list(gradients.values()), 1 - self.beta)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def update(self, context: MethodContext) -> None:
        share = self.fraction_at(context.step, self.last_update(context))
        masks, weights = context.masks, context.weights
        momentum = {name: m.abs() for name, m in context.memory.get("momentum", {}).items() if name in masks}
        if not share or not momentum:
            return
        kept = {name: int(masks[name].sum()) for name in momentum}
        drop = {name: min(math.floor(share * count), count - 1) for name, count in kept.items()}
        stay = {name: largest(weights[name].abs(), masks[name], kept[name] - drop[name]) for name in momentum}
        grow = share_out(
            sum(drop.values()),
            [float(momentum[name][masks[name]].double().mean()) for name in momentum],
            [masks[name].numel() - kept[name] + drop[name] for name in momentum],
        )
        context.set_masks(
            {
                name: stay[name] | largest(momentum[name], ~stay[name], count)
                for name, count in zip(momentum, grow, strict=True)
            }
        )


def share_out(total: int, weights: Sequence[float], room: Sequence[int]) -> list[int]:
    """Return whole numbers that add up to `total`, in proportion to the weights, none above its room.

    A full entry stays full, and the others share what remains; entries of weight 0 come last. Shares are rounded by
    largest remainders, earlier entries first.
    """
    weight = [Fraction(w) if w > 0 else Fraction(1, 10**60) for w in weights]
    full: set[int] = set()
    while True:
        free = [i for i in range(len(weight)) if i not in full]
        remaining = total - sum(room[i] for i in full)
        scale = remaining / sum((weight[i] for i in free), Fraction(0)) if free else Fraction(0)
        if not (more := [i for i in free if weight[i] * scale > room[i]]):
            break
        full.update(more)
    exact = [Fraction(room[i]) if i in full else weight[i] * scale for i in range(len(weight))]
    return round_to_total(exact, total)
