"""Methods that are sparse from the first step to the last, and replace a few weights now and then."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from acdc.core.context import MethodContext
from acdc.core.method import Idle, Method
from acdc.errors import ArgumentError, check_whole
from acdc.methods._knobs import check_every, check_fraction, in_steps, never_updates
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Distribution, check_distribution, groups_of
from acdc.sparsity.masks import as_bool
from acdc.sparsity.patterns import Unstructured
from acdc.sparsity.topk import top_k

Growth = Callable[[str, Tensor], Tensor | None]
"""Returns growth scores for a layer, given its name and mask: the largest grow. None leaves the layer as it is."""


@dataclass(frozen=True, kw_only=True)
class RandomStart(Method):
    """A method that starts with random masks at the first step, by the distribution's budgets.

    seed   the seed of the random choices, which depend on it, the step and the layer: the same on every rank
    """

    distribution: Distribution = "erk"
    seed: int = 0

    def __post_init__(self) -> None:
        kind = type(self).__name__
        check_distribution(self.distribution)
        grouped = [rule for rule, (name, _) in groups_of(self.distribution).items() if name == "global"]
        if self.distribution == "global" or grouped:
            raise ArgumentError(
                f"distribution[{grouped[0]!r}]" if grouped else "distribution",
                received="global",
                allowed=f"{kind} starts from random masks, which have no global threshold",
                instead="write {'erk': 0.5}, or 'uniform'" if grouped else "write distribution='erk' or 'uniform'",
            )
        if not isinstance(self.pattern, Unstructured):
            allowed = f"{kind} prunes single weights"
            instead = "omit pattern, or use ACDC"
            raise ArgumentError("pattern", received=self.pattern, allowed=allowed, instead=instead)
        check_whole("seed", self.seed, 0, "write seed=0")
        super().__post_init__()

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.decompress(reset="momentum")
            return
        scores = {
            weight.name: self.random(context, index, weight.param) + 1e-6
            for index, weight in enumerate(context.layers.weights)
        }
        context.compress(scores=scores)

    def generator(self, context: MethodContext, layer: int) -> torch.Generator:
        """Return a generator seeded by seed, step and layer; on the CPU, so that all devices draw the same."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + context.step) * 10_007 + layer)

    def random(self, context: MethodContext, layer: int, like: Tensor) -> Tensor:
        """Draw uniform numbers in [0, 1)."""
        return torch.rand(like.shape, generator=self.generator(context, layer)).to(like.device)


@dataclass(frozen=True, kw_only=True)
class SparseThroughout(RandomStart):
    """A method that starts with random masks at the first step; then drops and grows weights, layer by layer.

    drop   the share of a layer's kept weights replaced at an update, initially
    every  steps between two updates, "100st" or "1ep"
    end    no update after this fraction of the run
    """

    drop: float = 0.3
    every: str = "100st"
    end: float = 0.75

    def __post_init__(self) -> None:
        check_fraction("drop", self.drop, "0.3", "the kept weights")
        check_fraction("end", self.end, "0.75")
        if not self.end:
            instead = "write end=0.75, or use Static for no updates"
            raise ArgumentError("end", received=self.end, allowed="updates must end after they begin", instead=instead)
        check_every(self.every)
        super().__post_init__()

    def updates_at(self, context: MethodContext, step: int) -> bool:
        every = in_steps(self.every, context.steps_per_epoch)
        return 0 < step <= self.last_update(context) and step % every == 0

    def last_update(self, context: MethodContext) -> int:
        return math.floor(self.end * context.total_steps)

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> Idle | None:
        last = min(math.floor(self.end * total_steps), total_steps - 1)
        return never_updates(self, last, total_steps, steps_per_epoch)

    def fraction_at(self, step: int, last: int) -> float:
        """Return the share of kept weights replaced at an update."""
        return self.drop

    @torch.no_grad()
    def replace_weights(self, context: MethodContext, growth: Growth) -> None:
        """Drop the smallest kept weights of each layer and grow as many pruned ones, by score.

        Dropped weights do not grow back at once. Counts stay exact: if fewer can grow than would be dropped, fewer
        are dropped.
        """
        share = self.fraction_at(context.step, self.last_update(context))
        masks, weights = context.masks, context.weights
        changed = {}
        for name, mask in masks.items():
            kept = int(mask.sum())
            count = min(math.floor(share * kept), mask.numel() - kept)
            scores = growth(name, mask) if count else None
            if scores is not None:
                changed[name] = exchange(weights[name].abs(), scores, mask, count)
        if changed:
            context.set_masks(changed)


def exchange(magnitude: Tensor, growth: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return the mask with its `count` smallest kept weights dropped, and `count` others grown instead.

    The pruned weights with the largest growth scores grow. Counts are exact, and ties are spread by position, as at a
    compression.
    """
    stay = largest(magnitude, mask, int(mask.sum()) - count)
    return stay | largest(growth, ~mask, count)


def largest(scores: Tensor, among: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` largest scores among some entries, which come before all others even at 0."""
    least = torch.finfo(scores.dtype).tiny
    chosen = top_k({"": torch.where(among, scores.clamp(min=least), 0)}, count)[""]
    return as_bool(chosen)
