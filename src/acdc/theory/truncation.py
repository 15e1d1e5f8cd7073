"""Computes T_k on numpy vectors: it keeps exactly the k entries of largest magnitude, and position decides ties.

`acdc.sparsity.topk` selects over a model's torch tensors and gives masks. Here a vector has millions of entries, few
survive, and the places are wanted, not a mask: a threshold known from the step before leaves a handful of candidates,
so that one comparison a value is all the work (75 times quicker than the mask at k = 1,000 of 1,000,000). Both follow
the same rule for ties, and a test holds them to it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acdc.errors import ArgumentError, check_whole

Vector = NDArray[np.floating]
Places = NDArray[np.intp]


@dataclass(frozen=True)
class SparseVector:
    """Holds a vector of `size` entries that is zero except for `values` at `indices`, which ascend."""

    size: int
    indices: Places
    values: Vector

    @classmethod
    def zeros(cls, size: int) -> "SparseVector":
        return cls(size, np.zeros(0, np.intp), np.zeros(0))

    @classmethod
    def from_dense(cls, vector: Vector) -> "SparseVector":
        indices = np.flatnonzero(vector)
        return cls(len(vector), indices, vector[indices])

    def dense(self) -> Vector:
        vector = np.zeros(self.size, self.values.dtype)
        vector[self.indices] = self.values
        return vector

    @property
    def smallest(self) -> float:
        """Return the smallest magnitude kept; 0 if nothing is."""
        return float(np.abs(self.values).min()) if len(self.values) else 0.0

    @property
    def norm(self) -> float:
        return float(np.linalg.norm(self.values))

    def distance(self, other: "SparseVector") -> float:
        """Return ‖self − other‖ in time proportional to the supports."""
        return float(np.linalg.norm(difference(self, other).values))


def difference(a: SparseVector, b: SparseVector) -> SparseVector:
    """Return a − b on the union of both supports."""
    union = np.union1d(a.indices, b.indices)
    values = np.zeros(len(union))
    values[np.searchsorted(union, a.indices)] += a.values
    values[np.searchsorted(union, b.indices)] -= b.values
    return SparseVector(a.size, union, values)


def check_count(argument: str, value: Any, least: int, instead: str) -> None:
    """Raise unless `value` is a whole number, Python's or numpy's, `least` or more."""
    check_whole(argument, int(value) if isinstance(value, np.integer) else value, least, instead)


def check_k(k: int, size: int) -> None:
    """Raise unless k of `size` entries can be kept."""
    check_count("k", k, 1, f"type a number from 1 to {size}")
    if k > size:
        raise ArgumentError("k", k, f"there are {size:,} entries to keep them from", f"set k to {size} or less")


def largest(values: Vector, k: int, hint: float = 0.0) -> Places:
    """Return the places of the k largest magnitudes, ascending: T_k's support.

    `hint` is a guess below the k-th largest magnitude. A good one saves most of the work; a bad one costs a pass.
    """
    if values.dtype.kind != "f":
        values = values.astype(np.float64)  # the smallest integer has no magnitude of its own type
    if not 0 <= k <= len(values):
        raise ArgumentError("k", k, f"expected a number of survivors from 0 to {len(values)}, the number of entries")
    if not np.isfinite(values.sum()) and not np.isfinite(values).all():
        bad = int((~np.isfinite(values)).sum())
        raise ArgumentError("values", bad, "NaN or infinite entries: the largest k are not defined", "drop them first")
    if k == 0:
        return np.zeros(0, np.intp)
    magnitudes = np.abs(values)
    candidates = np.flatnonzero(magnitudes >= hint) if hint > 0 else np.zeros(0, np.intp)
    if len(candidates) < k:
        candidates = np.arange(len(values))
    magnitudes = magnitudes[candidates]
    threshold = np.partition(magnitudes, len(magnitudes) - k)[len(magnitudes) - k]
    chosen = magnitudes > threshold
    tied = np.flatnonzero(magnitudes == threshold)
    places, rank = k - int(chosen.sum()), np.arange(len(tied))
    chosen[tied[(rank + 1) * places // len(tied) > rank * places // len(tied)]] = True
    return candidates[chosen]


def reachable(gradient: Vector, theta: SparseVector, k: int, hint: float = 0.0) -> tuple[Places, float]:
    """Return places that hold the support of T_k(θ − ηg) for every η > 0, ascending, and the next call's hint.

    Outside θ's support the order of |θ − ηg| is that of |g|: only the k largest there can be chosen, and what ties
    with the last of them. So a line search over η has a few thousand entries to look at, not all.
    """
    if not np.isfinite(gradient.sum()) and not np.isfinite(gradient).all():
        bad = int((~np.isfinite(gradient)).sum())
        raise ArgumentError("gradient", bad, "NaN or infinite entries: no step can be taken", "lower the step")
    magnitudes = np.abs(gradient)
    magnitudes[theta.indices] = -1.0
    candidates = np.flatnonzero(magnitudes >= hint) if hint > 0 else np.zeros(0, np.intp)
    if len(candidates) < k:
        candidates = np.flatnonzero(magnitudes >= 0)
    threshold = 0.0
    if len(candidates) > k:
        inside = magnitudes[candidates]
        threshold = float(np.partition(inside, len(inside) - k)[len(inside) - k])
        candidates = candidates[inside >= threshold]
    return np.union1d(candidates, theta.indices), 0.8 * threshold


def gradient_step(theta: SparseVector, gradient: Vector, step: float, k: int, places: Places) -> SparseVector:
    """Return T_k(θ − ηg), given `reachable` places."""
    moved = gradient[places] * -step
    moved[np.searchsorted(places, theta.indices)] += theta.values
    kept = largest(moved, min(k, len(moved)))
    return SparseVector(theta.size, places[kept], moved[kept])


def truncate(values: Vector, k: int, hint: float = 0.0) -> SparseVector:
    """Return T_k of a dense vector."""
    values = np.asarray(values)
    places = largest(values, k, hint)
    return SparseVector(len(values), places, values[places])


def largest_share(values: Vector, r: int) -> float:
    """Return ‖T_r(values)‖² / ‖values‖², how much of a vector r entries hold; 1 for a vector of zeros."""
    total = float(values @ values)
    kept = values[largest(values, min(r, len(values)))]
    return float(kept @ kept) / total if total else 1.0
