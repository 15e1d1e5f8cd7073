"""Runs iterative hard thresholding, θ ← T_k(θ − η g): g is the gradient, or an estimate of it in stochastic IHT.

The paper (§3, eq. 1) studies it as the theory behind AC/DC; it is also a quick solver of sparse regression with a hard
budget of k entries. Its cost is one product with the design's transpose an iteration: everything else touches the k
columns of a support.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acdc.errors import ArgumentError
from acdc.theory.bounds import best_bound
from acdc.theory.certificates import Certificate, certify
from acdc.theory.constants import Constant, Constants
from acdc.theory.design_matrix import check_finite
from acdc.theory.problems import Problem, as_sparse
from acdc.theory.step_sizes import AdaptiveStep, ConstantStep, StepRule
from acdc.theory.truncation import (
    Places,
    SparseVector,
    Vector,
    check_count,
    check_k,
    difference,
    gradient_step,
    largest,
    reachable,
    truncate,
)

_BACKTRACKS = 60
_SLACK = 1e-12  # relative rounding allowed in a comparison of values


@dataclass(frozen=True)
class History:
    """Records every iteration. `values` starts with f at the start, so it has one number more than `steps`."""

    values: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)  # ‖θ⁺ − θ‖
    points: list[SparseVector] = field(default_factory=list)  # if they were asked for


@dataclass(frozen=True, kw_only=True)
class IHTResult:
    """Tells where IHT stopped, what it did, and what is proved there."""

    theta: SparseVector
    iterations: int
    converged: bool  # the last step moved θ by less than the tolerance
    history: History
    constants: Constants | None
    certificate: Certificate | None
    gradients: float  # evaluated, counted in passes over the samples
    seconds: float

    @property
    def value(self) -> float:
        return self.history.values[-1]


def iht(
    problem: Problem,
    k: int,
    *,
    step: StepRule | None = None,
    batch: int | None = None,
    noise: float = 0.0,
    iterations: int = 1000,
    tolerance: float = 1e-8,
    refine: int = 0,
    start: SparseVector | Vector | None = None,
    k_star: int | None = None,
    constants: Constants | None = None,
    certificate: bool = True,
    keep_points: bool = False,
    seed: int | np.random.Generator = 0,
) -> IHTResult:
    """Minimise f under ‖θ‖₀ ≤ k.

    step         ConstantStep() unless given: 1/β, 1/2β with noise, shorter for small batches
    batch        samples in a stochastic gradient; all of them unless given
    noise        σ: Gaussian noise with E‖g − ∇f‖² = σ² is added to each gradient
    tolerance    stop once a step moves θ by less than this, relative to ‖θ‖; with noise all iterations are done
    refine       products with the Hessian spent on each new support: optimises it (hard thresholding pursuit)
    k_star       sparsity of the minimiser that f is taken to have: IHT warns if no theorem covers k for it
    constants    α and β if they are known; else they are computed when something needs them
    certificate  say what is proved at the end
    keep_points  keep every θ in the history
    """
    check_k(k, problem.size)
    check_count("iterations", iterations, 0, "type iterations=1000")
    check_count("refine", refine, 0, "type refine=0")
    if batch is not None:
        check_count("batch", batch, 1, "leave batch out for whole gradients")
    if not (np.isfinite(noise) and noise >= 0):
        raise ArgumentError("noise", noise, "expected a standard deviation, 0 or more")
    if not (np.isfinite(tolerance) and tolerance >= 0):
        raise ArgumentError("tolerance", tolerance, "expected a finite number, 0 or more", "type tolerance=1e-8")
    if k_star is not None:
        check_count("k_star", k_star, 1, f"type a number from 1 to {k}")
    noisy = batch is not None or noise > 0
    rule = step or ConstantStep()
    if noisy and isinstance(rule, AdaptiveStep):
        raise ArgumentError("step", rule, "a line search needs exact gradients", "use ConstantStep with batch or noise")
    if constants is None and (k_star is not None or rule == ConstantStep()):
        constants = problem.constants(min(2 * k + 3 * (k_star or 0), problem.size))
    if k_star is not None:
        assert constants is not None
        check_slopes(constants)
        best_bound(constants, k, k_star, float(noisy), minimiser=True).warn(k)
    usual = _usual_step(constants, noisy, problem.batch_smoothness(batch) if batch else 0.0)
    run = _Run(problem, k, rule, usual, batch, noise, refine, np.random.default_rng(seed))
    began = time.perf_counter()
    run.place(_starting_point(start, problem.size, k))
    converged = run.iterate(iterations, 0.0 if noisy else tolerance, keep_points)
    seconds = time.perf_counter() - began
    proved = None
    if certificate:
        proved = certify(problem, run.theta, step=run.last_step, k=k, k_star=k_star or k, constants=constants)
    if constants is not None and k_star is not None:
        constants = Constants(**{**vars(constants), "k_star": Constant(k_star, "assumed", "as given")})
    return IHTResult(
        theta=run.theta, iterations=len(run.history.steps), converged=converged, history=run.history,
        constants=constants, certificate=proved, gradients=run.gradients, seconds=seconds,
    )  # fmt: skip


def iht_path(problem: Problem, ks: Sequence[int], **settings: Any) -> list[IHTResult]:
    """Run IHT for each k in turn, starting from the last result; the settings are those of `iht`."""
    if not len(ks):
        raise ArgumentError("ks", list(ks), "expected at least one k")
    results: list[IHTResult] = []
    start = settings.pop("start", None)
    for k in ks:
        results.append(iht(problem, k, start=start, **settings))
        start = results[-1].theta
    return results


class _Run:
    """Keeps the state of IHT between iterations."""

    def __init__(
        self, problem: Problem, k: int, rule: StepRule, usual: float | None, batch: int | None, noise: float,
        refine: int, rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.problem, self.k, self.rule, self.batch, self.noise = problem, k, rule, batch, noise
        self.refine, self.rng, self.history = refine, rng, History()
        size = rule.size if isinstance(rule, ConstantStep) else None
        self.last_step = size or usual or 1.0
        self.gradients, self._hint = 0.0, 0.0

    def place(self, theta: SparseVector) -> None:
        self.theta = theta
        self._prediction = self.problem.predict(theta)
        self._value = self.problem.value_at(self._prediction, theta)
        self.history.values.append(self._value)
        self._refuse_divergence()

    def iterate(self, iterations: int, tolerance: float, keep_points: bool) -> bool:
        """Return True if a step moved θ by less than the tolerance."""
        if keep_points:
            self.history.points.append(self.theta)
        supports: set[bytes] = set()
        for _ in range(iterations):
            before = self.theta
            self._step()
            moved = self.theta.distance(before)
            self.history.steps.append(self.last_step)
            self.history.moved.append(moved)
            if keep_points:
                self.history.points.append(self.theta)
            if tolerance and moved <= tolerance * max(self.theta.norm, before.norm):
                return True
            if tolerance and self.refine:  # optimised supports that come back would come back for ever
                key = self.theta.indices.tobytes()
                if key in supports and self.history.values[-1] >= min(self.history.values[:-1]) * (1 - _SLACK):
                    return True
                supports.add(key)
        return False

    def _step(self) -> None:
        gradient = self._gradient()
        places, self._hint = reachable(gradient, self.theta, self.k, self._hint)
        if isinstance(self.rule, AdaptiveStep):
            theta = self._search(gradient, places, self.rule)
        else:
            theta = gradient_step(self.theta, gradient, self.last_step, self.k, places)
        if self.refine:
            theta = self.problem.refine(theta, steps=self.refine)
        self.place(theta)

    def _gradient(self) -> Vector:
        if self.batch is None:
            gradient = self.problem.gradient_at(self._prediction, self.theta)
            self.gradients += 1
        else:
            gradient = self.problem.batch_gradient(self.theta, self.batch, self.rng)
            self.gradients += self.batch / getattr(self.problem, "samples", 1)
        if self.noise:
            gradient += self.rng.standard_normal(len(gradient)) * (self.noise / np.sqrt(len(gradient)))
        return gradient

    def _search(self, gradient: Vector, places: Places, rule: AdaptiveStep) -> SparseVector:
        """Propose the best step along the gradient on the support; shorten it until the proofs' inequality holds."""
        support = self.theta.indices
        if not len(support):
            support = places[largest(gradient[places], self.k)]
        along = SparseVector(self.problem.size, support, gradient[support])
        curvature = self.problem.curvature_at(self._prediction, along)
        square = float(along.values @ along.values)
        step = square / curvature if curvature > 0 and square > 0 else self.last_step
        rounding = _SLACK * max(abs(self._value), 1e-300)
        for _ in range(_BACKTRACKS):
            theta = gradient_step(self.theta, gradient, step, self.k, places)
            change = difference(theta, self.theta)
            linear, length = float(gradient[change.indices] @ change.values), float(change.values @ change.values)
            value = self.problem.value(theta)
            if value <= self._value + linear + length / (2 * step) + rounding:
                self.last_step = step
                return theta
            step *= rule.shrink
        return self.theta

    def _refuse_divergence(self) -> None:
        if not np.isfinite(self._value):
            allowed = f"f is {self._value} after {len(self.history.steps)} iterations"
            raise ArgumentError("step", self.last_step, allowed, "use a smaller step, or AdaptiveStep()")


def check_slopes(constants: Constants) -> None:
    """Raise if β is 0: f has no slope then, and there is nothing to minimise."""
    if constants.beta is not None and constants.beta.value <= 0:
        allowed = f"f is constant, as β is {constants.beta.value:g}: every entry of the design is 0"
        raise ArgumentError("problem", allowed=allowed, instead="check the data")


def _usual_step(constants: Constants | None, noisy: bool, more: float) -> float | None:
    """Return the theorems' step, shortened for mini-batches whose samples differ more than the theorems allow for."""
    if constants is None or constants.beta is None or constants.beta.value <= 0:
        return None
    return 1 / ((constants.beta.value + more) * (2 if noisy else 1))


def _starting_point(start: SparseVector | Vector | None, size: int, k: int) -> SparseVector:
    theta = SparseVector.zeros(size) if start is None else as_sparse(start)
    if theta.size != size:
        raise ArgumentError("start", theta.size, f"expected a vector of {size:,} entries")
    check_finite("start", theta.values)
    return theta if len(theta.indices) <= k else truncate(theta.dense(), k)
