"""Values, gradients, mini-batches, constants and supports of the problems, against slow and obvious ones."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

from acdc.errors import ArgumentError
from acdc.theory.constants import eigenvalue_bounds, largest_eigenvalue
from acdc.theory.design_matrix import DesignMatrix
from acdc.theory.instances import conditioned_design, planted_rank_one
from acdc.theory.linear_models import LeastSquares, LinearModel, LogisticRegression
from acdc.theory.problems import Problem
from acdc.theory.rank_one import RankOne
from acdc.theory.truncation import SparseVector


def made(kind: type[LinearModel], *, as_sparse: bool = False, seed: int = 0, **settings: Any) -> LinearModel:
    rng = np.random.default_rng(seed)
    design: Any = rng.standard_normal((30, 8)) * (rng.random((30, 8)) < 0.5)
    targets = rng.standard_normal(30) if kind is LeastSquares else rng.choice([-1.0, 1.0], 30)
    return kind(sparse.csr_array(design) if as_sparse else design, targets, **settings)


KINDS = (LeastSquares, LogisticRegression)
SETTINGS: list[dict[str, Any]] = [
    {}, {"ridge": 0.3}, {"intercept": True}, {"intercept": True, "ridge": 0.1, "weights": np.arange(1.0, 31)}
]  # fmt: skip


def slope(problem: Problem, theta: np.ndarray) -> np.ndarray:
    steps = np.eye(len(theta)) * 1e-6
    return np.array([(problem.value(theta + step) - problem.value(theta - step)) / 2e-6 for step in steps])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_and_curvature_are_those_of_the_value(kind: type[LinearModel], settings: dict[str, Any]) -> None:
    problem, theta = made(kind, **settings), np.array([1.0, 0, -2, 0, 0.5, 0, 0, 1])
    np.testing.assert_allclose(problem.gradient(theta), slope(problem, theta), atol=1e-7)
    direction = np.array([0.3, 1, 0, 0, -1, 0, 2, 0])
    at = SparseVector.from_dense(theta)
    curvature = problem.curvature_at(problem.predict(at), SparseVector.from_dense(direction))
    turned = problem.gradient(theta + 1e-6 * direction) - problem.gradient(theta - 1e-6 * direction)
    assert curvature == pytest.approx(direction @ turned / 2e-6, rel=1e-5)


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_sparse_designs_give_the_same(kind: type[LinearModel], settings: dict[str, Any]) -> None:
    dense, thin = made(kind, **settings), made(kind, as_sparse=True, **settings)
    theta = np.array([1.0, 0, -2, 0, 0.5, 0, 0, 1])
    assert thin.value(theta) == pytest.approx(dense.value(theta))
    np.testing.assert_allclose(thin.gradient(theta), dense.gradient(theta))
    at = SparseVector.from_dense(theta)
    batches = [one.batch_gradient(at, 5, np.random.default_rng(1)) for one in (dense, thin)]
    np.testing.assert_allclose(batches[0], batches[1])
    np.testing.assert_allclose(thin.gram(), dense.gram(), atol=1e-15)


class EveryRow(np.random.Generator):
    """Draws each sample once."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def integers(self, low: int, size: int) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return np.arange(low)[:size]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_average_to_the_gradient(kind: type[LinearModel], settings: dict[str, Any]) -> None:
    problem, theta = made(kind, **settings), SparseVector.from_dense(np.array([1.0, 0, -2, 0, 0.5, 0, 0, 1]))
    np.testing.assert_allclose(problem.batch_gradient(theta, 30, EveryRow()), problem.gradient(theta))


def test_the_variance_of_batches() -> None:
    problem, theta = made(LeastSquares), SparseVector.from_dense(np.array([1.0, 0, -2, 0, 0.5, 0, 0, 1]))
    errors, rows = problem.predict(theta) - problem.targets, problem.design.columns(slice(None))
    each = errors[:, None] * rows - problem.gradient(theta)
    assert problem.batch_variance(theta, 4).value == pytest.approx(np.square(each).sum(axis=1).mean() / 4)


def test_scaled_columns_are_a_scaled_design() -> None:
    rng, scales = np.random.default_rng(0), np.arange(1.0, 6)
    entries, theta = rng.standard_normal((10, 5)), SparseVector.from_dense(np.array([1.0, 0, 2, 0, 3]))
    plain, scaled = DesignMatrix(entries / scales), DesignMatrix(sparse.csc_array(entries), scales=scales)
    weights = np.full(10, 0.1)
    for a, b in (
        (plain.forward(theta), scaled.forward(theta)),
        (plain.back(weights), scaled.back(weights)),
        (plain.columns(slice(1, 3)), scaled.columns(slice(1, 3))),
        (plain.row_square_norms(), scaled.row_square_norms()),
        (plain.column_moments(weights)[1], scaled.column_moments(weights)[1]),
        (plain.restrict(np.array([1, 4])).back(weights), scaled.restrict(np.array([1, 4])).back(weights)),
    ):
        np.testing.assert_allclose(a, b)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_spreads_are_taken_about_the_mean_and_none_is_left_of_a_constant(as_sparse: bool) -> None:
    rng, weights = np.random.default_rng(0), np.arange(1.0, 31) / np.arange(1.0, 31).sum()
    entries = rng.standard_normal((30, 4)) * (rng.random((30, 4)) < 0.5)
    entries[:, 1], entries[:, 2] = 0.1, 0.0
    design = DesignMatrix(sparse.csr_array(entries) if as_sparse else entries)
    expected = np.sqrt(weights @ (entries - weights @ entries) ** 2)
    np.testing.assert_allclose(design.column_spreads(weights, centred=True), expected, atol=1e-15)
    np.testing.assert_allclose(design.column_spreads(weights, centred=False), np.sqrt(weights @ entries**2))


@pytest.mark.parametrize("as_sparse", [False, True])
def test_refined_least_squares_is_least_squares(as_sparse: bool) -> None:
    problem = made(LeastSquares, as_sparse=as_sparse)
    support = np.array([1, 3, 4])
    theta = problem.refine(SparseVector(8, support, np.zeros(3)), steps=100, tolerance=1e-12)
    expected = np.linalg.lstsq(problem.design.columns(support), problem.targets, rcond=None)[0]
    np.testing.assert_allclose(theta.values, expected, atol=1e-9)
    assert theta.indices.tolist() == [1, 3, 4]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_refined_support_has_no_gradient_left(kind: type[LinearModel], settings: dict[str, Any]) -> None:
    problem = made(kind, **settings)
    theta = problem.refine(SparseVector(8, np.array([0, 2, 5]), np.ones(3)), steps=500)
    assert np.abs(problem.gradient(theta)[theta.indices]).max() < 1e-9


def test_an_intercept_beyond_reach_is_finite() -> None:
    problem = LogisticRegression(np.ones((4, 1)), np.ones(4), intercept=True)
    assert np.isfinite(problem.value(np.zeros(1)))


def test_weights_stand_for_repeated_samples() -> None:
    rng = np.random.default_rng(0)
    design, targets, times = rng.standard_normal((6, 3)), rng.standard_normal(6), np.array([1, 2, 0, 3, 1, 1])
    weighted = LeastSquares(design, targets, weights=times, intercept=True)
    repeated = LeastSquares(np.repeat(design, times, axis=0), np.repeat(targets, times), intercept=True)
    theta = np.array([1.0, 0.0, -1.0])
    assert weighted.value(theta) == pytest.approx(repeated.value(theta))
    np.testing.assert_allclose(weighted.gradient(theta), repeated.gradient(theta))


# Constants


@given(st.integers(0, 10**6), st.integers(1, 6))
@settings(max_examples=20, deadline=None)
def test_eigenvalue_bounds_hold_on_every_support(seed: int, sparsity: int) -> None:
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((8, 6)) * rng.choice([0.1, 1.0, 3.0])
    hessian = factor.T @ factor / 8
    low, high = eigenvalue_bounds(hessian, sparsity)
    for _ in range(10):
        places = rng.choice(6, sparsity, replace=False)
        spectrum = np.linalg.eigvalsh(hessian[np.ix_(places, places)])
        assert low.value - 1e-9 <= spectrum[0]
        assert spectrum[-1] <= high.value + 1e-9


def test_coherence_is_used_where_it_is_better() -> None:
    hessian = np.full((50, 50), 0.1) + 0.9 * np.eye(50)
    low, high = eigenvalue_bounds(hessian, 3)
    assert (low.value, low.how) == (pytest.approx(0.9), "lower bound")
    assert (high.value, "Gershgorin" in high.why) == (pytest.approx(1.2), True)


def test_constants_say_how_they_were_found() -> None:
    problem = LeastSquares(conditioned_design(30, 20, 5.0, np.random.default_rng(0)), np.zeros(30), ridge=0.5)
    constants = problem.constants(20)
    assert constants.alpha is not None
    assert constants.beta is not None
    assert (constants.alpha.value, constants.alpha.how) == (pytest.approx(1.5), "computed")
    assert "plus the ridge" in str(constants)
    logistic = made(LogisticRegression, ridge=0.2).constants(3)
    assert logistic.alpha is not None
    assert (logistic.alpha.value, logistic.alpha.how) == (0.2, "lower bound")


def test_many_features_get_an_estimate_that_covers_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("acdc.theory.linear_models.EXACT_UP_TO", 5)
    for intercept in (False, True):
        problem = made(LeastSquares, intercept=intercept, ridge=0.1)
        beta, true = problem.constants(8).beta, np.linalg.eigvalsh(problem.gram())[-1] + 0.1
        assert beta is not None
        assert beta.how == "estimated"
        assert true <= beta.value <= 1.05 * true


def test_tiny_operators_are_solved_whole() -> None:
    from scipy.sparse.linalg import aslinearoperator

    assert largest_eigenvalue(aslinearoperator(np.diag([1.0, 3.0]))).value == pytest.approx(3)


# The rank-one problem


def test_rank_one_gradient_and_smoothness() -> None:
    rng = np.random.default_rng(0)
    problem, planted = planted_rank_one(12, 3, rng)
    for _ in range(20):
        theta = rng.standard_normal(12)
        theta *= problem.radius * rng.random() / np.linalg.norm(theta)
        np.testing.assert_allclose(problem.gradient(theta), slope(problem, theta), atol=1e-8)
        hessian = theta @ theta * np.eye(12) + 2 * np.outer(theta, theta) - problem.matrix
        beta = problem.constants(12).beta
        assert beta is not None
        assert np.linalg.eigvalsh(hessian)[-1] <= beta.value + 1e-12
    assert problem.value(planted) == pytest.approx(0, abs=1e-12)


@given(st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_rank_one_is_concentrated_pl_near_its_minimiser(seed: int) -> None:
    from acdc.theory.truncation import truncate

    rng = np.random.default_rng(seed)
    problem, planted = planted_rank_one(30, 3, rng)
    alpha = problem.cpl(3, 9).alpha
    assert alpha is not None
    away = rng.standard_normal(30) * (rng.random(30) < 0.2)
    away[planted.indices] = rng.standard_normal(3)
    away *= 0.5 * rng.random() / np.linalg.norm(away)
    theta = truncate(planted.dense() + away, 9)
    assume(theta.distance(planted) <= 0.5)
    gradient = problem.gradient(theta)
    assert truncate(gradient, 3).norm ** 2 >= alpha.value / 2 * problem.value(theta) * (1 - 1e-3)
    assert not alpha.is_proved  # a grid is no proof, and the test allows for it


def test_rank_one_is_not_convex() -> None:
    problem, planted = planted_rank_one(10, 2, np.random.default_rng(0))
    middle = problem.value(np.zeros(10))
    assert middle > (problem.value(planted) + problem.value(-planted.dense())) / 2


# Bad input


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: LeastSquares(np.zeros((0, 3)), np.zeros(0)), "design"),
        (lambda: LeastSquares(np.zeros(3), np.zeros(3)), "design"),
        (lambda: LeastSquares([[1.0, np.nan]], [1.0]), "design"),
        (lambda: LeastSquares([["a"]], [1.0]), "design"),
        (lambda: LeastSquares([[1j]], [1.0]), "design"),
        (lambda: LeastSquares(sparse.csr_array([[1.0, np.inf]]), [1.0]), "design"),
        (lambda: LeastSquares([[1.0]], [np.nan]), "targets"),
        (lambda: LeastSquares([[1.0]], [1.0, 2.0]), "targets"),
        (lambda: LeastSquares([[1.0]], [1.0], ridge=-1), "ridge"),
        (lambda: LeastSquares([[1.0]], [1.0], weights=[0.0]), "weights"),
        (lambda: LogisticRegression([[1.0]], [0.0]), "targets"),
        (lambda: RankOne(np.ones((2, 3))), "matrix"),
        (lambda: RankOne([[0.0, 1.0], [2.0, 0.0]]), "matrix"),
        (lambda: RankOne(np.eye(3)).cpl(1, 2), "matrix"),
        (lambda: RankOne(np.eye(3)).cpl(0, 2), "r"),
        (lambda: RankOne(np.eye(3)).cpl(1, 2, closeness=2.0), "closeness"),
        (lambda: RankOne(np.eye(3), radius=-1.0), "radius"),
        (lambda: RankOne(np.eye(3)).refine(SparseVector.zeros(3), steps=1), "refine"),
        (lambda: RankOne(np.eye(3)).batch_gradient(SparseVector.zeros(3), 2, np.random.default_rng()), "batch"),
        (lambda: conditioned_design(2, 3, 1.0, np.random.default_rng()), "samples"),
    ],
)
def test_refused(make: Any, argument: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        make()
    assert refused.value.argument == argument
