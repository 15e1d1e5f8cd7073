"""Certifies the point at which IHT stopped: says what can be proved of it, and under which condition.

Without any assumption: the gradient on the support and off it, and whether θ = T_k(θ − η∇f(θ)), IHT's fixed point.

How far f(θ) is above the best k*-sparse point v needs a lower bound on f. With strong convexity α along θ − v,

    f(θ) − f(v) ≤ ⟨∇f, θ − v⟩ − (α/2)‖θ − v‖² ≤ ‖∇_{S ∪ supp v} f‖²/2α ≤ (‖∇_S f‖² + ‖T_k*(∇_{Sᶜ} f)‖²)/2α,

and with (k*, α)-CPL the definition itself gives f(θ) − f* ≤ (2/α)‖T_k*(∇f)‖².
"""

from dataclasses import dataclass

import numpy as np

from acdc.theory.constants import Constants
from acdc.theory.problems import Problem
from acdc.theory.truncation import SparseVector, largest

_ROUNDING = 1e-6  # relative: how near 0 the gradient on the support of a fixed point is


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Holds what is proved at a point. `gap` bounds f(θ) − f(v) for every k*-sparse v; it is None if nothing does."""

    value: float
    gradient_on_support: float  # ‖∇_S f‖
    gradient_off_support: float  # max |∇_i f| over i outside S
    is_fixed_point: bool  # of IHT with the step it was run with
    gap: float | None
    condition: str  # under which the gap is proved
    is_verified: bool  # True if the condition was computed or bounded, not assumed

    def __str__(self) -> str:
        fixed = "a fixed point of IHT" if self.is_fixed_point else "not a fixed point of IHT"
        lines = [
            f"f = {self.value:.6g}; {fixed}: gradient {self.gradient_on_support:.3g} on the support, "
            f"at most {self.gradient_off_support:.3g} off it"
        ]
        if self.gap is None:
            return f"{lines[0]}\nno bound on f − f*: {self.condition}"
        return (
            f"{lines[0]}\nf − f* ≤ {self.gap:.3g}, given {self.condition}{'' if self.is_verified else ', not proved'}"
        )


def certify(
    problem: Problem,
    theta: SparseVector,
    *,
    step: float,
    k_star: int,
    k: int | None = None,
    constants: Constants | None = None,
) -> Certificate:
    """Return what is proved at θ, against every k*-sparse point.

    `k` is the budget that IHT ran with, as many entries as θ has unless given. If θ has fewer, any gradient off its
    support would add one, and θ is no fixed point.
    """
    prediction = problem.predict(theta)
    gradient = problem.gradient_at(prediction, theta)
    on = float(np.linalg.norm(gradient[theta.indices]))
    rest = gradient.copy()
    rest[theta.indices] = 0.0
    off = float(np.abs(rest).max(initial=0.0))
    scale = max(theta.norm / step, float(np.finfo(np.float64).tiny))
    is_full = len(theta.indices) == theta.size
    weakest = theta.smallest if len(theta.indices) >= (k or 0) else 0.0
    fixed = on <= _ROUNDING * scale and (is_full or step * off <= weakest * (1 + _ROUNDING))
    gap, condition, verified = None, "strong convexity was not asked for; pass constants", False
    if constants is not None and constants.alpha is not None:
        alpha = constants.alpha
        if alpha.value <= 0:
            condition = f"α is 0 ({alpha.why or alpha.how}): add a ridge, or more samples"
        elif constants.kind == "CPL":
            top = gradient[largest(gradient, min(k_star, len(gradient)))]
            gap, verified = 2 / alpha.value * float(top @ top), alpha.is_proved
            condition = f"({k_star}, α)-CPL with α = {alpha}"
        else:
            top = rest[largest(rest, min(k_star, len(rest)))]
            gap, verified = (on**2 + float(top @ top)) / (2 * alpha.value), alpha.is_proved
            condition = f"strong convexity along (k + {k_star})-sparse directions with α = {alpha}"
    return Certificate(
        value=problem.value_at(prediction, theta), gradient_on_support=on, gradient_off_support=off,
        is_fixed_point=bool(fixed), gap=gap, condition=condition, is_verified=verified,
    )  # fmt: skip
