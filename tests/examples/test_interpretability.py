"""The example that looks for circuits: its table on a tiny model, and its counts where they are known."""

import re
from types import ModuleType

import pytest
import torch

from acdc.models.gpt import GPT
from tests.warned import SMALL_NETS


@pytest.fixture
def example() -> ModuleType:
    import importlib.util
    from pathlib import Path

    path = Path(__file__).parents[2] / "examples" / "interpretability.py"
    spec = importlib.util.spec_from_file_location("interpretability", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@SMALL_NETS
def test_the_table(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--steps", "100", "--width", "16", "--sparsity", "0.9"])
    rows = [re.split(r"\s{2,}", line.replace(",", "")) for line in capsys.readouterr().out.splitlines()]
    layers = [row for row in rows if row[0].startswith(("blocks", "head"))]
    assert [row[0] for row in rows if row[0] == "all"] == ["all", "all"]
    assert len(layers) == 2 * 9
    for _, weights, nonzero, units, active, circuit, edges in layers:
        assert int(edges) <= int(nonzero) <= int(weights)
        assert int(circuit) <= int(units)
        assert 0 <= float(active) <= int(units)
    dense, sparse = (int(row[2]) for row in rows if row[0] == "all")
    assert sparse < 0.2 * dense


def test_a_circuit_of_all_units_has_every_weight(example: ModuleType) -> None:
    model = GPT(15, layers=2, width=16, heads=4, context=12, activation="gelu", tied=False, seed=0)
    layers = example.layers_of(model)
    every = {name: torch.ones(layer.in_features, dtype=torch.bool) for name, layer in layers.items()}
    assert {name: example.edges_of(model, name, every) for name in layers} == {
        name: layer.weight.numel() for name, layer in layers.items()
    }
    first = {**every, "blocks.0.attention.out": torch.arange(16) < 4}  # the first head's channels
    assert example.edges_of(model, "blocks.0.attention.qkv", first) == 3 * 4 * 16  # its queries, keys and values
    hidden = {**every, "blocks.1.feedforward.down": torch.arange(64) < 2}
    assert example.edges_of(model, "blocks.1.feedforward.up", hidden) == 2 * 16
    last = {**every, "head": torch.arange(16) < 3}
    assert example.edges_of(model, "blocks.1.feedforward.down", last) == 3 * 64  # nothing reads other channels later


def test_units_outside_the_circuit_do_not_matter(example: ModuleType) -> None:
    """A model whose head reads two channels of the stream has no others of them in its circuit."""
    model = GPT(15, layers=2, width=16, heads=4, context=12, activation="gelu", tied=False, seed=0)
    with torch.no_grad():
        assert model.head is not None
        model.head.weight[:, 2:] = 0
    data = example.examples(64, seed=0)
    kept = example.circuit(model, data)
    assert not kept["head"][2:].any()
    scores, means = example.attributions(model, data)
    assert not scores["head"][2:].any()
    every = {name: torch.ones_like(units) for name, units in kept.items()}
    assert example.accuracy(model, data, kept, means) >= 0.99 * example.accuracy(model, data, every, means)
