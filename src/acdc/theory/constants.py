"""Finds the constants that the theorems name; each says if it was computed, bounded, estimated or assumed.

    β        (t, β)-smoothness: f(θ + u) ≤ f(θ) + ⟨∇f(θ), u⟩ + (β/2)‖u‖² for t-sparse u
    α        strong convexity along t-sparse directions, or the constant of (r, α)-CPL, as `kind` says
    σ²       variance of the stochastic gradient, E‖g − ∇f‖²
    k*       sparsity of the minimiser compared with
    R        bound on ‖θ‖∞ (on ‖θ‖ for the rank-one problem)

Restricted constants are minima and maxima over all supports of t entries, which nobody enumerates. The whole spectrum
bounds them, and so does coherence: by Gershgorin, the eigenvalues of a t x t block lie within (t − 1)·max|H_ij| of its
diagonal.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh

from acdc.theory.truncation import Vector

How = Literal["computed", "upper bound", "lower bound", "estimated", "assumed"]
EXACT_UP_TO = 1000  # rows of a matrix whose whole spectrum is computed
_MARGIN = 1.01  # on an eigenvalue that Lanczos found from below


@dataclass(frozen=True)
class Constant:
    """Holds a number, says how it was found, and explains it in a word."""

    value: float
    how: How
    why: str = ""

    def __str__(self) -> str:
        return f"{self.value:.6g} ({self.how}{f': {self.why}' if self.why else ''})"

    @property
    def is_proved(self) -> bool:
        """Return True if the number holds without an assumption."""
        return self.how in ("computed", "upper bound", "lower bound")


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Reports what is known of a problem. None stands for a constant that was not asked for or is not known."""

    beta: Constant | None = None
    alpha: Constant | None = None
    kind: Literal["strong convexity", "CPL"] = "strong convexity"  # of alpha
    sigma2: Constant | None = None
    k_star: Constant | None = None
    radius: Constant | None = None

    def __str__(self) -> str:
        names = {"beta": "β", "alpha": f"α, {self.kind}", "sigma2": "σ²", "k_star": "k*", "radius": "R"}
        shown = [(field.name, getattr(self, field.name)) for field in fields(self) if field.name != "kind"]
        return "\n".join(f"{names[name]} = {value}" for name, value in shown if value is not None)


def eigenvalue_bounds(hessian: Vector, sparsity: int) -> tuple[Constant, Constant]:
    """Return bounds on the extreme eigenvalues of all `sparsity` x `sparsity` blocks of a symmetric matrix."""
    spectrum = np.linalg.eigvalsh(hessian)
    low, high = float(max(spectrum[0], 0.0)), float(spectrum[-1])
    whole = sparsity >= len(hessian)
    lower = Constant(low, "computed" if whole else "lower bound", "smallest eigenvalue")
    upper = Constant(high, "computed" if whole else "upper bound", "largest eigenvalue")
    if not whole:
        diagonal = np.diagonal(hessian)
        coherence = float(np.abs(hessian - np.diag(diagonal)).max())
        spread, why = (sparsity - 1) * coherence, f"Gershgorin, coherence {coherence:.3g}"
        if diagonal.min() - spread > lower.value:
            lower = Constant(float(diagonal.min() - spread), "lower bound", why)
        if diagonal.max() + spread < upper.value:
            upper = Constant(float(diagonal.max() + spread), "upper bound", why)
    return lower, upper


def largest_eigenvalue(operator: LinearOperator) -> Constant:
    """Estimate the largest eigenvalue of a matrix known by its products: Lanczos, raised by a hundredth."""
    if operator.shape[0] < 3:
        dense = np.asarray(operator @ np.eye(operator.shape[0]))
        return Constant(float(np.linalg.eigvalsh(dense)[-1]), "computed", "largest eigenvalue")
    start = np.random.default_rng(0).standard_normal(operator.shape[0])
    solve: Any = eigsh  # its stubs have tol as a whole number
    found = solve(operator, k=1, which="LA", tol=1e-3, v0=start, return_eigenvectors=False)
    return Constant(_MARGIN * float(found[0]), "estimated", "Lanczos to 0.1 %, raised by 1 %")
