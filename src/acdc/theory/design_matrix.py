"""Multiplies with a design matrix as sparse regression does: by few columns, by all rows, by a mini-batch of them.

Dense arrays and scipy's sparse matrices are both held by columns: those of a support lie together, and a sparse
matrix's transpose times a residual gathers from the residual, which fits a cache, and scatters nothing. Columns can be
scaled without touching the entries.
"""

from typing import Any

import numpy as np
from scipy import sparse

from acdc.errors import ArgumentError, Shown
from acdc.theory.truncation import Places, SparseVector, Vector


class DesignMatrix:
    """Offers the products with X D⁻¹, where the diagonal D of `scales` is 1 unless given."""

    def __init__(self, entries: Any, *, scales: Vector | None = None) -> None:
        if not sparse.issparse(entries):
            entries = np.asarray(entries)
        if entries.ndim != 2 or 0 in entries.shape:
            shape = Shown(" x ".join(map(str, entries.shape)) or "a number")
            raise ArgumentError("design", shape, "expected samples x features, at least one of each", "check X.shape")
        if entries.dtype.kind != "f":
            entries = _as_real(entries)
        self.is_sparse = sparse.issparse(entries)
        self._entries: Any = sparse.csc_array(entries) if self.is_sparse else np.asfortranarray(entries)
        check_finite("design", self._entries.data if self.is_sparse else self._entries)
        self._transposed: Any = self._entries.T
        self._by_rows: Any = None  # a copy by rows, made when mini-batches are first asked for
        self.samples, self.features = entries.shape
        self.scales = scales

    def restrict(self, places: Places) -> "DesignMatrix":
        """Return the columns at `places` as a design of their own."""
        part = object.__new__(DesignMatrix)
        part.is_sparse, part._entries = self.is_sparse, self._entries[:, places]
        part._transposed, part._by_rows = part._entries.T, None
        part.samples, part.features = self.samples, len(places)
        part.scales = None if self.scales is None else self.scales[places]
        return part

    @property
    def nonzeros(self) -> int:
        return self._entries.nnz if self.is_sparse else self._entries.size

    def forward(self, theta: SparseVector) -> Vector:
        """Return X D⁻¹ θ from the columns of θ's support alone."""
        values = self._unscaled(theta.values, theta.indices)
        return (self._entries if len(values) == self.features else self._entries[:, theta.indices]) @ values

    def back(self, residual: Vector) -> Vector:
        """Return D⁻¹ Xᵀ r, all of it."""
        return self._unscaled(self._transposed @ residual, slice(None))

    def row_block(self, chosen: Places) -> Any:
        """Return some of the samples as they were given, unscaled."""
        if self._by_rows is None:
            self._by_rows = sparse.csr_array(self._entries) if self.is_sparse else np.ascontiguousarray(self._entries)
        return self._by_rows[chosen]

    def back_from(self, block: Any, residual: Vector) -> Vector:
        """Return D⁻¹ Bᵀ r for a block of rows."""
        return self._unscaled(block.T @ residual, slice(None))

    def columns(self, places: Places | slice) -> Vector:
        """Return some columns of X D⁻¹ as a dense array."""
        block = self._entries[:, places]
        return self._unscaled(block.toarray() if self.is_sparse else block, places)

    def column_moments(self, weights: Vector) -> tuple[Vector, Vector]:
        """Return Σ_i w_i x_ij and Σ_i w_i x_ij² of every column j of X D⁻¹."""
        squares = (self._entries.multiply(self._entries) if self.is_sparse else self._entries**2).T @ weights
        return self.back(weights), self._unscaled(self._unscaled(squares, slice(None)), slice(None))

    def column_spreads(self, weights: Vector, *, centred: bool) -> Vector:
        """Return √(Σ_i w_i (x_ij − c_j)²) of every column of X D⁻¹: c is the mean if `centred`, else 0.

        Weights sum to 1. The mean is taken off first: a difference of moments would leave a constant column the root
        of a rounding error, and that is no spread.
        """
        if not centred:
            return np.sqrt(self.column_moments(weights)[1])
        means = self._transposed @ weights
        if self.is_sparse:
            columns = np.repeat(np.arange(self.features), np.diff(self._entries.indptr))
            weight = weights[self._entries.indices]
            squares = np.bincount(columns, weight * (self._entries.data - means[columns]) ** 2, self.features)
            absent = 1.0 - np.bincount(columns, weight, self.features)
            squares = squares + np.where(absent > 1e-12, absent, 0.0) * means**2
        else:
            squares = weights @ (self._entries - means) ** 2
        return self._unscaled(np.sqrt(squares), slice(None))

    def row_square_norms(self) -> Vector:
        """Return ‖x_i‖² of every row of X D⁻¹."""
        entries = self._entries if self.scales is None else self._entries / self.scales
        return np.asarray((entries.multiply(entries) if self.is_sparse else entries**2).sum(axis=1)).ravel()

    def _unscaled(self, values: Vector, places: Any) -> Vector:
        return values if self.scales is None else values / self.scales[places]


def _as_real(entries: Any) -> Any:
    try:
        if entries.dtype.kind == "c":
            raise ValueError("they are complex")
        return entries.astype(np.float64)
    except (TypeError, ValueError) as error:
        received = Shown(f"entries of type {entries.dtype}")
        raise ArgumentError("design", received, f"expected real numbers: {error}", "encode them first") from None


def check_finite(argument: str, values: Vector) -> None:
    """Raise unless every number is finite."""
    bad = int((~np.isfinite(values)).sum())
    if bad:
        received = Shown(f"{bad:,} values that are NaN or infinite")
        raise ArgumentError(argument, received, "expected finite numbers", "drop or fill them first")
