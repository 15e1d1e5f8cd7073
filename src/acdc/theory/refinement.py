"""Optimises the entries of a fixed support: what follows a truncation in the theorems, "optional optimisation".

Newton's method with the Hessian's products only: conjugate gradients solve each Newton system on the support, and a
backtracking line search keeps f from rising. Least squares needs one Newton step, which is the debiased estimate.
"""

from typing import TYPE_CHECKING

import numpy as np

from acdc.theory.design_matrix import DesignMatrix
from acdc.theory.truncation import SparseVector, Vector

if TYPE_CHECKING:
    from acdc.theory.linear_models import LinearModel

_NEWTON = 50
_ENOUGH = 1e-4  # of the decrease that the gradient promises
_NO_CURVATURE = 1e-300
_ROUNDING = 1e-15  # of a value: near the minimum no step lowers f by more


def minimise_on_support(
    problem: "LinearModel", theta: SparseVector, *, steps: int, tolerance: float = 1e-10
) -> SparseVector:
    """Return the minimiser over θ's support, or what `steps` products with the Hessian reach.

    `tolerance` is the gradient's norm on the support, relative to that at θ = 0.
    """
    if not len(theta.indices):
        return theta
    support = _OnSupport(problem, problem.design.restrict(theta.indices))
    enough = tolerance * float(np.linalg.norm(support.gradient(np.zeros_like(theta.values))[1]))
    values, left = theta.values.astype(np.float64), steps
    prediction, gradient = support.gradient(values)
    for _ in range(_NEWTON):
        if np.linalg.norm(gradient) <= enough or left <= 0:
            break
        step, used = _conjugate_gradients(support, prediction, gradient, left, enough / 2)
        left -= used
        longer = support.search(values, step, gradient, prediction)
        if longer is None:
            break
        values = longer
        prediction, gradient = support.gradient(values)
    return SparseVector(theta.size, theta.indices, values)


class _OnSupport:
    """Evaluates the problem as a function of the entries of one support."""

    def __init__(self, problem: "LinearModel", block: DesignMatrix) -> None:
        self.problem, self.block = problem, block
        self._places = np.arange(block.features)

    def vector(self, values: Vector) -> SparseVector:
        return SparseVector(len(values), self._places, values)

    def predict(self, values: Vector) -> Vector:
        linear = self.block.forward(self.vector(values))
        return linear + self.problem.best_intercept(linear) if self.problem.intercept else linear

    def gradient(self, values: Vector) -> tuple[Vector, Vector]:
        """Return the predictions and the gradient."""
        prediction = self.predict(values)
        return prediction, self.block.back(self.problem.slopes_at(prediction)) + self.problem.ridge * values

    def hessian(self, curvatures: Vector, direction: Vector) -> Vector:
        change = self.problem.centred(self.block.forward(self.vector(direction)), curvatures)
        return self.block.back(curvatures * change) + self.problem.ridge * direction

    def search(self, values: Vector, step: Vector, gradient: Vector, prediction: Vector) -> Vector | None:
        """Take the longest of the steps 1, ½, ¼, … that lowers f as the gradient promises; None if none does."""
        if self.problem.is_quadratic:
            return values + step
        value, promised = self.problem.value_at(prediction, self.vector(values)), float(gradient @ step)
        value += _ROUNDING * abs(value)
        for length in 0.5 ** np.arange(40):
            longer = values + length * step
            if self.problem.value_at(self.predict(longer), self.vector(longer)) <= value + _ENOUGH * length * promised:
                return longer
        return None


def _conjugate_gradients(
    support: _OnSupport, prediction: Vector, gradient: Vector, most: int, enough: float
) -> tuple[Vector, int]:
    """Solve ∇²f d = −∇f on the support; return d and the products used.

    Far from a minimum Newton's system is not worth solving to the end: there a hundredth of the gradient will do.
    """
    curvatures = support.problem.curvatures_at(prediction)
    solution, residual = np.zeros_like(gradient), -gradient
    direction, square = residual.copy(), float(residual @ residual)
    target = enough if support.problem.is_quadratic else max(enough, 0.01 * np.sqrt(square) * min(1.0, np.sqrt(square)))
    used, allowed = 0, min(most, 3 * len(gradient) + 10)
    while used < allowed:
        used += 1
        product = support.hessian(curvatures, direction)
        curvature = float(direction @ product)
        if curvature <= _NO_CURVATURE:
            return (solution if used > 1 else -gradient), used
        length = square / curvature
        solution += length * direction
        residual -= length * product
        before, square = square, float(residual @ residual)
        if np.sqrt(square) <= target:
            break
        direction = residual + square / before * direction
    return solution, used
