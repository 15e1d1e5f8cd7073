"""Random small graphs give what onnxruntime gives, with every set of kernels, block size and thread count."""

import random

import numpy as np
import pytest
from acdc_runtime import InferenceSession, _core, choices
from graphs import random_map_graph, random_token_graph

from conftest import KERNELS, assert_close, reference


@pytest.fixture
def any_choice(monkeypatch):
    """Replace the timed choice of kernels by a random one, small blocks included."""

    def seeded(seed: int) -> None:
        draws = random.Random(seed)

        def candidates(matrix, taps, every=False):
            methods = choices.METHODS if matrix.shape[0] % 4 == 0 else ("dense", "sparse")
            return [choices.Choice(draws.choice(methods), draws.choice((1, 3, 8, 20, 96)))]

        monkeypatch.setattr(choices, "candidates", candidates)

    return seeded


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("make", [random_map_graph, random_token_graph])
def test_random_graphs(make, kernels, any_choice):
    if kernels not in _core.available_kernels():
        pytest.skip(f"this processor has no {kernels}")
    nodes = 0
    for seed in range(60):
        model, inputs = make(seed)
        content = model.SerializeToString()
        nodes += len(model.graph.node)
        any_choice(seed)
        alone = InferenceSession(content, threads=1, kernels=kernels).run(None, inputs)
        assert_close(alone, reference(model, inputs))
        any_choice(seed)
        shared = InferenceSession(content, threads=3, kernels=kernels).run(None, inputs)
        assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(alone, shared, strict=True))
    assert nodes > 100
