"""Defines a problem that is not convex: fit a symmetric matrix by u uᵀ, a linear net of two layers with tied weights.

    f(u) = ¼ ‖u uᵀ − M‖²,   ∇f(u) = ‖u‖² u − M u

With M = v vᵀ and v k*-sparse this is sparse principal component analysis without noise: f has the minimisers ±v, a
saddle at 0, and between them directions of negative curvature; around v it satisfies the (concentrated) PL condition.
"""

from typing import Any

import numpy as np

from acdc.errors import ArgumentError
from acdc.theory.constants import Constant, Constants
from acdc.theory.design_matrix import check_finite
from acdc.theory.problems import Problem
from acdc.theory.truncation import SparseVector, Vector, check_count

_GRID = 401  # points each way on which the region's PL constant is taken


class RankOne(Problem):
    """Is the problem f(u) = ¼‖u uᵀ − M‖². Its constants hold inside the ball ‖u‖ ≤ `radius`."""

    def __init__(self, matrix: Any, *, radius: float | None = None) -> None:
        self.matrix = np.asarray(matrix, np.float64)
        if self.matrix.ndim != 2 or self.matrix.shape[0] != self.matrix.shape[1] or not self.matrix.size:
            raise ArgumentError("matrix", self.matrix.shape, "expected a square matrix")
        check_finite("matrix", self.matrix)
        if not np.allclose(self.matrix, self.matrix.T):
            raise ArgumentError("matrix", allowed="expected a symmetric matrix", instead="type (M + M.T) / 2")
        self.size = len(self.matrix)
        if radius is not None and not (np.isfinite(radius) and radius > 0):
            raise ArgumentError("radius", radius, "expected a positive, finite number", "leave it out")
        self._square = float((self.matrix**2).sum())
        self._spectrum = np.linalg.eigvalsh(self.matrix)
        self.radius = float(np.sqrt(max(self._spectrum[-1], 0.0)) * 1.25) if radius is None else radius

    def predict(self, theta: SparseVector) -> Vector:
        return self.matrix[:, theta.indices] @ theta.values

    def value_at(self, prediction: Vector, theta: SparseVector) -> float:
        product = float(prediction[theta.indices] @ theta.values)
        return 0.25 * (theta.norm**4 - 2 * product + self._square)

    def gradient_at(self, prediction: Vector, theta: SparseVector) -> Vector:
        gradient = -prediction
        gradient[theta.indices] += theta.norm**2 * theta.values
        return gradient

    def curvature_at(self, prediction: Vector, direction: SparseVector) -> float:
        allowed = "an adaptive step follows the curvature, which may be negative in the rank-one problem"
        raise ArgumentError("step", allowed=allowed, instead="use ConstantStep")

    def constants(self, sparsity: int) -> Constants:
        """Return β = 3R² less the smallest eigenvalue of M, which bounds ∇²f = ‖u‖²I + 2uuᵀ − M."""
        lowest = min(float(self._spectrum[0]), 0.0)
        beta = Constant(3 * self.radius**2 - lowest, "upper bound", f"3R² − λ_min(M) in the ball R = {self.radius:.3g}")
        return Constants(beta=beta, alpha=Constant(0.0, "lower bound", "not convex"), radius=self._radius())

    def cpl(self, r: int, sparsity: int, closeness: float = 0.5) -> Constants:
        """Return the constant of (r, α)-CPL at u of so many entries with ‖u − v‖ ≤ closeness·‖v‖, where M = v vᵀ.

        f and ‖∇f‖ depend on u through ‖u‖ and ⟨u, v⟩ alone: the PL constant is a minimum over two numbers. It is taken
        on a grid, so it is an estimate, not a bound.

        The gradient has sparsity + k* entries at most, so its r largest hold at least r/(sparsity + k*) of it.
        """
        check_count("r", r, 1, "type r=1")
        check_count("sparsity", sparsity, 1, "type the number of entries that u has")
        if not 0 < closeness < 1:
            raise ArgumentError("closeness", closeness, "expected a number between 0 and 1", "type closeness=0.5")
        if self._spectrum[-1] <= 0 or np.abs(self._spectrum[:-1]).max(initial=0) > 1e-9 * self._spectrum[-1]:
            raise ArgumentError("matrix", allowed="its CPL constant is known for M = v vᵀ only")
        length = float(np.sqrt(self._spectrum[-1]))
        k_star = int((np.diagonal(self.matrix) > 1e-12 * self._spectrum[-1]).sum())
        grid = np.linspace(-closeness, closeness, _GRID) * length
        along, across = np.meshgrid(length + grid, np.linspace(0, closeness, _GRID) * length)
        inside = (along - length) ** 2 + across**2 <= (closeness * length) ** 2
        square, product = (along**2 + across**2)[inside], (along * length)[inside]
        value = 0.25 * (square**2 - 2 * product**2 + length**4)
        slope = square**3 - 2 * square * product**2 + product**2 * length**2
        away = value > 1e-9 * length**4
        share = min(1.0, r / (sparsity + k_star))
        alpha = 2 * share * float((slope[away] / value[away]).min())
        why = f"PL on a grid within {closeness:g}‖v‖ of v, times r/(k + k*) = {share:.3g}"
        return Constants(
            alpha=Constant(alpha, "estimated", why), kind="CPL", beta=self.constants(sparsity).beta,
            k_star=Constant(k_star, "computed"), radius=self._radius(),
        )  # fmt: skip

    def _radius(self) -> Constant:
        return Constant(self.radius, "assumed", "f is smooth with this β inside the ball")
