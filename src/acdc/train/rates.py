"""The learning rate as a function of time: pure, so that training on from any step is passing a number.

Time is counted in units of an epoch or of a step (`per`). With E units in all, W of them warm-up:

    u < W      lr · min(1, (u + 1) / W)
    u ≥ W      lr · s(u),   p = (u − W) / (E − W)

    constant   s = 1
    step       s = gamma ^ (milestones passed)
    cosine     s = final + (1 − final) · ½ (1 + cos πp)
    linear     s = final + (1 − final) · (1 − p)

With `rewarm`, the first units of every phase after the first are scaled by (u − u₀ + 1) / R, as in a warm-up.
"""

import math
from dataclasses import dataclass

from acdc.train.recipe import Rate


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
        units = self.steps_per_epoch if self.rate.per == "step" else 1
        length = self.rate.rewarm * units
        began = max((start for start in self.phases if 0 < start <= step), default=None)
        if began is None or not length:
            return 1.0
        since = (step - began) // (1 if self.rate.per == "step" else self.steps_per_epoch)
        return min(1.0, (since + 1) / length)

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
