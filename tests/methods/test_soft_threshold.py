import math

import pytest
import torch

import acdc
from acdc.methods.soft_threshold import STR, soft_threshold
from tests.methods.tiny import Tiny, sparse_for

S = -math.log(3)  # σ(S) = 1/4, σ'(S) = 3/16


def dense(t: Tiny) -> list[float]:
    return [round(value, 6) for value in t.sparsifier.context.weights["0.weight"].flatten().tolist()]


def test_one_step_by_hand():
    """τ = 1/4. ∂f/∂s = −3/16 · (1·1 + 2·(−1)) = 3/16; s ← s − .1 (3/16 + .5 s). Pruned weights get no gradient."""
    t = Tiny(STR(start=S, decay=0.5, schedule=sparse_for(4)), [1, -0.5, 0.2, -0.1], lr=0.1)
    t.begin()
    assert t.weights == [0.75, -0.25, 0, 0]
    t.step([1, 2, 4, 8])
    assert dense(t) == [0.9, -0.7, 0.2, -0.1]
    s = float(t.sparsifier.context.memory["s"]["0.weight"])
    assert s == pytest.approx(S - 0.1 * (3 / 16 + 0.5 * S), rel=1e-6)
    threshold = 1 / (1 + math.exp(-s))
    assert t.weights == pytest.approx([0.9 - threshold, -0.7 + threshold, 0, 0], abs=1e-6)
    assert t.sparsifier.sparsity == 0.5


def test_the_gradient_is_autograd_s():
    torch.manual_seed(0)
    weight, s, c = torch.randn(50, requires_grad=True), torch.tensor(-0.3, requires_grad=True), torch.randn(50)
    (torch.sign(weight) * torch.relu(weight.abs() - torch.sigmoid(s)) * c).sum().backward()
    assert s.grad is not None
    t = Tiny(STR(start=-0.3, decay=0.0, schedule=sparse_for(4)), weight.tolist())
    t.step(c.tolist())
    moved = weight.detach() - t.sparsifier.context.weights["0.weight"].flatten()
    torch.testing.assert_close(moved, weight.grad)
    assert float(t.sparsifier.context.memory["s"]["0.weight"]) == pytest.approx(-0.3 - float(s.grad), rel=1e-5)


def test_momentum_and_weight_decay_are_the_optimizer_s():
    """While σ(s) = 0 only the decay moves s: v = .1·−100 = −10, s = −99; v = .9·−10 + .1·−99 = −18.9, s = −97.11."""
    t = Tiny(STR(start=-100, schedule=sparse_for(4)), [1, 2], lr=0.1)
    t.optimizer.param_groups[0].update(momentum=0.9, weight_decay=0.1)
    t.step()
    assert float(t.sparsifier.context.memory["s"]["0.weight"]) == pytest.approx(-99)
    assert t.weights == [0.99, 1.98]
    t.step()
    assert float(t.sparsifier.context.memory["s"]["0.weight"]) == pytest.approx(-97.11)


def test_a_threshold_of_0_leaves_weights_as_they_are():
    weight = torch.randn(1000)
    assert torch.equal(soft_threshold(weight, torch.tensor(0.0)), weight)


def test_sparsity_is_reported_as_reached():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.006)
    s = acdc.attach(model, optimizer, STR(start=-5, schedule=sparse_for(100)))
    reached = []
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
        reached.append(s.sparsity)
    assert reached[0] < 0.1 < 0.5 < reached[-1] < 1
    result = s.finish()
    assert result.sparsity == reached[-1]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"sparsity": 0.9}, r"sparsity=0\.9: STR finds its sparsity in training; omit sparsity, and set start"),
        ({"distribution": "erk"}, "omit distribution"),
        ({"pattern": acdc.NM(2, 4)}, "omit pattern"),
        ({"start": 3}, "write start=-3200"),
        ({"decay": -1}, "write decay=5e-4"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        STR(epochs=10, **knobs)
