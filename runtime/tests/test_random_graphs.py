"""Random small graphs give what onnxruntime gives, with every set of kernels, block size and thread count."""

import random

import numpy as np
import pytest
from acdc_runtime import InferenceSession, _core, choices
from graphs import Builder, Draw, random_map_graph, random_token_graph, seeded
from hypothesis import given
from hypothesis import strategies as st

from conftest import KERNELS, assert_as_exact, difference, in_double, reference


@st.composite
def drawn_graphs(draw, make):
    def integer(low: int, high: int) -> int:
        return draw(st.integers(low, high - 1))

    return make(integer)


def any_choice(seed: int):
    """Return a stand-in for the timed choice of kernels: a random one, small blocks included."""
    draws = random.Random(seed)

    def candidates(matrix, taps, kernels):
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
        assert_as_exact(alone, model, inputs)
        shared = run_with(content, inputs, threads, kernels, seed)
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(alone, shared, strict=True))

    check()
    assert sum(nodes) > 100


def test_draws_of_a_seed_make_one_graph():
    def made(draw: Draw) -> bytes:
        return random_map_graph(draw)[0].SerializeToString()

    assert made(seeded(3)) == made(seeded(3)) != made(seeded(4))


def ill_conditioned_graph():
    """Return a graph whose two norms, over pairs of nearly equal numbers, magnify rounding a thousandfold."""
    b = Builder(seeded(0))
    x = b.input((3, 51, 2))
    b.inputs[x] = (2 + b.inputs[x] * 1e-3).astype(np.float32)
    y = b.node("Softmax", [x], b.shapes[x], axis=1)
    for _ in range(2):
        terms = [b.constant(b.random.standard_normal(2).astype(np.float32)) for _ in range(2)]
        y = b.node("LayerNormalization", [y, *terms], b.shapes[x], axis=-1, epsilon=1e-5)
    return b.model([y]), b.inputs


@pytest.mark.parametrize("kernels", _core.available_kernels())
def test_where_rounding_is_magnified_float64_is_as_near_as_to_onnxruntime(kernels):
    model, inputs = ill_conditioned_graph()
    (ours,) = InferenceSession(model.SerializeToString(), threads=1, kernels=kernels).run(None, inputs)
    (theirs,), (exact,) = reference(model, inputs), in_double(model, inputs)
    assert exact.dtype == np.float64
    assert difference(ours, exact) <= max(1e-6, 2 * difference(theirs, exact))
