"""The estimators: scikit-learn's own checks, sparse input, weights, paths, and support recovery against OMP."""

import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError, SkipTestWarning
from sklearn.linear_model import OrthogonalMatchingPursuit
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from acdc.errors import ArgumentError
from acdc.theory import (
    AdaptiveStep,
    LeastSquares,
    SparseIHTClassifier,
    SparseIHTRegressor,
    SparseVector,
    widened_iht,
)
from acdc.theory.instances import correlated_design, planted_classification, planted_regression
from acdc.theory.widening import is_clear


@pytest.mark.parametrize(
    "estimator", [SparseIHTRegressor(), pytest.param(SparseIHTClassifier(), marks=pytest.mark.long)]
)
def test_scikit_learns_own_checks(estimator: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)  # of checks that want pandas
        results = check_estimator(estimator, on_skip=None)
    passed = [one for one in results if one["status"] == "passed"]
    assert len(passed) > 40


def made(seed: int = 0, samples: int = 120, **settings: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    planted = planted_regression(correlated_design(samples, 60, 0.5, rng), 5, rng, noise=0.1, **settings)
    return planted.problem.design.columns(slice(None)), planted.problem.targets, planted.theta.indices


def test_regression_finds_features_of_any_scale() -> None:
    design, targets, support = made()
    scales = np.geomspace(1e-3, 1e3, 60)
    model = SparseIHTRegressor(k=5).fit(design * scales + 7, targets + 100)
    assert model.support_.tolist() == support.tolist()
    assert model.score(design * scales + 7, targets + 100) > 0.99
    plain = SparseIHTRegressor(k=5).fit(design, targets)
    np.testing.assert_allclose(model.coef_ * scales, plain.coef_, atol=1e-6)


def test_debiased_coefficients_are_least_squares_on_the_support() -> None:
    design, targets, _ = made()
    model = SparseIHTRegressor(k=5).fit(design, targets)
    block = np.column_stack([design[:, model.support_], np.ones(len(design))])
    expected = np.linalg.lstsq(block, targets, rcond=None)[0]
    np.testing.assert_allclose([*model.coef_[model.support_], model.intercept_], expected, atol=1e-8)


@pytest.mark.parametrize("settings", [{}, {"normalize": False}, {"fit_intercept": False}, {"ridge": 0.1}])
@pytest.mark.parametrize("kind", [SparseIHTRegressor, SparseIHTClassifier])
def test_sparse_input_gives_the_same_model(kind: Any, settings: dict[str, Any]) -> None:
    design, targets, _ = made()
    design = np.where(np.abs(design) < 0.8, 0.0, design)
    labels = targets if kind is SparseIHTRegressor else targets > 0.3
    dense = kind(k=4, **settings).fit(design, labels)
    thin = kind(k=4, **settings).fit(sparse.csr_matrix(design), labels)
    np.testing.assert_allclose(thin.coef_, dense.coef_, atol=1e-6)
    np.testing.assert_allclose(thin.intercept_, dense.intercept_, atol=1e-6)
    np.testing.assert_allclose(thin.predict(sparse.csc_matrix(design)), dense.predict(design), atol=1e-5)


def test_weights_stand_for_repeated_samples() -> None:
    design, targets, _ = made()
    times = np.random.default_rng(0).integers(0, 3, len(design))
    weighted = SparseIHTRegressor(k=5).fit(design, targets, sample_weight=times)
    repeated = SparseIHTRegressor(k=5).fit(np.repeat(design, times, axis=0), np.repeat(targets, times))
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, atol=1e-8)


def test_classification_of_two_and_of_three_classes() -> None:
    rng = np.random.default_rng(0)
    planted = planted_classification(correlated_design(600, 30, 0.2, rng), 3, rng, sharpness=4)
    design, labels = planted.problem.design.columns(slice(None)), planted.problem.targets
    model = SparseIHTClassifier(k=3).fit(design, np.where(labels > 0, "yes", "no"))
    assert model.support_.tolist() == planted.theta.indices.tolist()
    assert model.score(design, np.where(labels > 0, "yes", "no")) > 0.85
    assert model.coef_.shape == (1, 30)
    three = np.digitize(design[:, 0], [-0.5, 0.5])
    model = SparseIHTClassifier(k=2).fit(design, three)
    assert (model.coef_ != 0).sum(axis=1).tolist() == [2, 2, 2]
    np.testing.assert_allclose(model.predict_proba(design).sum(axis=1), 1)


def test_classes_that_can_be_told_apart_have_finite_coefficients() -> None:
    design = np.linspace(-1, 1, 20)[:, None]
    model = SparseIHTClassifier(k=1).fit(design, design.ravel() > 0)
    assert model.score(design, design.ravel() > 0) == 1
    assert np.isfinite(model.coef_).all()


def test_a_path_grows_its_models() -> None:
    design, targets, support = made()
    path = SparseIHTRegressor().path(design, targets, [1, 3, 5, 10])
    assert (path.coefs != 0).sum(axis=1).tolist() == [1, 3, 5, 10]
    assert (np.diff(path.losses) < 0).all()
    assert np.flatnonzero(path.coefs[2]).tolist() == support.tolist()
    rows = SparseIHTClassifier().path(design, targets > 0, [1, 2])
    assert rows.intercepts.shape == (2,)
    with pytest.raises(ArgumentError, match="two classes"):
        SparseIHTClassifier().path(design, np.digitize(targets, [-1, 1]), [1])


def test_a_warm_start_goes_on_from_the_last_fit() -> None:
    design, targets, _ = made()
    model = SparseIHTRegressor(k=5, warm_start=True, refine=0, cycles=0, debias=False).fit(design, targets)
    first = model.n_iter_
    assert model.fit(design, targets).n_iter_ < first


def test_cycles_escape_a_bad_support() -> None:
    plain, cycled = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        planted = planted_regression(correlated_design(60, 80, 0.9, rng), 6, rng, noise=0.05)
        design, targets = planted.problem.design.columns(slice(None)), planted.problem.targets
        for cycles, errors in ((0, plain), (5, cycled)):
            model = SparseIHTRegressor(k=6, cycles=cycles).fit(design, targets)
            errors.append(np.square(model.predict(design) - targets).mean())
    assert all(after <= before * (1 + 1e-9) for before, after in zip(plain, cycled, strict=True))
    assert np.mean(cycled) < 0.5 * np.mean(plain)


def test_mini_batches_by_random_state() -> None:
    design, targets, support = made(samples=400)
    fits = [
        SparseIHTRegressor(k=5, batch_size=40, max_iter=300, random_state=seed, debias=False).fit(design, targets)
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert (fits[0].coef_ != fits[2].coef_).any()
    assert fits[0].support_.tolist() == support.tolist()


def test_k_is_a_hyper_parameter_like_others() -> None:
    design, targets, _ = made()
    search = GridSearchCV(SparseIHTRegressor(), {"k": [1, 5]}, cv=3).fit(design, targets)
    assert search.best_params_ == {"k": 5}


def test_recovers_at_least_what_omp_does() -> None:
    for entries in ("signs", "normal"):
        ours, omp = [], []
        for seed in range(4):
            design, targets, support = made(seed, samples=35, entries=entries)
            model = SparseIHTRegressor(k=5, fit_intercept=False, normalize=False).fit(design, targets)
            rival = OrthogonalMatchingPursuit(n_nonzero_coefs=5, fit_intercept=False).fit(design, targets)
            ours.append(np.isin(support, model.support_).mean())
            omp.append(np.isin(support, np.flatnonzero(rival.coef_)).mean())
        assert np.mean(ours) >= np.mean(omp)
        assert np.mean(ours) > 0.95


def test_a_clear_support_is_left_alone() -> None:
    design, targets, support = made()
    problem = LeastSquares(design, targets)
    right, iterations = widened_iht(problem, 5, step=AdaptiveStep(), refine=3)
    assert right.theta.indices.tolist() == support.tolist()
    assert is_clear(problem, right.theta)
    assert iterations == right.iterations
    assert right.certificate is not None
    assert right.certificate.value == pytest.approx(problem.value(right.theta), rel=1e-12)  # of θ as it was optimised
    others = np.setdiff1d(np.arange(60), support)[:5]
    wrong = problem.refine(SparseVector(60, others, np.zeros(5)), steps=100)
    assert not is_clear(problem, wrong)
    refused: list[dict[str, Any]] = [{"cycles": -1}, {"factor": 1.0}]
    for settings in refused:
        with pytest.raises(ArgumentError):
            widened_iht(problem, 5, **settings)


@pytest.mark.parametrize("k", [0, 61, -1, 2.5, True])
def test_a_k_that_cannot_be_is_refused(k: Any) -> None:
    design, targets, _ = made()
    with pytest.raises(ArgumentError, match=r"expected a whole number from 1 to 60, the number of features"):
        SparseIHTRegressor(k=k).fit(design, targets)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_iter": -1}, "max_iter=-1: expected a whole number"),
        ({"batch_size": 0}, "batch_size=0: expected a whole number"),
        ({"tol": float("nan")}, "tol=nan: expected a finite number"),
        ({"ridge": -1.0}, "ridge=-1.0: expected a finite number"),
    ],
)
def test_a_setting_is_refused_by_its_own_name(settings: dict[str, Any], text: str) -> None:
    design, targets, _ = made()
    for kind, wanted in ((SparseIHTRegressor, targets), (SparseIHTClassifier, targets > 0)):
        with pytest.raises(ArgumentError, match=text):
            kind(**settings).fit(design, wanted)


@pytest.mark.parametrize("as_sparse", [False, True])
def test_constant_columns_and_numbers_too_large(as_sparse: bool) -> None:
    design, targets, support = made()
    design[:, support[0] - 1] = 0.1
    change: Any = sparse.csc_matrix if as_sparse else np.asarray
    assert SparseIHTRegressor(k=5).fit(change(design), targets).support_.tolist() == support.tolist()
    flat = SparseIHTRegressor(k=2).fit(change(np.full((50, 3), 0.1)), targets[:50])
    assert np.abs(flat.coef_).max() < 1e-6
    with pytest.raises(ArgumentError, match="too large to square"):
        SparseIHTRegressor().fit(change(design * 1e200), targets)


def test_estimators_work_in_a_pipeline_and_with_numpys_numbers() -> None:
    design, targets, _ = made()
    pipeline = make_pipeline(StandardScaler(), SparseIHTClassifier())
    grid = {"sparseihtclassifier__k": np.array([1, 5]), "sparseihtclassifier__cycles": np.array([1])}
    search = GridSearchCV(pipeline, grid, cv=2).fit(design, targets > 0)
    assert search.best_params_["sparseihtclassifier__k"] == 5
    copied: Any = clone(SparseIHTClassifier(k=3, ridge=0.2))
    assert copied.get_params()["ridge"] == 0.2
    with pytest.raises(NotFittedError):
        SparseIHTClassifier().predict_proba(design)


def test_non_finite_and_empty_data_are_refused() -> None:
    design, targets, _ = made()
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="contains"):
            SparseIHTRegressor().fit(np.where(design > 2, bad, design), targets)
    with pytest.raises(ValueError, match="0 sample"):
        SparseIHTRegressor().fit(design[:0], targets[:0])
    with pytest.raises(ArgumentError, match="one class"):
        SparseIHTClassifier().fit(design, np.ones(len(design)))


def test_too_few_iterations_are_a_warning() -> None:
    design, targets, _ = made()
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        SparseIHTRegressor(k=5, max_iter=1).fit(design, targets)


def test_importing_does_not_import_scikit_learn_and_its_lack_is_named() -> None:
    code = (
        "import sys\n"
        "import acdc\n"
        "acdc.theory\n"
        "from acdc.theory import iht, LeastSquares\n"
        "assert 'sklearn' not in sys.modules\n"
        "sys.modules['sklearn'] = None\n"
        "try: acdc.theory.SparseIHTRegressor\n"
        "except ModuleNotFoundError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'acdc.theory.SparseIHTRegressor needs sklearn; type: pip install "acdc-torch[theory]"' in done.stdout
