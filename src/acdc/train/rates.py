"""The learning rate as a function of time: pure, so that training on from any step is passing a number.

Time is counted in units of an epoch or of a step (`per`). With E units in all, W of them warm-up:

    u < W      lr · min(1, (u + 1) / W)
    u ≥ W      lr · s(u),   p = (u − W) / (E − W)

    constant   s = 1
    step       s = gamma ^ (milestones passed)
    cosine     s = final + (1 − final) · ½ (1 + cos πp)
    linear     s = final + (1 − final) · (1 − p)

With `rewarm`, the first R steps of every phase after the first are scaled by (t − t₀ + 1) / R, from step t₀ on: by step
whatever `per` says, since an epoch's warm-up by epochs would be none.
"""

import math
from dataclasses import dataclass

from acdc.recipes.schema import Rate


@dataclass(frozen=True)
class Rates:
    rate: Rate
    lr: float
    epochs: int
    steps_per_epoch: int
    phases: tuple[int, ...] = ()  # the steps at which phases begin

    def at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self._shape(step) * self._rewarmed(step)

    def _rewarmed(self, step: int) -> float:
        length = self.rate.rewarm * self.steps_per_epoch
        began = max((start for start in self.phases if 0 < start <= step), default=None)
        return 1.0 if began is None or not length else min(1.0, (step - began + 1) / length)

    def _shape(self, step: int) -> float:
        rate = self.rate
        units = self.steps_per_epoch if rate.per == "step" else 1  # in an epoch
        unit = step if rate.per == "step" else step // self.steps_per_epoch
        total, warmup = self.epochs * units, min(rate.warmup * units, self.epochs * units - 1)
        if unit < warmup:
            return self.lr * min(1.0, (unit + 1) / warmup)
        done = (unit - warmup) / (total - warmup)
        return self.lr * self._share(unit / units, done)

    def _share(self, epoch: float, done: float) -> float:
        rate = self.rate
        if rate.shape == "step":
            return rate.gamma ** sum(epoch >= milestone for milestone in rate.milestones)
        if rate.shape == "cosine":
            return rate.final + (1 - rate.final) * (1 + math.cos(math.pi * done)) / 2
        if rate.shape == "linear":
            return rate.final + (1 - rate.final) * (1 - done)
        return 1.0
