"""Makes problems with a known sparse minimiser, and the designs that they are made of.

`stuck` is the instance that shows how far the theorem is from the truth. Let u and v be the flat unit vectors on a
support S of k entries and on S* of k*, and H = αI + (β − α)/2·(u + v)(u + v)ᵀ, whose spectrum is {α, β}. The point on
S that minimises f = ½(θ − θ*)ᵀH(θ − θ*), θ* flat on S*, is a fixed point of IHT with step 1/β exactly if
k ≤ k*((β/α − 1)/2)², while the strongly convex theorem has IHT converge from everywhere if k > k*(β/α − 1)².
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from acdc.errors import ArgumentError
from acdc.theory.linear_models import LeastSquares, LinearModel, LogisticRegression
from acdc.theory.rank_one import RankOne
from acdc.theory.truncation import SparseVector, Vector, check_k

Entries = Literal["signs", "normal"]


@dataclass(frozen=True)
class Planted:
    """Holds a problem and the θ* that it was made from."""

    problem: LinearModel
    theta: SparseVector

    def recall(self, found: SparseVector) -> float:
        """Return the share of the planted support that was found."""
        return float(np.isin(self.theta.indices, found.indices).mean())


def gaussian_design(samples: int, features: int, rng: np.random.Generator) -> Vector:
    """Return independent standard normal entries."""
    return rng.standard_normal((samples, features))


def correlated_design(samples: int, features: int, correlation: float, rng: np.random.Generator) -> Vector:
    """Return rows of a stationary process: columns i and j have correlation^|i − j|."""
    if not 0 <= correlation < 1:
        raise ArgumentError("correlation", correlation, "expected 0 or more, below 1")
    design = rng.standard_normal((samples, features))
    for column in range(1, features):
        design[:, column] *= np.sqrt(1 - correlation**2)
        design[:, column] += correlation * design[:, column - 1]
    return design


def conditioned_design(samples: int, features: int, condition: float, rng: np.random.Generator) -> Vector:
    """Return a design whose Hessian XᵀX/m has its eigenvalues spread evenly from 1 to `condition`."""
    if samples < features:
        raise ArgumentError("samples", samples, f"expected {features} or more, as many as features")
    left = np.linalg.qr(rng.standard_normal((samples, features)))[0]
    right = np.linalg.qr(rng.standard_normal((features, features)))[0]
    return np.sqrt(samples) * (left * np.sqrt(np.linspace(1.0, condition, features))) @ right.T


def sparse_vector(features: int, k_star: int, entries: Entries, rng: np.random.Generator) -> SparseVector:
    """Return k* entries at random places: ±1, or normal and not all but 0."""
    check_k(k_star, features)
    places = np.sort(rng.choice(features, k_star, replace=False))
    signs = rng.choice([-1.0, 1.0], k_star)
    sizes = np.ones(k_star) if entries == "signs" else 0.1 + np.abs(rng.standard_normal(k_star))
    return SparseVector(features, places, signs * sizes)


def planted_regression(
    design: Vector, k_star: int, rng: np.random.Generator, *, noise: float = 0.0, entries: Entries = "signs",
    ridge: float = 0.0,
) -> Planted:  # fmt: skip
    """Return y = Xθ* + noise. Without noise and ridge θ* is the minimiser, and f* is 0."""
    theta = sparse_vector(design.shape[1], k_star, entries, rng)
    targets = design[:, theta.indices] @ theta.values + noise * rng.standard_normal(len(design))
    return Planted(LeastSquares(design, targets, ridge=ridge), theta)


def planted_classification(
    design: Vector, k_star: int, rng: np.random.Generator, *, entries: Entries = "signs", ridge: float = 0.0,
    sharpness: float = 2.0,
) -> Planted:  # fmt: skip
    """Return labels drawn from the logistic model of `sharpness`·θ*."""
    theta = sparse_vector(design.shape[1], k_star, entries, rng)
    odds = sharpness * design[:, theta.indices] @ theta.values
    labels = np.where(rng.random(len(design)) < 1 / (1 + np.exp(-odds)), 1.0, -1.0)
    return Planted(LogisticRegression(design, labels, ridge=ridge), theta)


def planted_rank_one(size: int, k_star: int, rng: np.random.Generator) -> tuple[RankOne, SparseVector]:
    """Return the fit of v vᵀ with v k*-sparse and of norm 1, and v."""
    planted = sparse_vector(size, k_star, "normal", rng)
    planted = SparseVector(size, planted.indices, planted.values / planted.norm)
    return RankOne(np.outer(planted.dense(), planted.dense())), planted


def stuck(k: int, k_star: int, condition: float) -> tuple[Planted, SparseVector]:
    """Return the quadratic on which IHT is stuck for k ≤ k*((β/α − 1)/2)², α = 1, and the point that it is stuck at."""
    size = k + k_star
    flat = np.zeros(size)
    flat[:k], flat[k:] = 1 / np.sqrt(k), 1 / np.sqrt(k_star)
    low, high = 1.0, condition
    # H = low·I + c·flat flatᵀ, ‖flat‖² = 2; its root has the same form.
    root = np.sqrt(low) * np.eye(size) + (np.sqrt(high) - np.sqrt(low)) / 2 * np.outer(flat, flat)
    design = np.sqrt(size) * root
    theta = SparseVector(size, np.arange(k, size), np.ones(k_star))
    problem = LeastSquares(design, design[:, k:] @ theta.values)
    coupling, own = (high - low) / 2, (high + low) / 2
    values = np.full(k, coupling / own * np.sqrt(k_star / k))
    return Planted(problem, theta), SparseVector(size, np.arange(k), values)
