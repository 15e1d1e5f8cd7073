import math

import pytest
import torch

import acdc
from acdc.core.latent import Bundle
from acdc.methods.sparse_vd import K1, SparseVD, kl, kl_slope, log_alpha
from tests.methods.tiny import Tiny, sparse_for


def test_kl_by_hand():
    """At log α = 0: σ(k₂) = .866814, so KL = −(.63576·.866814 − ln 2 / 2 − .63576) = .431248. It falls to 0."""
    assert float(kl(torch.tensor(0.0, dtype=torch.float64))) == pytest.approx(0.431248, abs=1e-5)
    assert float(kl(torch.tensor(50.0))) == pytest.approx(0, abs=1e-6)
    assert float(kl(torch.tensor(-40.0))) == pytest.approx(K1 + 20, rel=1e-6)


def test_slope_is_the_derivative():
    x = torch.linspace(-12, 12, 49, dtype=torch.float64, requires_grad=True)
    kl(x).sum().backward()
    torch.testing.assert_close(kl_slope(x.detach()), x.grad)


def test_one_step_by_hand():
    """θ = 1, log σ² = −10 = log α, no gradient of the loss, κ/n = 1: KL' = −½ but for 3e-5.

    Adam's first step is its rate: log σ² = −10 + .25. θ ← 1 − .1 · (−2 KL'/θ) = 1 − .1 = .9.
    """
    t = Tiny(SparseVD(samples=1, rise=0, rate=0.25, schedule=sparse_for(4)), [1.0], lr=0.1)
    t.step([0.0])
    assert float(t.sparsifier.context.memory["log_variance"]["0.weight"]) == pytest.approx(-9.75, abs=1e-4)
    assert t.weights[0] == pytest.approx(0.9, abs=1e-4)


def draw(t: Tiny, layer: int, size: int) -> torch.Tensor:
    """The noise of a layer's bundle, were the layer its first."""
    bundle = Bundle([t.sparsifier.layers.weights[layer]], group=0)
    method = t.sparsifier.method
    assert isinstance(method, SparseVD)
    return torch.randn(size, generator=method.generator(t.sparsifier.context, bundle, torch.device("cpu")))


def test_the_gradient_of_the_loss_by_hand():
    """No KL yet (t = 0 of the rise): ∂f/∂log σ² = c·σε/2, so Adam moves against the sign of c·ε; θ ← θ − c."""
    t = Tiny(SparseVD(start=-2.0, rate=0.25, schedule=sparse_for(4)), [1.0, 1.0])
    noise = draw(t, 0, 2)
    t.begin()
    assert t.weights == pytest.approx([1 + math.exp(-1) * e for e in noise.flatten().tolist()], abs=1e-5)
    t.step([3.0, -3.0])
    expected = [-2 - 0.25 * float(e.sign()) * sign for e, sign in zip(noise.flatten(), (1, -1), strict=True)]
    log_variance = t.sparsifier.context.memory["log_variance"]["0.weight"]
    assert log_variance.flatten().tolist() == pytest.approx(expected, abs=1e-4)
    assert t.weights == pytest.approx([-2, 4], abs=1e-5)


def test_weights_that_are_nothing_but_noise_are_pruned_between_steps():
    """log α = −2 − log θ²: 3.99 for θ = .05, −2 for θ = 1."""
    t = Tiny(SparseVD(start=-2.0, rate=1e-9, schedule=sparse_for(4)), [1.0, 0.05])
    t.step()
    assert t.weights == [1, 0]
    assert t.sparsifier.sparsity == 0.5
    t.begin()
    assert 0 not in t.weights
    t.step()
    assert t.weights == pytest.approx([1, 0], abs=1e-4)


def test_noise_is_of_the_step_and_the_layer():
    def seen(seed: int) -> list:
        t = Tiny(SparseVD(seed=seed, schedule=sparse_for(4)), [1.0, 1.0], [1.0, 1.0])
        first = [draw(t, i, 2).tolist() for i in (0, 1)]
        t.step()
        return [*first, draw(t, 0, 2).tolist()]

    draws = [*seen(0), *seen(1)]
    assert len({tuple(draw) for draw in draws}) == 6
    assert seen(0) == seen(0)


def test_kappa_rises():
    method = SparseVD(samples=10, rise=0.5, schedule=sparse_for(8))
    t = Tiny(method, [1.0])
    weights = []
    for _ in range(8):
        weights.append(method.weight_of_kl(t.sparsifier.context))
        t.step()
    assert weights == pytest.approx([0, 0.025, 0.05, 0.075, 0.1, 0.1, 0.1, 0.1])


def test_it_learns_which_inputs_are_noise():
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    s = acdc.attach(model, optimizer, SparseVD(samples=200, rate=0.01, rise=0.5, schedule=sparse_for(3000)))
    x = torch.randn(200, 20)
    y = x[:, :3].sum(1, keepdim=True) + 0.1 * torch.randn(200, 1)
    for _ in range(3000):
        optimizer.zero_grad()
        (5 * (model(x) - y).square().mean()).backward()
        optimizer.step()
    mask = s.finish().masks["weight"][0]
    assert mask.tolist() == [True] * 3 + [False] * 17
    assert (log_alpha(s.context.memory["log_variance"]["weight"], s.context.weights["weight"])[0, :3] < 0).all()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"sparsity": 0.9}, "SparseVD finds its sparsity in training; omit sparsity, and set samples"),
        ({"samples": 0}, "samples=0: expected a number above 0"),
        ({"rate": -1}, "rate=-1"),
        ({"rise": 2}, "rise=2"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        SparseVD(epochs=10, **knobs)
