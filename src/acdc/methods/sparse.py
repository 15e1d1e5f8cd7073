"""Methods that are sparse from the first step to the last, and replace a few weights now and then."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from acdc.core.sparsifier import Sparsifier
from acdc.errors import check_whole, wrong
from acdc.methods.base import Base, Idle, check_every, never_updates
from acdc.methods.timing import fraction, in_steps
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Distribution
from acdc.sparsity.masks import as_bool
from acdc.sparsity.patterns import Unstructured
from acdc.sparsity.topk import top_k

Growth = Callable[[str, Tensor], Tensor | None]
"""From a layer's name and its mask to scores for growing: the largest grow. None leaves the layer as it is."""


@dataclass(frozen=True, kw_only=True)
class RandomStart(Base):
    """Random masks at the first step, by the distribution's budgets.

    seed   of the random choices, which are a function of it, the step and the layer: the same on every rank
    """

    distribution: Distribution = "erk"
    seed: int = 0

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if self.distribution == "global":
            raise ValueError(
                f"distribution='global': {kind} starts from random masks, which have no global threshold; write "
                "distribution='erk' or 'uniform'"
            )
        if not isinstance(self.pattern, Unstructured):
            raise wrong("pattern", self.pattern, f"{kind} places single weights", "leave pattern out, or use ACDC")
        check_whole("seed", self.seed, 0, "write seed=0")
        super().__post_init__()

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        if phase.kind == "dense":
            sparsifier.decompress(reset="momentum")
            return
        scores = {
            weight.name: self.random(sparsifier, index, weight.param) + 1e-6
            for index, weight in enumerate(sparsifier.layers.weights)
        }
        sparsifier.compress(scores=scores)

    def generator(self, sparsifier: Sparsifier, layer: int) -> torch.Generator:
        """Of random numbers that are a function of seed, step and layer; on the CPU, so the same on any device."""
        return torch.Generator().manual_seed((self.seed * 1_000_003 + sparsifier.step) * 10_007 + layer)

    def random(self, sparsifier: Sparsifier, layer: int, like: Tensor) -> Tensor:
        """Uniform numbers in [0, 1)."""
        return torch.rand(like.shape, generator=self.generator(sparsifier, layer)).to(like.device)


@dataclass(frozen=True, kw_only=True)
class SparseThroughout(RandomStart):
    """Random masks at the first step; then drop and grow, layer by layer.

    drop   the share of a layer's kept weights replaced at an update, at first
    every  steps between two updates, "100st" or "1ep"
    end    no update after this fraction of the run
    """

    drop: float = 0.3
    every: str = "100st"
    end: float = 0.75

    def __post_init__(self) -> None:
        fraction("drop", self.drop, "0.3", "the kept weights")
        fraction("end", self.end, "0.75")
        if not self.end:
            raise wrong("end", self.end, "updates end after they begin", "write end=0.75, or use Static for none")
        check_every(self.every)
        super().__post_init__()

    def updates_at(self, sparsifier: Sparsifier, step: int) -> bool:
        every = in_steps(self.every, sparsifier.steps_per_epoch)
        return 0 < step <= self.last_update(sparsifier) and step % every == 0

    def last_update(self, sparsifier: Sparsifier) -> int:
        return math.floor(self.end * sparsifier.total_steps)

    def idle(self, total_steps: int, steps_per_epoch: int | None) -> Idle | None:
        last = min(math.floor(self.end * total_steps), total_steps - 1)
        return never_updates(self, in_steps(self.every, steps_per_epoch), last, total_steps)

    def fraction_at(self, step: int, last: int) -> float:
        """The share of kept weights replaced at an update."""
        return self.drop

    @torch.no_grad()
    def replace_weights(self, sparsifier: Sparsifier, growth: Growth) -> None:
        """In each layer drop the smallest kept weights and grow as many pruned ones, by score. Those dropped may not
        grow at once. Counts stay exact: where fewer can grow than would be dropped, fewer are dropped."""
        share = self.fraction_at(sparsifier.step, self.last_update(sparsifier))
        masks, weights = sparsifier.masks, sparsifier.weights
        changed = {}
        for name, mask in masks.items():
            kept = int(mask.sum())
            count = min(math.floor(share * kept), mask.numel() - kept)
            scores = growth(name, mask) if count else None
            if scores is not None:
                changed[name] = exchange(weights[name].abs(), scores, mask, count)
        if changed:
            sparsifier.set_masks(changed)


def exchange(magnitude: Tensor, growth: Tensor, mask: Tensor, count: int) -> Tensor:
    """The mask with the `count` kept weights of smallest magnitude dropped, and grown instead the `count` weights of
    largest growth score among those that were pruned. Exact, ties spread by position, as at a compression."""
    stay = largest(magnitude, mask, int(mask.sum()) - count)
    return stay | largest(growth, ~mask, count)


def largest(scores: Tensor, among: Tensor, count: int) -> Tensor:
    """The `count` largest scores among some entries. Those that score 0 still come before entries not asked for."""
    least = torch.finfo(scores.dtype).tiny
    chosen = top_k({"": torch.where(among, scores.clamp(min=least), 0)}, count)[""]
    return as_bool(chosen)
