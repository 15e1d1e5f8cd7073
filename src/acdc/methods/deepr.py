"""DEEP R: deep rewiring.

Idea       Each connection has a fixed sign. One that crosses zero becomes dormant, and another is woken at random:
           training samples networks of a given size. Noise keeps small weights moving.
Step       w = s·θ with s = ±1. For active connections θ ← θ − η ∂f/∂θ − ηα + √(2ηT) ν, with ν normal; those with θ < 0
           become dormant, and as many dormant ones of the layer become active with θ = 0.
Knobs      sparsity; distribution ("erk"); l1 α (1e-5) and temperature T (2.5e-11), as in the authors' published code
           for MNIST, whose noise is .5 · 1e-5 at its rate .5; every ("1st"), the steps between two rewirings; seed.
FLOPs      3·F per sample by the weights that are left.
Costs      with every="1st" a few passes over the weights at every step, a normal number for each that is active, and no
           torch.compile (a step that changes masks runs eagerly): write every="100st" where that hurts. Another byte a
           weight, for the signs.
Reference  Bellec, Kappel, Maass, Legenstein: Deep Rewiring: Training very sparse deep networks. ICLR 2018.

The optimizer takes the gradient step, with its momentum if it has one, and what is beyond the gradient happens as the
next step begins: k steps apart it is −kηα and √(2kηT) ν. Signs are those of the initial weights. Weights are written
then: a loop that calls no module must call sparsifier.begin_step().
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acdc.core.sparsifier import Sparsifier
from acdc.errors import wrong
from acdc.methods.base import Idle, check_every, never_updates, refuse_late
from acdc.methods.sparse import RandomStart
from acdc.methods.timing import in_steps
from acdc.schedule import Phase


@dataclass(frozen=True, kw_only=True)
class DeepR(RandomStart):
    """See the module."""

    l1: float = 1e-5
    temperature: float = 2.5e-11
    every: str = "1st"

    name: ClassVar[str] = "deepr"

    def __post_init__(self) -> None:
        for knob, instead in (("l1", "1e-5"), ("temperature", "2.5e-11")):
            value = getattr(self, knob)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise wrong(knob, value, "it is a number, 0 or more", f"write {knob}={instead}")
        check_every(self.every)
        super().__post_init__()

    @classmethod
    def title(cls) -> str:
        return "DEEP R"

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        if phase.kind == "sparse":
            sparsifier.memory["positive"] = {name: weight >= 0 for name, weight in sparsifier.weights.items()}
        super().enter(sparsifier, phase)

    def updates_at(self, sparsifier: Sparsifier, step: int) -> bool:
        return step % in_steps(self.every, sparsifier.steps_per_epoch) == 0 and step > 0

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> Idle | None:
        return never_updates(self, in_steps(self.every, steps_per_epoch), total_steps - 1, total_steps)

    @torch.no_grad()
    def update(self, sparsifier: Sparsifier) -> None:
        refuse_late(sparsifier)
        steps, positive = in_steps(self.every, sparsifier.steps_per_epoch), sparsifier.memory["positive"]
        rates = {id(param): group["lr"] for group in sparsifier.optimizer.param_groups for param in group["params"]}
        masks = sparsifier.masks
        for layer, weight in enumerate(sparsifier.layers.weights):
            if weight.name in masks:
                elapsed = steps * float(rates[id(weight.param)])
                generator = self.generator(sparsifier, layer)
                mask, param = masks[weight.name], weight.param.detach()
                masks[weight.name] = self.rewire(param, positive[weight.name], mask, elapsed, generator)
        if masks:
            sparsifier.set_masks(masks)

    def rewire(
        self, weight: Tensor, positive: Tensor, mask: Tensor, elapsed: float, generator: torch.Generator
    ) -> Tensor:
        """Move the active weights by l1 and noise over `elapsed`, η times steps; the mask without those that crossed
        zero and with as many others. Where too few are dormant, the rest of those that crossed go on from 0."""
        active = weight[mask]
        sign = positive[mask].to(weight.dtype).mul_(2).sub_(1)
        noise = torch.randn(active.numel(), generator=generator).to(active)
        active += noise * math.sqrt(2 * elapsed * self.temperature) - sign * (elapsed * self.l1)
        crossed = active * sign < 0
        weight[mask] = active.masked_fill_(crossed, 0)
        count = min(int(crossed.sum()), mask.numel() - active.numel())
        gone = mask.flatten().nonzero().flatten()[crossed][:count]
        grown = choose(~mask.flatten(), count, generator)
        new = mask.flatten().clone()
        new[gone] = False
        new[grown] = True
        return new.view(mask.shape)


def choose(among: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different positions where `among` is true, drawn uniformly. Where few are wanted, few are looked at."""
    available = int(among.sum())
    if 4 * count >= available:
        found = among.nonzero().flatten()
    else:
        found = torch.empty(0, dtype=torch.int64, device=among.device)
    while len(found) < count:
        drawn = torch.randint(among.numel(), (2 * count,), generator=generator).to(among.device)
        found = torch.cat([found, drawn[among[drawn]]]).unique()
    return found[torch.randperm(len(found), generator=generator)[:count].to(among.device)]
