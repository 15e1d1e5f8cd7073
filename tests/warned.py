"""Gathers the warnings of a sparsifier, which are errors in all other tests."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from acdc.core.context import SparsityWarning


@contextmanager
def warned() -> Iterator[list[str]]:
    """Return the texts of the warnings issued inside, each as often as it was, once the block has ended."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    assert all(issubclass(warning.category, SparsityWarning) for warning in caught), caught
    messages += [str(warning.message) for warning in caught]


# What tests of other things may warn of by the way. Whatever else a sparsifier warns of there is an error.
SMALL_NETS = pytest.mark.filterwarnings(
    "ignore:(all weights of .* are pruned|.* layers are nearly empty|.* the first update of):acdc.SparsityWarning"
)
LATE_STARTS = pytest.mark.filterwarnings("ignore:the start of a phase was noticed only:acdc.SparsityWarning")
ENFORCED = pytest.mark.filterwarnings("ignore:.* is not known to keep zero weights at zero:acdc.SparsityWarning")
