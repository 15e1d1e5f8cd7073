"""T_k on vectors: exactly k, the same ties as acdc.sparsity.topk, optimal, and the paper's lemma."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acdc.errors import ArgumentError
from acdc.sparsity.topk import top_k
from acdc.theory.bounds import truncation_error
from acdc.theory.truncation import SparseVector, check_k, difference, largest, largest_share, truncate

few = st.lists(st.sampled_from([-2.0, -1.0, -0.0, 0.0, 0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=40)
any_floats = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=40)


@given(few | any_floats, st.data())
@settings(max_examples=30, deadline=None)
def test_keeps_what_top_k_keeps(values: list[float], data: st.DataObject) -> None:
    """Ties included: vectors of few different values are full of them."""
    k = data.draw(st.integers(0, len(values)))
    vector = np.array(values)
    mask = top_k({"": torch.from_numpy(vector)}, k)[""]
    assert largest(vector, k).tolist() == mask.nonzero().flatten().tolist()


@given(few, st.floats(0, 4), st.data())
@settings(max_examples=30, deadline=None)
def test_a_hint_changes_nothing(values: list[float], hint: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values)))
    vector = np.array(values)
    assert largest(vector, k, hint).tolist() == largest(vector, k).tolist()


@given(any_floats, st.data())
@settings(max_examples=25, deadline=None)
def test_no_k_sparse_vector_is_nearer(values: list[float], data: st.DataObject) -> None:
    vector = np.array(values)
    k = data.draw(st.integers(1, len(values)))
    places = data.draw(st.lists(st.integers(0, len(values) - 1), min_size=k, max_size=k, unique=True))
    other = np.zeros_like(vector)
    other[places] = vector[places] * data.draw(st.floats(0.5, 1.5))
    kept = truncate(vector, k).dense()
    assert np.linalg.norm(kept - vector) <= np.linalg.norm(other - vector) * (1 + 1e-12)


@given(any_floats, st.data())
@settings(max_examples=30, deadline=None)
def test_the_lemma(values: list[float], data: st.DataObject) -> None:
    """‖T_k(θ) − θ‖²/(n − k) ≤ ‖θ* − θ‖²/(n − k*) for θ of n entries and θ* of k* ≤ k."""
    vector = np.array(values)
    n = len(vector)
    k = data.draw(st.integers(1, n - 1))
    k_star = data.draw(st.integers(1, k))
    other = np.zeros(n)
    places = data.draw(st.lists(st.integers(0, n - 1), min_size=k_star, max_size=k_star, unique=True))
    free = data.draw(st.lists(st.floats(-1e6, 1e6), min_size=k_star, max_size=k_star))
    other[places] = data.draw(st.sampled_from([vector[places], np.array(free)]))
    lost = np.square(truncate(vector, k).dense() - vector).sum()
    nearest = truncate(vector, k_star).dense()  # no θ* is harder to satisfy
    for rival in (other, nearest):
        assert lost <= truncation_error(n, k, k_star) * np.square(rival - vector).sum() * (1 + 1e-9) + 1e-300


def test_the_lemma_is_tight_for_equal_entries() -> None:
    vector, other = np.ones(10), np.zeros(10)
    other[:2] = 1
    lost = np.square(truncate(vector, 6).dense() - vector).sum()
    assert lost == pytest.approx(truncation_error(10, 6, 2) * np.square(other - vector).sum())


def test_sparse_vectors_subtract_on_the_union() -> None:
    a, b = SparseVector.from_dense(np.array([1.0, 0, 2, 0])), SparseVector.from_dense(np.array([0.0, 3, 1, 0]))
    assert difference(a, b).dense().tolist() == [1, -3, 1, 0]
    assert a.distance(b) == pytest.approx(np.sqrt(11))
    assert (a.smallest, SparseVector.zeros(3).smallest) == (1, 0)


def test_share_of_the_largest() -> None:
    assert largest_share(np.array([3.0, -4.0, 0.0]), 1) == pytest.approx(16 / 25)
    assert largest_share(np.zeros(3), 1) == 1


@pytest.mark.parametrize("k", [-1, 4])
def test_k_out_of_range(k: int) -> None:
    with pytest.raises(ArgumentError) as refused:
        largest(np.ones(3), k)
    assert refused.value.argument == "k"


def test_numbers_that_cannot_be_ordered() -> None:
    for bad in (np.nan, np.inf):
        with pytest.raises(ArgumentError, match="not defined"):
            largest(np.array([1.0, bad]), 1, hint=0.5)
    assert largest(np.array([1e308, -1e308, 1e308]), 1).tolist() == [2]  # their sum overflows, and they are finite


def test_whole_numbers_are_vectors_and_counts_too() -> None:
    assert truncate(np.array([np.iinfo(np.int64).min, 3, 2]), 1).indices.tolist() == [0]
    check_k(np.int64(3), 10)  # pyright: ignore[reportArgumentType]


def test_checks_of_k() -> None:
    for k, text in ((0, "1 or more"), (11, "there are 10 entries"), (2.5, "whole number")):
        with pytest.raises(ArgumentError, match=text):
            check_k(k, 10)  # pyright: ignore[reportArgumentType]
