"""Defines least squares and logistic regression as problems for IHT.

    least squares   f(θ) = ½ Σ w_i (x_iᵀθ + b − y_i)² + (λ/2)‖θ‖²
    logistic        f(θ) = Σ w_i ln(1 + exp(−y_i (x_iᵀθ + b))) + (λ/2)‖θ‖²,  y_i = ±1

Weights sum to 1. The intercept b, if there is one, is not counted in k: it is at its optimum for every θ, so f stays
convex and smooth with the same β, and its gradient is the one at that b.
"""

from abc import abstractmethod
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator
from scipy.special import expit

from acdc.errors import ArgumentError, Shown
from acdc.theory.constants import EXACT_UP_TO, Constant, Constants, eigenvalue_bounds, largest_eigenvalue
from acdc.theory.design_matrix import DesignMatrix, check_finite
from acdc.theory.problems import Problem
from acdc.theory.refinement import minimise_on_support
from acdc.theory.truncation import SparseVector, Vector


class LinearModel(Problem):
    """Sums a loss of xᵀθ over samples: what least squares and logistic regression share."""

    _steepest = 1.0  # the largest second derivative of the loss in its prediction
    is_quadratic = False

    def __init__(
        self, design: Any, targets: Any, *, ridge: float = 0.0, intercept: bool = False, weights: Any = None
    ) -> None:
        self.design = design if isinstance(design, DesignMatrix) else DesignMatrix(design)
        self.targets = np.asarray(targets, np.float64)
        self.samples, self.size = self.design.samples, self.design.features
        if self.targets.shape != (self.samples,):
            shape = Shown(" x ".join(map(str, self.targets.shape)) or "a number")
            raise ArgumentError("targets", shape, f"expected {self.samples:,} numbers, one for each sample")
        check_finite("targets", self.targets)
        if not (np.isfinite(ridge) and ridge >= 0):
            raise ArgumentError("ridge", ridge, "expected a finite number, 0 or more")
        self.ridge, self.intercept = float(ridge), intercept
        self.weights = _weights(weights, self.samples)

    # The loss of each sample, in its prediction

    @abstractmethod
    def _losses(self, prediction: Vector) -> Vector: ...

    @abstractmethod
    def _slopes(self, prediction: Vector, targets: Vector) -> Vector: ...

    @abstractmethod
    def _curvatures(self, prediction: Vector) -> Vector: ...

    @abstractmethod
    def best_intercept(self, linear: Vector) -> float:
        """Return the b at which f(θ, b) is least, given x_iᵀθ."""

    # The problem

    def predict(self, theta: SparseVector) -> Vector:
        linear = self.design.forward(theta)
        return linear + self.best_intercept(linear) if self.intercept else linear

    def value_at(self, prediction: Vector, theta: SparseVector) -> float:
        return float(self.weights @ self._losses(prediction) + self.ridge / 2 * (theta.values @ theta.values))

    def gradient_at(self, prediction: Vector, theta: SparseVector) -> Vector:
        return self._add_ridge(self.design.back(self.slopes_at(prediction)), theta)

    def curvature_at(self, prediction: Vector, direction: SparseVector) -> float:
        change, curvatures = self.design.forward(direction), self.curvatures_at(prediction)
        change = self.centred(change, curvatures)
        return float(curvatures @ change**2 + self.ridge * (direction.values @ direction.values))

    def slopes_at(self, prediction: Vector) -> Vector:
        """Return the weighted derivative of each sample's loss in its prediction."""
        return self.weights * self._slopes(prediction, self.targets)

    def curvatures_at(self, prediction: Vector) -> Vector:
        """Return the weighted second derivative of each sample's loss in its prediction."""
        return self.weights * self._curvatures(prediction)

    def centred(self, change: Vector, curvatures: Vector) -> Vector:
        """Return a change of x_iᵀθ with what the intercept, which follows θ, takes back of it."""
        if self.intercept and (total := curvatures.sum()) > 0:
            return change - curvatures @ change / total
        return change

    def batch_gradient(self, theta: SparseVector, batch: int, rng: np.random.Generator) -> Vector:
        rows = rng.integers(self.samples, size=batch)
        block = self.design.row_block(rows)
        prediction = self.predict(theta)[rows] if self.intercept else self._predict_block(block, theta)
        share = self.weights[rows] * (self.samples / batch)
        gradient = self.design.back_from(block, share * self._slopes(prediction, self.targets[rows]))
        return self._add_ridge(gradient, theta)

    def _predict_block(self, block: Any, theta: SparseVector) -> Vector:
        values = theta.values if self.design.scales is None else theta.values / self.design.scales[theta.indices]
        if not self.design.is_sparse:
            return block[:, theta.indices] @ values
        return block @ SparseVector(self.size, theta.indices, values).dense()

    def batch_smoothness(self, batch: int) -> float:
        """Return max_i m w_i ‖x_i‖²/batch times the loss's curvature, which β grows by for gradients of so few samples.

        The variance of a mini-batch's gradient is not bounded, as the theorems assume: it grows with f − f*. A step of
        1/2β can diverge for that; with this on top of β it does not.
        """
        norms = self.samples * self.weights * self.design.row_square_norms()
        return self._steepest * float(norms.max()) / batch

    def batch_variance(self, theta: SparseVector, batch: int) -> Constant:
        """Return E‖g − ∇f(θ)‖² of `batch_gradient` at this θ."""
        slopes = self.slopes_at(self.predict(theta))
        whole = self.design.back(slopes)
        second = self.samples * float(slopes**2 @ self.design.row_square_norms())
        return Constant((second - float(whole @ whole)) / batch, "computed", "at this θ")

    def refine(self, theta: SparseVector, *, steps: int, tolerance: float = 1e-10) -> SparseVector:
        return minimise_on_support(self, theta, steps=steps, tolerance=tolerance)

    def constants(self, sparsity: int) -> Constants:
        """Return α and β along directions of so many entries: bounds by spectrum or coherence if N is moderate."""
        if self.size > EXACT_UP_TO:
            make: Any = LinearOperator  # its stubs do not know that it chooses a subclass
            beta = largest_eigenvalue(make((self.size, self.size), matvec=self._gram_product, dtype=np.float64))
            alpha = Constant(0.0, "lower bound", f"not computed for more than {EXACT_UP_TO:,} features")
        else:
            alpha, beta = eigenvalue_bounds(self.gram(), sparsity)
        return Constants(alpha=self._flattest_times(alpha), beta=_affine(beta, self._steepest, self.ridge))

    def gram(self) -> Vector:
        """Return Σ_i w_i x_i x_iᵀ, centred if there is an intercept: the Hessian of least squares without λ."""
        columns = self.design.columns(slice(None))
        if self.intercept:
            columns = columns - self.weights @ columns
        return (columns.T * self.weights) @ columns

    def _gram_product(self, vector: Vector) -> Vector:
        change = self.design.forward(SparseVector(self.size, np.arange(self.size), vector.ravel()))
        if self.intercept:
            change = change - self.weights @ change
        return self.design.back(self.weights * change)

    def _flattest_times(self, alpha: Constant) -> Constant:
        return _affine(alpha, 1.0, self.ridge)

    def _add_ridge(self, gradient: Vector, theta: SparseVector) -> Vector:
        if self.ridge:
            gradient[theta.indices] += self.ridge * theta.values
        return gradient


class LeastSquares(LinearModel):
    """Is the problem f(θ) = ½ Σ w_i (x_iᵀθ + b − y_i)² + (λ/2)‖θ‖²."""

    is_quadratic = True

    def _losses(self, prediction: Vector) -> Vector:
        return (prediction - self.targets) ** 2 / 2

    def _slopes(self, prediction: Vector, targets: Vector) -> Vector:
        return prediction - targets

    def _curvatures(self, prediction: Vector) -> Vector:
        return np.ones_like(prediction)

    def best_intercept(self, linear: Vector) -> float:
        return float(self.weights @ (self.targets - linear))


class LogisticRegression(LinearModel):
    """Is the problem f(θ) = Σ w_i ln(1 + exp(−y_i (x_iᵀθ + b))) + (λ/2)‖θ‖². Targets are −1 and 1."""

    _steepest = 0.25

    def __init__(self, design: Any, targets: Any, **settings: Any) -> None:
        super().__init__(design, targets, **settings)
        if not np.isin(self.targets, (-1.0, 1.0)).all():
            other = self.targets[~np.isin(self.targets, (-1.0, 1.0))][0]
            raise ArgumentError("targets", float(other), "expected −1 or 1", "type np.where(y == positive, 1, -1)")

    def _losses(self, prediction: Vector) -> Vector:
        return np.logaddexp(0.0, -self.targets * prediction)

    def _slopes(self, prediction: Vector, targets: Vector) -> Vector:
        return -targets * expit(-targets * prediction)

    def _curvatures(self, prediction: Vector) -> Vector:
        positive = expit(prediction)
        return positive * (1 - positive)

    def best_intercept(self, linear: Vector) -> float:
        """Find the zero of a monotone function by Newton's steps inside a bracket that shrinks."""
        share = float(self.weights @ (self.targets > 0))
        if share in (0.0, 1.0):  # no finite b: one that puts every sample far on its side
            return (40.0 if share else -40.0) - float(np.median(linear))
        centre = np.log(share / (1 - share))
        low, high = centre - linear.max(), centre - linear.min()  # all predictions below, and above, the right ones
        intercept = (low + high) / 2
        for _ in range(200):
            slope = float(self.weights @ self._slopes(linear + intercept, self.targets))
            low, high = (intercept, high) if slope < 0 else (low, intercept)
            if abs(slope) <= 1e-14 or high - low <= 1e-14 * max(1.0, abs(intercept)):
                break
            curvature = float(self.weights @ self._curvatures(linear + intercept))
            step = intercept - slope / curvature if curvature > 0 else low
            intercept = step if low < step < high else (low + high) / 2
        return float(intercept)

    def _flattest_times(self, alpha: Constant) -> Constant:
        """Return the ridge: far from 0 the loss is flat, and nothing else is strongly convex everywhere."""
        return Constant(self.ridge, "lower bound", "the ridge: a logistic loss is flat far out")


def _affine(constant: Constant, factor: float, shift: float) -> Constant:
    why = f"{constant.why}{f', times {factor}' if factor != 1 else ''}{', plus the ridge' if shift else ''}"
    return Constant(factor * constant.value + shift, constant.how, why)


def _weights(weights: Any, samples: int) -> Vector:
    if weights is None:
        return np.full(samples, 1 / samples)
    weights = np.asarray(weights, np.float64)
    if weights.shape != (samples,) or not np.isfinite(weights).all() or (weights < 0).any() or not weights.sum() > 0:
        allowed = f"expected {samples:,} finite numbers, none negative, not all 0"
        raise ArgumentError("weights", Shown(f"an array of {weights.size:,}"), allowed)
    return weights / weights.sum()
