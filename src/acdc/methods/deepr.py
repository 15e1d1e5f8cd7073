"""DEEP R: deep rewiring.

Idea       Each connection has a fixed sign. One that crosses zero becomes dormant, and another is activated at random:
           training samples networks of a given size. Noise keeps small weights moving.
Step       w = s·θ with s = ±1. For active connections θ ← θ − η ∂f/∂θ − ηα + √(2ηT) ν, with ν normal; those with θ < 0
           become dormant, and as many dormant ones of the layer become active with θ = 0.
Knobs      sparsity; distribution ("erk"); l1 α (1e-5) and temperature T (2.5e-11), as in the authors' published code
           for MNIST, whose noise is .5 · 1e-5 at its rate .5; every ("1st"), the steps between two rewirings; seed.
FLOPs      3·F per sample, counting the remaining weights.
Costs      with every="1st" a few passes over the weights at every step, a normal random number for each active one, and
           no torch.compile (a step that changes masks runs eagerly): write every="100st" if that hurts. Another byte
           per weight, for the signs.
Reference  Bellec, Kappel, Maass, Legenstein: Deep Rewiring: Training very sparse deep networks. ICLR 2018.

The optimizer takes the gradient step, with its momentum if it has one; the other terms are added when the next step
begins: k steps apart they are −kηα and √(2kηT) ν. Signs are those of the initial weights. Since weights are written
when a step begins, a loop that calls no module must call sparsifier.begin_step().
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acdc.core.context import MethodContext
from acdc.core.method import Idle
from acdc.methods._knobs import check_every, check_not_negative, in_steps, never_updates
from acdc.methods._sparse import RandomStart
from acdc.schedule import Phase


@dataclass(frozen=True, kw_only=True)
class DeepR(RandomStart):
    """See the module docstring."""

    l1: float = 1e-5
    temperature: float = 2.5e-11
    every: str = "1st"

    name: ClassVar[str] = "deepr"

    def __post_init__(self) -> None:
        for knob, instead in (("l1", "1e-5"), ("temperature", "2.5e-11")):
            check_not_negative(knob, getattr(self, knob), instead)
        check_every(self.every)
        super().__post_init__()

    @classmethod
    def title(cls) -> str:
        return "DEEP R"

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "sparse":
            context.memory["positive"] = {name: weight >= 0 for name, weight in context.weights.items()}
        super().enter(context, phase)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        return step % in_steps(self.every, context.steps_per_epoch) == 0 and step > 0

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> Idle | None:
        return never_updates(self, total_steps - 1, total_steps, steps_per_epoch)

    @torch.no_grad()
    def update(self, context: MethodContext) -> None:
        context.refuse_after_forward()
        steps, positive = in_steps(self.every, context.steps_per_epoch), context.memory["positive"]
        rates = {id(param): group["lr"] for group in context.optimizer.param_groups for param in group["params"]}
        masks = context.masks
        for layer, weight in enumerate(context.layers.weights):
            if weight.name in masks:
                elapsed = steps * float(rates[id(weight.param)])
                generator = self.generator(context, layer)
                mask, param = masks[weight.name], weight.param.detach()
                masks[weight.name] = self.rewire(param, positive[weight.name], mask, elapsed, generator)
        if masks:
            context.set_masks(masks)

    def rewire(
        self, weight: Tensor, positive: Tensor, mask: Tensor, elapsed: float, generator: torch.Generator
    ) -> Tensor:
        """Move the active weights by l1 and noise over `elapsed`, η times steps, and return the new mask.

        It lacks those that crossed zero and has as many others instead. If too few are dormant, the rest of those
        that crossed continue from 0.
        """
        active = weight[mask]
        sign = positive[mask].to(weight.dtype).mul_(2).sub_(1)
        noise = torch.randn(active.numel(), generator=generator).to(active)
        active += noise * math.sqrt(2 * elapsed * self.temperature) - sign * (elapsed * self.l1)
        crossed = active * sign < 0
        weight[mask] = active.masked_fill_(crossed, 0)
        count = min(int(crossed.sum()), mask.numel() - active.numel())
        dropped = mask.flatten().nonzero().flatten()[crossed][:count]
        grown = choose(~mask.flatten(), count, generator)
        new = mask.flatten().clone()
        new[dropped] = False
        new[grown] = True
        return new.view(mask.shape)


def choose(among: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` different positions where `among` is true, uniformly; for a small count, look at only a few."""
    available = int(among.sum())
    if 4 * count >= available:
        chosen = among.nonzero().flatten()
    else:
        chosen = torch.empty(0, dtype=torch.int64, device=among.device)
    while len(chosen) < count:
        drawn = torch.randint(among.numel(), (2 * count,), generator=generator).to(among.device)
        chosen = torch.cat([chosen, drawn[among[drawn]]]).unique()
    return chosen[torch.randperm(len(chosen), generator=generator)[:count].to(among.device)]
