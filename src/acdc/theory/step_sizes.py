"""Chooses the step sizes of IHT.

ConstantStep is the theorems': 1/β, or 1/2β if gradients are noisy, with what mini-batches add to β. AdaptiveStep
needs no β: it proposes the step that is best along the gradient on the support (normalised IHT) and halves it until

    f(θ⁺) ≤ f(θ) + ⟨∇f(θ), θ⁺ − θ⟩ + ‖θ⁺ − θ‖²/2η,

which is all that the proofs use of smoothness, so that f never rises. A trial costs products with the support's columns
only, no gradient.
"""

from dataclasses import dataclass

import numpy as np

from acdc.errors import ArgumentError


@dataclass(frozen=True)
class ConstantStep:
    """Takes the same step in every iteration: `size`, or that of the theorems if it is None."""

    size: float | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not (np.isfinite(self.size) and self.size > 0):
            raise ArgumentError("size", self.size, "expected a positive, finite number", "leave it out for 1/β")


@dataclass(frozen=True)
class AdaptiveStep:
    """Takes the step of normalised IHT, multiplied by `shrink` as often as it fails the line search."""

    shrink: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.shrink < 1:
            raise ArgumentError("shrink", self.shrink, "expected a number between 0 and 1")


StepRule = ConstantStep | AdaptiveStep
