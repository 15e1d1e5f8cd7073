"""Fits sparse regression and classification with a hard budget of k features, as scikit-learn estimators.

    model = SparseIHTRegressor(k=20).fit(X, y)
    model.coef_, model.intercept_, model.support_

The solver is IHT with an adaptive step whose supports are optimised as they come (hard thresholding pursuit), in
cycles that widen and narrow the support (widening.py). X may be a scipy sparse matrix and stays one: columns are scaled
and centred without touching its entries.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from acdc.errors import ArgumentError, Shown
from acdc.theory.design_matrix import DesignMatrix
from acdc.theory.linear_models import LeastSquares, LinearModel, LogisticRegression
from acdc.theory.step_sizes import AdaptiveStep, ConstantStep
from acdc.theory.truncation import SparseVector, Vector, check_count
from acdc.theory.widening import widened_iht

_USUAL_K = 10
_DEBIAS = 10_000  # products with the Hessian, at most: conjugate gradients need about as many as k
_POLISH = 300  # the same, to compare the supports of two cycles
_SETTLED = 1e-12  # of the gradient on the support


@dataclass(frozen=True)
class SparsePath:
    """Holds models of growing size. The fit of each began where the one before it ended."""

    ks: list[int]
    coefs: Vector  # one row for each k
    intercepts: Vector
    losses: Vector  # f at each: half the mean squared error, or the mean logistic loss, and the ridge


class _SparseIHT(BaseEstimator):
    """Holds the settings and the solver that both estimators share."""

    def __init__(
        self,
        k: int | None = None,
        *,
        ridge: float = 0.0,
        fit_intercept: bool = True,
        normalize: bool = True,
        debias: bool = True,
        refine: int = 3,
        cycles: int = 5,
        batch_size: int | None = None,
        max_iter: int = 500,
        tol: float = 1e-6,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        self.k = k
        self.ridge = ridge
        self.fit_intercept = fit_intercept
        self.normalize = normalize
        self.debias = debias
        self.refine = refine
        self.cycles = cycles
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _budget(self, features: int, k: int | None) -> int:
        if k is None:
            return min(_USUAL_K, features)
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= features:
            allowed = f"expected a whole number from 1 to {features}, the number of features"
            raise ArgumentError("k", k, allowed, f"type k={min(_USUAL_K, features)}")
        return int(k)

    def _design(self, entries: Any, weights: Vector) -> DesignMatrix:
        """Scale columns to unit variance, or to unit mean square without an intercept; constant ones to 0."""
        design = DesignMatrix(entries)
        if self.normalize:
            shares = weights / weights.sum()
            with np.errstate(over="ignore", invalid="ignore"):
                scales = design.column_spreads(shares, centred=self.fit_intercept)
                sizes = scales if not self.fit_intercept else design.column_spreads(shares, centred=False)
            if not np.isfinite(sizes).all():
                received = Shown(f"{int((~np.isfinite(sizes)).sum()):,} columns with numbers too large to square")
                raise ArgumentError("X", received, "their variance overflows", "divide them by their largest value")
            flat = scales <= 1e-10 * np.maximum(sizes, np.finfo(np.float64).tiny)
            design.scales = np.where(flat, np.inf, scales)  # less their mean, constant ones hold rounding only
        return design

    def _check_settings(self) -> None:
        """Raise about a setting by the name that it has here, before it reaches the solver under another."""
        check_count("max_iter", self.max_iter, 0, "type max_iter=500")
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, 1, "type batch_size=None for all samples")
        if not (np.isreal(self.tol) and np.isfinite(self.tol) and self.tol >= 0):
            raise ArgumentError("tol", self.tol, "expected a finite number, 0 or more", "type tol=1e-6")

    def _solve(self, problem: LinearModel, k: int, start: SparseVector | None) -> tuple[SparseVector, int]:
        self._check_settings()
        stochastic = self.batch_size is not None
        result, iterations = widened_iht(
            problem,
            k,
            cycles=0 if stochastic else self.cycles,
            polish=_POLISH if self.debias else 0,
            step=ConstantStep() if stochastic else AdaptiveStep(),
            batch=self.batch_size,
            refine=0 if stochastic else self.refine,
            iterations=self.max_iter,
            tolerance=self.tol,
            start=start,
            certificate=False,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
        )
        if not result.converged and not stochastic:
            text = f"max_iter={self.max_iter}: the support or its entries still move; set a larger max_iter or tol"
            warnings.warn(text, ConvergenceWarning, stacklevel=4)
        theta = result.theta
        if self.debias:
            theta = problem.refine(theta, steps=_DEBIAS, tolerance=_SETTLED)
        return theta, iterations

    def _unscaled(self, problem: LinearModel, theta: SparseVector) -> tuple[Vector, float]:
        """Return coefficients for X as it was given, and the intercept."""
        coef, scales = theta.dense(), problem.design.scales
        intercept = problem.best_intercept(problem.design.forward(theta)) if problem.intercept else 0.0
        return (coef if scales is None else coef / scales), intercept

    def _start(self, problem: LinearModel, row: int) -> SparseVector | None:
        """Return the last fit in this one's scale, if this one is to go on from it."""
        coef = np.atleast_2d(getattr(self, "coef_", np.zeros((0, 0))))
        if not self.warm_start or row >= len(coef) or coef.shape[1] != problem.size:
            return None
        scales = problem.design.scales
        return SparseVector.from_dense(coef[row] if scales is None else coef[row] * np.nan_to_num(scales, posinf=0.0))

    def _path(self, problem: LinearModel, ks: Sequence[int]) -> SparsePath:
        start, coefs, intercepts, losses = None, [], [], []
        for k in ks:
            start, _ = self._solve(problem, self._budget(problem.size, k), start)
            coef, intercept = self._unscaled(problem, start)
            coefs.append(coef)
            intercepts.append(intercept)
            losses.append(problem.value(start))
        if not coefs:
            raise ArgumentError("ks", list(ks), "expected at least one k")
        return SparsePath([int(k) for k in ks], np.array(coefs), np.array(intercepts), np.array(losses))

    def _read(self, X: Any, y: Any, sample_weight: Any, **more: Any) -> tuple[Any, Any, Vector]:  # noqa: N803
        X, y = validate_data(  # noqa: N806
            self, X, y, accept_sparse="csc", dtype=[np.float64, np.float32], order="F", **more
        )
        return X, y, _check_sample_weight(sample_weight, X, dtype=np.float64)


class SparseIHTRegressor(RegressorMixin, _SparseIHT):
    """Fits least squares with at most k non-zero coefficients.

    k              how many features may have one; None: 10, or all if there are fewer
    ridge          λ of (λ/2)‖θ‖², on the scaled coefficients
    fit_intercept  add one that does not count in k
    normalize      judge features by coefficients of columns with unit variance; coef_ is for X as given
    debias         least squares on the support at the end, to convergence
    refine         products with the Hessian spent on each new support; 0 is plain IHT
    cycles         at most so many times, widen to 2k features and truncate again, to escape a bad support
    batch_size     samples in a stochastic gradient; None for all of them
    max_iter, tol  stop after so many iterations, or once a step moves θ by less than tol·‖θ‖
    warm_start     begin where the last fit ended
    random_state   of the mini-batches
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Fit the model to X, dense or sparse, and return the estimator."""
        problem = self._problem(X, y, sample_weight)
        theta, self.n_iter_ = self._solve(problem, self._budget(problem.size, self.k), self._start(problem, 0))
        self.coef_, self.intercept_ = self._unscaled(problem, theta)
        self.support_ = np.flatnonzero(self.coef_)
        return self

    def path(self, X: Any, y: Any, ks: Sequence[int], sample_weight: Any = None) -> SparsePath:  # noqa: N803
        """Fit a model for each k, each from the solution before; the estimator itself stays unfitted."""
        return self._path(self._problem(X, y, sample_weight), ks)

    def predict(self, X: Any) -> Vector:  # noqa: N803
        """Return the model's value for each sample."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=[np.float64, np.float32], reset=False)  # noqa: N806
        return safe_sparse_dot(X, self.coef_) + self.intercept_

    def _problem(self, X: Any, y: Any, sample_weight: Any) -> LinearModel:  # noqa: N803
        X, y, weights = self._read(X, y, sample_weight, y_numeric=True)  # noqa: N806
        design = self._design(X, weights)
        return LeastSquares(design, y, ridge=self.ridge, intercept=self.fit_intercept, weights=weights)


class SparseIHTClassifier(ClassifierMixin, _SparseIHT):
    """Fits logistic regression with at most k non-zero coefficients; several classes are each set against the rest.

    The parameters are those of SparseIHTRegressor. A small ridge, 1e-4 unless set, keeps coefficients finite if the
    classes can be told apart without error.
    """

    def __init__(
        self,
        k: int | None = None,
        *,
        ridge: float = 1e-4,
        fit_intercept: bool = True,
        normalize: bool = True,
        debias: bool = True,
        refine: int = 3,
        cycles: int = 5,
        batch_size: int | None = None,
        max_iter: int = 500,
        tol: float = 1e-6,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            k, ridge=ridge, fit_intercept=fit_intercept, normalize=normalize, debias=debias, refine=refine,
            cycles=cycles, batch_size=batch_size, max_iter=max_iter, tol=tol, warm_start=warm_start,
            random_state=random_state,
        )  # fmt: skip

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # noqa: N803
        """Fit a model to X, dense or sparse, for each class but the first of two; return the estimator."""
        problems = self._problems(X, y, sample_weight)
        coefs, intercepts, iterations = [], [], []
        for row, problem in enumerate(problems):
            theta, used = self._solve(problem, self._budget(problem.size, self.k), self._start(problem, row))
            coef, intercept = self._unscaled(problem, theta)
            coefs.append(coef)
            intercepts.append(intercept)
            iterations.append(used)
        self.coef_, self.intercept_ = np.array(coefs), np.array(intercepts)
        self.n_iter_ = max(iterations)
        self.support_ = np.flatnonzero(self.coef_.any(axis=0))
        return self

    def path(self, X: Any, y: Any, ks: Sequence[int], sample_weight: Any = None) -> SparsePath:  # noqa: N803
        """Fit a model of two classes for each k, each from the solution before."""
        problems = self._problems(X, y, sample_weight)
        if len(problems) > 1:
            raise ArgumentError("y", len(problems), "a path needs two classes", "type y == one_of_them")
        return self._path(problems[0], ks)

    def decision_function(self, X: Any) -> Vector:  # noqa: N803
        """Return the log-odds of the second class, or of each class against the rest."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=("csr", "csc"), dtype=[np.float64, np.float32], reset=False)  # noqa: N806
        scores = safe_sparse_dot(X, self.coef_.T) + self.intercept_
        return scores.ravel() if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Any:  # noqa: N803
        """Return the class of highest score for each sample."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Vector:  # noqa: N803
        """Return each class's probability: of one against the rest, made to sum to 1 if there are several."""
        scores = self.decision_function(X)
        positive = 1 / (1 + np.exp(-np.clip(scores, -500, 500)))
        if scores.ndim == 1:
            return np.column_stack([1 - positive, positive])
        total = positive.sum(axis=1, keepdims=True)
        return np.where(total > 0, positive / np.where(total > 0, total, 1.0), 1 / len(self.classes_))

    def _problems(self, X: Any, y: Any, sample_weight: Any) -> list[LinearModel]:  # noqa: N803
        X, y, weights = self._read(X, y, sample_weight)  # noqa: N806
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        present = np.unique(labels[weights > 0])
        if len(present) < 2:
            raise ArgumentError("y", list(self.classes_), "expected two classes or more; it has one class",
                                "check the labels")  # fmt: skip
        design = self._design(X, weights)
        positives = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        return [
            LogisticRegression(
                design, np.where(labels == one, 1.0, -1.0), ridge=self.ridge, intercept=self.fit_intercept,
                weights=weights,
            )
            for one in positives
        ]  # fmt: skip
