"""Random small graphs give what onnxruntime gives, with every set of kernels, block size and thread count."""

import random

import numpy as np
import pytest
from acdc_runtime import InferenceSession, _core, choices
from graphs import Draw, random_map_graph, random_token_graph
from hypothesis import given
from hypothesis import strategies as st

from conftest import KERNELS, assert_close, reference


@st.composite
def drawn_graphs(draw, make):
    def integer(low: int, high: int) -> int:
        return draw(st.integers(low, high - 1))

    return make(integer)


def any_choice(seed: int):
    """Return a stand-in for the timed choice of kernels: a random one, small blocks included."""
    draws = random.Random(seed)

    def candidates(matrix, taps, every=False):
        methods = choices.METHODS if matrix.shape[0] % 4 == 0 else ("dense", "sparse")
        return [choices.Choice(draws.choice(methods), draws.choice((1, 3, 8, 20, 96)))]

    return candidates


def run_with(content: bytes, inputs: dict, threads: int, kernels: str, seed: int) -> list[np.ndarray]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "candidates", any_choice(seed))
        return InferenceSession(content, threads=threads, kernels=kernels).run(None, inputs)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("make", [random_map_graph, random_token_graph])
def test_random_graphs(make, kernels):
    if kernels not in _core.available_kernels():
        pytest.skip(f"this processor has no {kernels}")
    nodes = []

    @given(drawn_graphs(make), st.integers(0, 1 << 16), st.integers(2, 6))
    def check(graph, seed, threads):
        model, inputs = graph
        content = model.SerializeToString()
        nodes.append(len(model.graph.node))
        alone = run_with(content, inputs, 1, kernels, seed)
        assert_close(alone, reference(model, inputs))
        shared = run_with(content, inputs, threads, kernels, seed)
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(alone, shared, strict=True))

    check()
    assert sum(nodes) > 100


def test_draws_of_a_seed_make_one_graph():
    from graphs import seeded

    def made(draw: Draw) -> bytes:
        return random_map_graph(draw)[0].SerializeToString()

    assert made(seeded(3)) == made(seeded(3)) != made(seeded(4))
