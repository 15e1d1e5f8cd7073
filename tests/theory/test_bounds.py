"""Every bound on its problem class, over many seeds; and the k below which it says nothing."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from acdc.errors import ArgumentError
from acdc.theory.bounds import (
    GuaranteeWarning,
    best_bound,
    near_stationary,
    quadratic_growth,
    strongly_convex,
    theorem_1,
)
from acdc.theory.constants import Constant, Constants
from acdc.theory.hard_thresholding import iht
from acdc.theory.instances import (
    conditioned_design,
    correlated_design,
    planted_classification,
    planted_rank_one,
    planted_regression,
    stuck,
)
from acdc.theory.problems import Problem
from acdc.theory.step_sizes import ConstantStep
from acdc.theory.truncation import SparseVector, truncate

FOLLOW: dict[str, Any] = {"tolerance": 0.0, "keep_points": True, "certificate": False}


@given(st.integers(0, 10**6), st.sampled_from([1.0, 1.5, 2.0, 3.0]), st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_the_strongly_convex_rate_holds_at_every_step(seed: int, condition: float, k_star: int) -> None:
    rng = np.random.default_rng(seed)
    planted = planted_regression(conditioned_design(50, 40, condition, rng), k_star, rng)
    k = math.floor(k_star * (condition - 1) ** 2) + k_star
    bound = strongly_convex(alpha=1.0, beta=condition, k=k, k_star=k_star)
    assert bound.applies
    start = truncate(3 * rng.standard_normal(40), k)
    result = iht(planted.problem, k, step=ConstantStep(bound.step), start=start, iterations=12, **FOLLOW)
    distances = [point.distance(planted.theta) ** 2 for point in result.history.points]
    for before, after in itertools.pairwise(distances):
        assert after <= bound.rate * before * (1 + 1e-9) + 1e-20
    for distance, value in zip(distances, result.history.values[1:], strict=False):
        assert value <= (condition - 1.0) / 2 * distance + 1e-12  # the theorem's step from distances to values


@given(st.integers(0, 10**6))
@settings(max_examples=4, deadline=None)
def test_the_best_sparse_point_is_approached_though_it_is_no_minimiser(seed: int) -> None:
    rng = np.random.default_rng(seed)
    planted = planted_classification(correlated_design(300, 30, 0.2, rng), 1, rng, ridge=0.4)
    constants = planted.problem.constants(30)
    assert constants.alpha is not None
    assert constants.beta is not None
    rival = planted.problem.refine(planted.theta, steps=200)
    k = 16
    bound = best_bound(constants, k, 1, minimiser=False)
    assert bound.applies
    result = iht(planted.problem, k, constants=constants, iterations=20, **FOLLOW)
    target = planted.problem.value(rival)
    for before, after in zip(result.history.points, result.history.points[1:], strict=False):
        if planted.problem.value(after) >= target:
            assert after.distance(rival) ** 2 <= bound.rate * before.distance(rival) ** 2 * (1 + 1e-9)
    assert result.value <= target


def test_the_noise_floor_is_below_its_bound() -> None:
    """In the mean over seeds and the last iterations."""
    for sigma in (1.0,):
        ends, distances = [], []
        bound = strongly_convex(alpha=1.0, beta=1.5, k=20, k_star=2, sigma2=sigma**2)
        assert bound.applies
        for seed in range(8):
            rng = np.random.default_rng(seed)
            planted = planted_regression(conditioned_design(50, 40, 1.5, rng), 2, rng)
            result = iht(planted.problem, 20, noise=sigma, iterations=80, seed=seed, **FOLLOW)
            ends.append(np.mean(result.history.values[40:]))
            distances.append(np.mean([point.distance(planted.theta) ** 2 for point in result.history.points[40:]]))
        assert 0 < np.mean(ends) <= bound.floor <= 2 * sigma**2
        assert bound.distance_floor is not None
        assert np.mean(distances) <= bound.distance_floor <= 2 * sigma**2 / 1.5


# Theorem 1


def one_step(problem: Problem, theta: SparseVector, planted: SparseVector, k: int, beta: float, c: float) -> None:
    """The inequality that Theorem 1 rests on, at any k-sparse θ: docs/theory.md has its derivation."""
    k_star = len(planted.indices)
    result = iht(problem, k, start=theta, step=ConstantStep(1 / beta), iterations=1, **FOLLOW)
    top = truncate(problem.gradient(theta), k_star).norm ** 2
    lost = (1 + 1 / c) * k_star / (k - k_star) * theta.distance(planted) ** 2
    allowed = beta / 2 * (lost - (1 - c) * top / beta**2)
    before, after = result.history.values
    assert after - before <= allowed + 1e-9 * max(1.0, before)


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 8), st.floats(0.05, 0.95))
@settings(max_examples=25, deadline=None)
def test_a_step_gains_what_theorem_1_says(seed: int, k_star: int, more: int, c: float) -> None:
    rng = np.random.default_rng(seed)
    k = k_star + more
    planted = planted_regression(correlated_design(40, 30, 0.5, rng), k_star, rng)
    beta = planted.problem.constants(30).beta
    assert beta is not None
    near = planted.theta.dense() + rng.choice([0.1, 1.0]) * rng.standard_normal(30) * (rng.random(30) < 0.5)
    one_step(planted.problem, truncate(near, k), planted.theta, k, beta.value, c)


@given(st.integers(0, 10**6), st.floats(0.05, 0.95))
@settings(max_examples=20, deadline=None)
def test_a_step_gains_what_theorem_1_says_though_f_is_not_convex(seed: int, c: float) -> None:
    rng = np.random.default_rng(seed)
    problem, planted = planted_rank_one(30, 3, rng)
    beta = problem.constants(30).beta
    assert beta is not None
    near = planted.dense() + 0.3 * rng.standard_normal(30) * (rng.random(30) < 0.3) / 3
    theta = truncate(near, 8)
    assume(theta.norm <= problem.radius / 1.1)
    one_step(problem, theta, planted, 8, beta.value, c)


def test_theorem_1_contracts_from_its_k_on() -> None:
    for beta, sigma2 in ((1.0, 0.0), (3.0, 0.0), (3.0, 0.5)):
        needed = theorem_1(alpha=1.0, beta=beta, k=1, k_star=2, sigma2=sigma2).k_needed
        below = theorem_1(alpha=1.0, beta=beta, k=math.floor(needed), k_star=2, sigma2=sigma2)
        above = theorem_1(alpha=1.0, beta=beta, k=math.ceil(needed) + 1, k_star=2, sigma2=sigma2)
        assert (below.applies, above.applies) == (False, True)
        assert 0 < 1 - above.rate < 1e-2
        assert below.floor == math.inf


def test_theorem_1_reaches_the_papers_floor() -> None:
    """16σ²/α, with the k that makes it so."""
    bound = theorem_1(alpha=1.0, beta=2.0, k=10**5, k_star=2, sigma2=0.1)
    assert bound.applies
    assert 4 * 0.1 <= bound.floor <= 16 * 0.1
    assert bound.step == 0.25


def test_quadratic_growth_follows_from_strong_convexity() -> None:
    rng = np.random.default_rng(0)
    planted = planted_regression(conditioned_design(30, 20, 3.0, rng), 2, rng)
    for _ in range(20):
        theta = rng.standard_normal(20)
        distance = float(np.linalg.norm(theta - planted.theta.dense()))
        assert planted.problem.value(theta) >= quadratic_growth(4.0, distance)  # α of PL is 4 times that of convexity


# Where recovery fails


@pytest.mark.parametrize("condition", [3.0, 5.0, 9.0])
def test_iht_is_stuck_exactly_up_to_a_quarter_of_the_theorems_k(condition: float) -> None:
    k_star = 4
    edge, holds = k_star * ((condition - 1) / 2) ** 2, k_star * (condition - 1) ** 2
    for k, moves in ((round(edge), False), (round(edge) + 1, True), (round(holds) + 1, True)):
        planted, spurious = stuck(k, k_star, condition)
        step = ConstantStep((1 + (1e-9 if moves else -1e-9)) / condition)  # the edge itself is a tie
        result = iht(planted.problem, k, start=spurious, step=step, iterations=3000, certificate=False)
        assert (planted.recall(result.theta) == 1) == moves
        assert strongly_convex(alpha=1, beta=condition, k=k, k_star=k_star).applies == (k > holds)


def test_the_spectrum_of_the_stuck_instance() -> None:
    planted, _ = stuck(9, 4, 5.0)
    spectrum = np.linalg.eigvalsh(planted.problem.gram())
    np.testing.assert_allclose(spectrum, [1.0] * 12 + [5.0])


def test_a_k_without_guarantee_is_a_warning_with_its_number() -> None:
    planted, _ = stuck(9, 4, 5.0)
    with pytest.warns(GuaranteeWarning, match=r"k=9: the strongly convex theorem needs k > k\*\(β/α − 1\)² = 64"):
        iht(planted.problem, 9, k_star=4, iterations=1)
    alpha = Constants(alpha=Constant(1.0, "assumed"), beta=Constant(5.0, "assumed"), kind="CPL")
    with pytest.warns(GuaranteeWarning, match=r"Theorem 1 \(CPL\) needs k > k\*\(1 \+ 93.3\(β/α\)²\) = 9,329"):
        iht(planted.problem, 9, k_star=4, constants=alpha, iterations=1)


# Near-stationary points


@given(st.integers(0, 10**6), st.integers(1, 12))
@settings(max_examples=8, deadline=None)
def test_optimised_supports_come_near_a_stationary_point(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    planted = planted_regression(correlated_design(20, 40, 0.6, rng), 6, rng, noise=0.5)
    result = iht(planted.problem, k, refine=200, iterations=60, keep_points=True)
    assert result.constants is not None
    assert result.constants.beta is not None
    radius = max(float(np.abs(point.values).max(initial=0)) for point in result.history.points)
    gradients = [planted.problem.gradient(point) for point in result.history.points]
    left = max(float(np.linalg.norm(g[p.indices])) for g, p in zip(gradients, result.history.points, strict=True))
    values = result.history.values
    bound = near_stationary(
        beta=result.constants.beta.value, k=k, radius=radius, epsilon=left, decrease=values[0] - values[-1]
    )
    violating = [g for g in gradients[:-1] if np.abs(g).max() > bound.gradient]
    assert len(violating) <= bound.iterations
    assert min(np.abs(g).max() for g in gradients) <= bound.gradient <= 1.5 * bound.in_the_paper


def test_noise_widens_the_stationary_bound() -> None:
    plain = near_stationary(beta=2.0, k=4, radius=1.0, epsilon=0.1, decrease=1.0)
    noisy = near_stationary(beta=2.0, k=4, radius=1.0, epsilon=0.1, decrease=1.0, sigma2=0.01)
    assert plain.gradient < noisy.gradient
    assert plain.in_the_paper < noisy.in_the_paper


# Arguments


def test_iterations_from_the_rate() -> None:
    bound = strongly_convex(alpha=1.0, beta=2.0, k=16, k_star=4)
    assert bound.rate ** bound.iterations(1.0, 1e-6) <= 1e-6 < bound.rate ** (bound.iterations(1.0, 1e-6) - 1)
    assert strongly_convex(alpha=1.0, beta=2.0, k=4, k_star=4).iterations(1.0, 0.1) == -1
    assert strongly_convex(alpha=0.0, beta=2.0, k=4, k_star=4).k_needed == math.inf
    assert (bound.iterations(0.0, 1e-6), bound.iterations(1e-7, 1e-6)) == (0, 0)
    with pytest.raises(ArgumentError, match=r"epsilon=0"):
        bound.iterations(1.0, 0.0)


def test_conditions_are_those_that_are_missed() -> None:
    assert strongly_convex(alpha=1.0, beta=1.1, k=3, k_star=4).condition == "k ≥ k* = 4"
    for theorem in (theorem_1, strongly_convex):
        assert theorem(alpha=0.0, beta=1.0, k=3, k_star=2).condition == "α > 0, and none above 0 is known"
    with pytest.raises(ArgumentError, match=r"radius=-1"):
        near_stationary(beta=1.0, k=1, radius=-1.0, epsilon=0.1, decrease=1.0)


@pytest.mark.parametrize(
    ("given", "argument"),
    [({"alpha": -1.0}, "alpha"), ({"alpha": 9.0}, "alpha"), ({"sigma2": -1.0}, "sigma2"),
     ({"alpha": math.nan}, "alpha"), ({"beta": 0.0}, "beta"), ({"k": 0}, "k"),
     ({"k_star": 0}, "k_star")],
)  # fmt: skip
def test_refused(given: dict[str, Any], argument: str) -> None:
    for theorem in (theorem_1, strongly_convex):
        with pytest.raises(ArgumentError) as refused:
            theorem(**{"alpha": 1.0, "beta": 2.0, "k": 4, "k_star": 2, **given})
        assert refused.value.argument == argument
