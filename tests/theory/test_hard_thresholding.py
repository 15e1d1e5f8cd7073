"""IHT: descent, fixed points, stopping, certificates that hold, warm paths, and what it refuses."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from acdc.errors import ArgumentError
from acdc.theory import (
    AdaptiveStep,
    Constant,
    Constants,
    ConstantStep,
    LeastSquares,
    SparseVector,
    acdc_rounds,
    certify,
    iht,
    iht_path,
)
from acdc.theory.instances import (
    Planted,
    correlated_design,
    gaussian_design,
    planted_classification,
    planted_rank_one,
    planted_regression,
)
from acdc.theory.truncation import gradient_step, reachable, truncate


def regression(seed: int = 0, *, samples: int = 60, features: int = 40, **settings: Any) -> Planted:
    rng = np.random.default_rng(seed)
    return planted_regression(correlated_design(samples, features, 0.4, rng), 4, rng, **settings)


@given(st.integers(0, 10**6), st.integers(1, 12), st.floats(0.05, 1.0))
@settings(max_examples=10, deadline=None)
def test_f_never_rises_for_steps_up_to_one_over_beta(seed: int, k: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    design = correlated_design(30, 20, 0.5, rng)
    for planted in (planted_regression(design, 3, rng, noise=0.5), planted_classification(design, 3, rng)):
        beta = planted.problem.constants(20).beta
        assert beta is not None
        step, start = ConstantStep(share / beta.value), rng.standard_normal(20)
        values = iht(planted.problem, k, step=step, iterations=15, start=start, certificate=False).history.values
        assert all(after <= before + 1e-12 for before, after in itertools.pairwise(values))


@given(st.integers(0, 10**6), st.integers(1, 12))
@settings(max_examples=6, deadline=None)
def test_f_never_rises_with_an_adaptive_step(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    design = correlated_design(30, 20, 0.9, rng)
    for planted in (planted_regression(design, 3, rng, noise=0.5), planted_classification(design, 3, rng, ridge=0.01)):
        for refine in (0, 3):
            result = iht(planted.problem, k, step=AdaptiveStep(), refine=refine, iterations=15, certificate=False)
            values = result.history.values
            assert all(after <= before + 1e-11 for before, after in itertools.pairwise(values))
            assert len(result.theta.indices) <= k


@given(st.integers(0, 10**6), st.integers(1, 8), st.floats(1e-3, 10))
@settings(max_examples=25, deadline=None)
def test_a_step_over_reachable_places_is_the_whole_step(seed: int, k: int, step: float) -> None:
    """Ties included: entries are of few different sizes."""
    rng = np.random.default_rng(seed)
    theta, gradient = truncate(rng.integers(-2, 3, 12).astype(float), k), rng.integers(-3, 4, 12).astype(float)
    places, hint = reachable(gradient, theta, k)
    whole = truncate(theta.dense() - step * gradient, k)
    for found in (places, reachable(gradient, theta, k, hint)[0]):
        assert gradient_step(theta, gradient, step, k, found).dense().tolist() == whole.dense().tolist()


def test_all_features_kept_is_least_squares() -> None:
    planted = regression(noise=0.3)
    result = iht(planted.problem, 40, iterations=5000, tolerance=1e-10)
    expected = np.linalg.lstsq(planted.problem.design.columns(slice(None)), planted.problem.targets, rcond=None)[0]
    np.testing.assert_allclose(result.theta.dense(), expected, atol=1e-6)


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize(("step", "refine"), [(None, 0), (AdaptiveStep(), 0), (AdaptiveStep(), 5), (None, 5)])
def test_the_planted_support_is_found(step: Any, refine: int, as_sparse: bool) -> None:
    planted = regression(noise=0.05)
    design: Any = planted.problem.design.columns(slice(None))
    problem = LeastSquares(sparse.csr_matrix(design) if as_sparse else design, planted.problem.targets)
    result = iht(problem, 4, step=step, refine=refine)
    assert result.converged
    assert planted.recall(result.theta) == 1
    assert result.certificate is not None
    assert result.certificate.is_fixed_point
    assert result.iterations == len(result.history.steps) == len(result.history.values) - 1


def test_rank_one_finds_the_component_from_nearby() -> None:
    rng = np.random.default_rng(3)
    problem, planted = planted_rank_one(60, 4, rng)
    result = iht(problem, 8, start=planted.dense() + 0.3 * rng.standard_normal(60) / np.sqrt(60))
    assert result.value < 1e-12
    np.testing.assert_allclose(result.theta.dense(), planted.dense(), atol=1e-5)


# Certificates


@given(st.integers(0, 10**6), st.integers(1, 10))
@settings(max_examples=8, deadline=None)
def test_no_sparse_point_is_further_below_than_certified(seed: int, iterations: int) -> None:
    rng = np.random.default_rng(seed)
    design = correlated_design(60, 20, 0.3, rng)
    for planted in (
        planted_regression(design, 3, rng, noise=0.3),
        planted_classification(design, 3, rng, ridge=0.1),
    ):
        result = iht(planted.problem, 5, iterations=iterations, constants=planted.problem.constants(20))
        proved = result.certificate
        assert proved is not None
        assert proved.gap is not None
        assert proved.is_verified
        for _ in range(5):
            rival = SparseVector(20, np.sort(rng.choice(20, 5, replace=False)), np.zeros(5))
            rival = planted.problem.refine(rival, steps=200)
            assert result.value - planted.problem.value(rival) <= proved.gap + 1e-12
        best = planted.problem.refine(planted.theta, steps=200)
        assert result.value - planted.problem.value(best) <= proved.gap + 1e-12


def test_certificates_name_what_they_stand_on() -> None:
    few = regression(samples=20)
    none = iht(few.problem, 4).certificate
    assert none is not None
    assert none.gap is None
    assert "no bound on f − f*: α is 0" in str(none)
    unasked = iht(few.problem, 4, step=AdaptiveStep()).certificate
    assert unasked is not None
    assert "pass constants" in str(unasked)
    assumed = Constants(alpha=Constant(0.5, "assumed"), beta=Constant(9.0, "assumed"), kind="CPL")
    cpl = iht(few.problem, 4, constants=assumed, iterations=3).certificate
    assert cpl is not None
    assert cpl.gap is not None
    assert not cpl.is_verified
    assert "(4, α)-CPL with α = 0.5 (assumed), not proved" in str(cpl)


def test_a_cpl_certificate_is_the_definition() -> None:
    problem, planted = planted_rank_one(30, 3, np.random.default_rng(0))
    constants = problem.cpl(3, 6)
    start = truncate(planted.dense() + 0.05, 6)
    result = iht(problem, 6, start=start, constants=constants, iterations=2)
    assert result.certificate is not None
    assert result.certificate.gap is not None
    top = truncate(problem.gradient(result.theta), 6).norm ** 2
    assert constants.alpha is not None
    assert result.certificate.gap == pytest.approx(2 * top / constants.alpha.value)
    assert result.value <= result.certificate.gap


def test_fewer_entries_than_the_budget_are_no_fixed_point() -> None:
    planted = regression(noise=0.3)
    one = planted.problem.refine(SparseVector(40, planted.theta.indices[:1], np.ones(1)), steps=50)
    for k, is_fixed in ((1, True), (3, False)):
        proved = certify(planted.problem, one, step=1e-3, k=k, k_star=1)
        assert proved.is_fixed_point == is_fixed
        assert proved.gradient_off_support > 0


def test_where_it_has_not_settled_it_says_so() -> None:
    result = iht(regression().problem, 4, iterations=2)
    assert not result.converged
    assert result.certificate is not None
    assert "not a fixed point" in str(result.certificate)


# Stochastic


def test_the_same_seed_gives_the_same_path() -> None:
    planted = regression()
    runs = [iht(planted.problem, 8, batch=10, iterations=30, seed=seed).history.values for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_mini_batches_find_the_support_and_count_their_passes() -> None:
    planted = regression(samples=400)
    result = iht(planted.problem, 8, batch=20, iterations=400)
    assert planted.recall(result.theta) == 1
    assert result.gradients == pytest.approx(400 * 20 / 400)
    assert result.history.values[-1] < 1e-3 * result.history.values[0]


# Paths


def test_a_path_goes_on_from_the_k_before() -> None:
    planted = regression(noise=0.1)
    ks = [1, 2, 4, 8]
    path = iht_path(planted.problem, ks, step=AdaptiveStep(), refine=5)
    assert [len(result.theta.indices) for result in path] == ks
    values = [result.value for result in path]
    assert values == sorted(values, reverse=True)
    assert path[2].history.values[0] == pytest.approx(path[1].value)
    with pytest.raises(ArgumentError, match="at least one k"):
        iht_path(planted.problem, [])


# Refused


@pytest.mark.parametrize(
    ("settings", "argument"),
    [
        ({"k": 41}, "k"),
        ({"k": 0}, "k"),
        ({"k": 2.0}, "k"),
        ({"iterations": -1}, "iterations"),
        ({"batch": 0}, "batch"),
        ({"noise": -1.0}, "noise"),
        ({"noise": 0.1, "step": AdaptiveStep()}, "step"),
        ({"start": np.zeros(3)}, "start"),
        ({"start": np.full(40, np.nan)}, "start"),
        ({"k_star": -1}, "k_star"),
        ({"k_star": 2.5}, "k_star"),
        ({"tolerance": np.nan}, "tolerance"),
        ({"tolerance": -1.0}, "tolerance"),
        ({"step": ConstantStep(1e6), "iterations": 2000}, "step"),
    ],
)
def test_refused(settings: dict[str, Any], argument: str) -> None:
    with pytest.raises(ArgumentError) as refused, np.errstate(all="ignore"):
        iht(regression().problem, **{"k": 4, **settings})
    assert refused.value.argument == argument


def test_a_design_of_zeros_has_nothing_to_minimise() -> None:
    problem = LeastSquares(np.zeros((5, 3)), np.ones(5))
    for solve in (lambda: iht(problem, 2, k_star=1), lambda: acdc_rounds(problem, 2)):
        with pytest.raises(ArgumentError, match="f is constant, as β is 0: every entry of the design is 0"):
            solve()
    assert not iht(problem, 2).theta.values.any()


@pytest.mark.parametrize("make", [lambda: ConstantStep(0.0), lambda: ConstantStep(np.nan), lambda: AdaptiveStep(1.0)])
def test_step_sizes_out_of_range(make: Any) -> None:
    with pytest.raises(ArgumentError):
        make()


def test_rank_one_has_no_adaptive_step() -> None:
    problem, planted = planted_rank_one(10, 2, np.random.default_rng(0))
    with pytest.raises(ArgumentError, match="use ConstantStep"):
        iht(problem, 3, step=AdaptiveStep(), start=planted)


def test_no_iterations_is_the_start() -> None:
    rng = np.random.default_rng(0)
    planted = planted_regression(gaussian_design(20, 10, rng), 2, rng)
    result = iht(planted.problem, 2, start=rng.standard_normal(10), iterations=0)
    assert (result.iterations, len(result.theta.indices), result.converged) == (0, 2, False)
