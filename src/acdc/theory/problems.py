"""Defines what IHT minimises: an objective f over R^N with its value, gradient, mini-batch gradients and constants.

linear_models.py has least squares and logistic regression, rank_one.py a problem that is not convex. The work that
value and gradient share, such as the predictions of a linear model, is done once, by `predict`.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from acdc.errors import ArgumentError
from acdc.theory.constants import Constants
from acdc.theory.truncation import SparseVector, Vector


class Problem(ABC):
    """Is an objective over vectors of `size` entries."""

    size: int

    @abstractmethod
    def predict(self, theta: SparseVector) -> Any:
        """Do the work at θ that value, gradient and curvature share."""

    @abstractmethod
    def value_at(self, prediction: Any, theta: SparseVector) -> float:
        """Return f(θ)."""

    @abstractmethod
    def gradient_at(self, prediction: Any, theta: SparseVector) -> Vector:
        """Return ∇f(θ)."""

    @abstractmethod
    def curvature_at(self, prediction: Any, direction: SparseVector) -> float:
        """Return dᵀ ∇²f(θ) d."""

    @abstractmethod
    def constants(self, sparsity: int) -> Constants:
        """Return α and β along directions of `sparsity` entries."""

    def batch_gradient(self, theta: SparseVector, batch: int, rng: np.random.Generator) -> Vector:
        """Return the gradient of `batch` samples drawn with replacement: unbiased."""
        raise ArgumentError("batch", batch, f"{type(self).__name__} has no samples", "set noise instead")

    def batch_smoothness(self, batch: int) -> float:
        """Return what β grows by if gradients are of `batch` samples."""
        return 0.0

    def refine(self, theta: SparseVector, *, steps: int, tolerance: float = 1e-10) -> SparseVector:
        """Minimise over the support of θ in at most `steps` steps; the support stays as it is."""
        raise ArgumentError("refine", steps, f"{type(self).__name__} cannot optimise a support", "leave refine out")

    def value(self, theta: SparseVector | Vector) -> float:
        theta = as_sparse(theta)
        return self.value_at(self.predict(theta), theta)

    def gradient(self, theta: SparseVector | Vector) -> Vector:
        theta = as_sparse(theta)
        return self.gradient_at(self.predict(theta), theta)


def as_sparse(theta: SparseVector | Vector) -> SparseVector:
    return theta if isinstance(theta, SparseVector) else SparseVector.from_dense(np.asarray(theta, np.float64))
