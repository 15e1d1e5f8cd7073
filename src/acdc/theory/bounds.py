"""Computes what the theorems on stochastic IHT promise: the k they need, their rates, and the floor noise leaves.

The paper states them with constants inside O(·) and "k = C·k*(β/α)² for an appropriate C". Here every constant is
explicit, by the derivations in docs/theory.md. B is the inverse step: β without noise, 2β with it.

    Theorem 1         CPL and quadratic growth (α/8)‖θ − θ*‖². With x = (B/α)√(k*/(k − k*)):
                      E f⁺ − f* ≤ (1 − γ)(f − f*) + σ²/B,   γ = (α/4B)(1 − 8x − 16x²),   so x < (√2 − 1)/4
    strongly convex   on (k + k*)-sparse directions. With s = (1 − √ρ)/(1 + √ρ), ρ = k*/k:
                      E‖θ⁺ − θ*‖² ≤ (B − α)/(α + Bs)·‖θ − θ*‖² + 2σ²/(B(α + Bs)),   so k > k*(B/α − 1)²
    near-stationary   nothing but smoothness, supports optimised to ‖∇_S f‖ ≤ ε: ‖∇f‖∞ ≤ √2(βR + ε) without noise
"""

import math
import warnings
from dataclasses import dataclass

from acdc.errors import ArgumentError
from acdc.theory.constants import Constants

_WIDEST = (math.sqrt(2) - 1) / 4  # of x in Theorem 1
_NO_ALPHA = "α > 0, and none above 0 is known"


class GuaranteeWarning(UserWarning):
    """Warns that no theorem covers what was asked for. The message names the condition that is missed."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Holds what a theorem promises of IHT with one k. `rate` and `floor` mean nothing unless it applies."""

    theorem: str
    condition: str  # that k must meet, with its numbers
    k_needed: float  # the theorem applies to larger k
    applies: bool
    step: float
    rate: float  # the factor of each iteration, below 1: of f − f* (Theorem 1) or ‖θ − θ*‖² (strongly convex)
    floor: float  # of E[f − f*]
    distance_floor: float | None = None  # of E‖θ − θ*‖²

    def iterations(self, gap: float, epsilon: float) -> int:
        """Return how many iterations bring what `rate` contracts from `gap` to `epsilon` above its floor.

        The number is -1 if the theorem does not apply.
        """
        if not epsilon > 0:
            raise ArgumentError("epsilon", epsilon, "expected a positive number", "type epsilon=1e-6")
        if not self.applies:
            return -1
        if gap <= epsilon:
            return 0
        return max(0, math.ceil(math.log(epsilon / gap) / math.log(self.rate))) if self.rate > 0 else 1

    def warn(self, k: int, stacklevel: int = 3) -> None:
        """Warn if the theorem does not cover k."""
        if not self.applies:
            text = f"k={k}: {self.theorem} needs {self.condition}; the result is not covered by it"
            warnings.warn(text, GuaranteeWarning, stacklevel=stacklevel)


def theorem_1(*, alpha: float, beta: float, k: int, k_star: int, sigma2: float = 0.0) -> Bound:
    """Return what Theorem 1 gives for f that is (2k + 3k*, β)-smooth and (k*, α)-CPL."""
    _check(alpha, beta, k, k_star, sigma2, steepest=4)
    inverse = beta if sigma2 == 0 else 2 * beta
    needed = k_star * (1 + (inverse / alpha / _WIDEST) ** 2) if alpha else math.inf
    applies = k > needed
    x = inverse / alpha * math.sqrt(k_star / (k - k_star)) if applies else math.inf
    gamma = alpha / (4 * inverse) * (1 - 8 * x - 16 * x * x) if applies else 0.0
    ratio = f"k > k*(1 + {_WIDEST**-2:.1f}({'β' if sigma2 == 0 else '2β'}/α)²) = {needed:,.0f}"
    return Bound(
        theorem="Theorem 1 (CPL)", condition=ratio if alpha else _NO_ALPHA, k_needed=needed, applies=applies,
        step=1 / inverse, rate=1 - gamma, floor=sigma2 / (inverse * gamma) if applies else math.inf,
    )  # fmt: skip


def strongly_convex(
    *, alpha: float, beta: float, k: int, k_star: int, sigma2: float = 0.0, minimiser: bool = True
) -> Bound:
    """Return what holds if f is α-strongly convex along (k + k*)-sparse directions and (2k, β)-smooth.

    θ* is the k*-sparse minimiser of f. With `minimiser=False` it is only the best of the k*-sparse points, whose
    gradient need not vanish: then k must be above k*(2B/α − 1)², and the bound holds until f falls below f(θ*).
    """
    _check(alpha, beta, k, k_star, sigma2, steepest=1)
    inverse = beta if sigma2 == 0 else 2 * beta
    times, name = (1 if minimiser else 2), "β" if sigma2 == 0 else "2β"
    square = k_star * (times * inverse / alpha - 1) ** 2 if alpha else math.inf
    needed = max(square, k_star - 1)
    applies = k > needed
    root = math.sqrt(k_star / k)
    s = (1 - root) / (1 + root)
    kept = (alpha if minimiser else 0.0) + inverse * s
    applies = applies and kept > inverse - alpha
    rate = (inverse - alpha) / kept if applies else 1.0
    distance = 2 * sigma2 / (inverse * kept * (1 - rate)) if applies else math.inf
    condition = f"k > k*({'2·' if times == 2 else ''}{name}/α − 1)² = {square:,.0f}" if alpha else _NO_ALPHA
    if alpha and needed > square:
        condition = f"k ≥ k* = {k_star:,}"
    return Bound(
        theorem="the strongly convex theorem", condition=condition, k_needed=needed, applies=applies,
        step=1 / inverse, rate=rate, distance_floor=distance,
        floor=(inverse - alpha) / 2 * distance + sigma2 / inverse if applies else math.inf,
    )  # fmt: skip


@dataclass(frozen=True)
class Stationarity:
    """Bounds ‖∇f‖∞, and the iterations after which some iterate has met that bound."""

    gradient: float
    iterations: float
    in_the_paper: float  # βR√k + βσ + ε, the paper's form with 1 for its constant


def near_stationary(
    *, beta: float, k: int, radius: float, epsilon: float, decrease: float, sigma2: float = 0.0
) -> Stationarity:
    """Return what holds if f is (2k, β)-smooth and each support is optimised to gradient norm `epsilon`, ‖θ‖∞ ≤ R.

    `decrease` is f(θ₀) − f(θ_T), or any upper bound on it.
    """
    for name, value in (("beta", beta), ("radius", radius), ("epsilon", epsilon), ("decrease", decrease),
                        ("sigma2", sigma2)):  # fmt: skip
        if not value >= 0:
            raise ArgumentError(name, value, "expected a number, 0 or more")
    paper = beta * radius * math.sqrt(k) + beta * math.sqrt(sigma2) + epsilon
    if sigma2 == 0:
        scale = beta * radius + epsilon
        return Stationarity(math.sqrt(2) * scale, 2 * beta * decrease / scale**2 if scale else math.inf, paper)
    inverse = 2 * beta
    scale = 2 * (inverse * radius) ** 2 + 2 * epsilon**2 + 4 * sigma2
    return Stationarity(math.sqrt(2 * scale), 2 * inverse * decrease / scale, paper)


def best_bound(constants: Constants, k: int, k_star: int, sigma2: float = 0.0, *, minimiser: bool = True) -> Bound:
    """Return the theorem that fits what is known of α."""
    alpha = constants.alpha.value if constants.alpha else 0.0
    beta = constants.beta.value if constants.beta else math.inf
    if constants.kind == "CPL":
        return theorem_1(alpha=alpha, beta=beta, k=k, k_star=k_star, sigma2=sigma2)
    return strongly_convex(alpha=alpha, beta=beta, k=k, k_star=k_star, sigma2=sigma2, minimiser=minimiser)


def quadratic_growth(alpha: float, distance: float) -> float:
    """Return the least f − f* at this distance from θ* under (r, α)-CPL: (α/8)‖θ − θ*‖²."""
    return alpha / 8 * distance**2


def truncation_error(size: int, k: int, k_star: int) -> float:
    """Return the lemma's factor: ‖T_k(θ) − θ‖² ≤ factor·‖θ* − θ‖² for θ of `size` entries, k*-sparse θ*."""
    if size <= k:
        return 0.0
    return (size - k) / (size - k_star)


def _check(alpha: float, beta: float, k: int, k_star: int, sigma2: float, *, steepest: int) -> None:
    """Raise unless a function can have these constants; no α is above `steepest`·β."""
    if not (math.isfinite(alpha) and alpha >= 0):
        raise ArgumentError("alpha", alpha, "expected a finite number, 0 or more")
    if not beta > 0:
        raise ArgumentError("beta", beta, "expected a positive number")
    if alpha > steepest * beta * (1 + 1e-9):
        most = f"{steepest if steepest > 1 else ''}β = {steepest * beta:g}"
        raise ArgumentError("alpha", alpha, f"no function has an α above {most}", "check which is which")
    if not sigma2 >= 0:
        raise ArgumentError("sigma2", sigma2, "expected a variance, 0 or more")
    for name, value in (("k", k), ("k_star", k_star)):
        if value < 1:
            raise ArgumentError(name, value, "expected a whole number, 1 or more")
