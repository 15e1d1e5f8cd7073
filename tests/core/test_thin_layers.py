"""Layers that one threshold for all leaves nearly empty are named; legitimate high sparsities are not."""

import pytest
import torch
from torch import nn

import acdc
from acdc.core.checks import thin_layers
from acdc.core.method import Method
from acdc.sparsity.distributions import budgets
from acdc.sparsity.prunable import find_prunable
from tests.warned import warned


def two_layers() -> nn.Sequential:
    """One of 40,000 weights, ten times smaller than the other's 40,000."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 200, bias=False), nn.ReLU(), nn.Linear(200, 200, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(0.1)
        model.get_parameter("0.weight").view(-1)[:100].fill_(1.0)
    return model


def train(method: Method) -> list[str]:
    """Train over all of a method's steps, and return what it warned of."""
    model = two_layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with warned() as messages:
        sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=1)
        for _ in range(sparsifier.total_steps):
            optimizer.zero_grad()
            model(torch.ones(1, 200)).sum().backward()
            optimizer.step()
        sparsifier.finish()
    return messages


def test_a_nearly_empty_layer_is_named_once() -> None:
    """AC/DC compresses twice here, to 80 % and to 90 % zeros; 100 of 40,000 weights of the first layer survive."""
    (message,) = train(acdc.ACDC.paper(sparsity=0.9, epochs=4, gradual=True))
    assert message.startswith("1 of 2 layers are nearly empty: 0.weight (99.75% zeros).")
    assert 'distribution="erk"' in message
    assert "exclude=['0.weight']" in message


def test_a_sparsity_that_rises_within_a_phase_is_looked_at_in_the_end() -> None:
    (message,) = train(acdc.methods.GMP(sparsity=0.9, epochs=8))
    assert "0.weight (99.75% zeros)" in message


@pytest.mark.parametrize("knobs", [{"distribution": "uniform"}, {"distribution": {"0": 0.999, "2": 0.9}}])
def test_what_a_distribution_asks_for_is_no_surprise(knobs: dict) -> None:
    assert train(acdc.ACDC.paper(sparsity=0.9, epochs=4, **knobs)) == []


@pytest.mark.parametrize(
    ("sparsity", "kept", "named"),
    [
        (0.90, 1.5e-2, False),  # large layers take more than their share
        (0.90, 0.9e-2, True),
        (0.95, 0.9e-2, True),
        (0.98, 0.9e-2, True),
        (0.98, 1.1e-2, False),
        (0.99, 0.6e-2, False),  # more than half of what all layers keep
        (0.99, 0.4e-2, True),
        (0.99, 0.0, False),  # an empty layer has a warning of its own
    ],
)
def test_nearly_empty_is_below_one_percent_and_half_of_the_share(sparsity: float, kept: float, named: bool) -> None:
    layers = find_prunable(two_layers())
    total = round((1 - sparsity) * layers.size)
    counts = {"0.weight": round(kept * 40_000), "2.weight": total - round(kept * 40_000)}
    thin = thin_layers(counts, layers, budgets("global", layers.weights, sparsity))
    assert list(thin) == (["0.weight"] if named else [])


@pytest.mark.parametrize(
    "method", [acdc.methods.GMP(sparsity=0.9, epochs=20), acdc.ACDC(sparsity=0.9, epochs=20, floor=0.0)]
)
def test_a_layer_that_a_rising_sparsity_empties_is_named_at_once_and_once(method: Method) -> None:
    model = two_layers()
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(1e-6)  # from 50 % on nothing of it survives
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=1, quiet=True)
    emptied = {}
    for step in range(20):
        with warned() as messages:
            optimizer.zero_grad()
            model(torch.ones(1, 200)).sum().backward()
            optimizer.step()
        empty = sparsifier.layer_sparsity["0.weight"] == 1
        emptied[step] = (empty, sum(text.startswith("all weights of 0.weight are pruned") for text in messages))
    with warned() as messages:
        sparsifier.finish()
    first = min(step for step, (empty, _) in emptied.items() if empty)
    assert first < 10  # of 20 steps
    assert [step for step, (_, said) in emptied.items() if said] == [first]
    assert not [text for text in messages if text.startswith("all weights of")]
