from collections import Counter

import pytest
import torch

from acdc.methods.deepr import DeepR, choose
from tests.methods.tiny import Tiny, sparse_for


def method(**knobs) -> DeepR:
    defaults = {"sparsity": 0.25, "distribution": "uniform", "schedule": sparse_for(9), "l1": 0.125, "temperature": 0}
    return DeepR(**{**defaults, **knobs})


def test_by_hand():
    """Signs + − + −, 3 of 4 active, lr 1, no noise. Each update takes α = 1/8 off every active magnitude.

    step 0   the gradient −¼ brings −¼ to 0
    step 1   begins: 4, 0 and 2 lose 1/8; the second is now + 1/8 with a sign of −: dormant, and the last one grows
    step 1   its gradient is +1: −1, as its sign wants
    step 2   begins: −1 + 1/8
    step 2   its gradient −1 makes it + 1/8
    step 3   begins: + 1/4 is not its sign; the only dormant one is the second, which grows again, from 0
    """
    t = Tiny(method(), [4.0, -0.25, 2.0, -3.0])
    t.begin()
    t.mask("1110")
    t.set([4, -0.25, 2, 0])
    t.step([0, -0.25, 0, 0])
    assert t.weights == [4, 0, 2, 0]
    t.begin()
    assert t.masks == "1011"
    assert t.weights == [3.875, 0, 1.875, 0]
    t.step([0, 7, 0, 1])
    assert t.weights == [3.875, 0, 1.875, -1]
    t.begin()
    assert t.masks == "1011"
    assert t.weights == [3.75, 0, 1.75, -0.875]
    t.step([0, 0, 0, -1])
    assert t.weights == [3.75, 0, 1.75, 0.125]
    t.begin()
    assert t.masks == "1110"
    assert t.weights == [3.625, 0, 1.625, 0]


def test_a_weight_at_zero_has_not_crossed_it():
    t = Tiny(method(l1=0), [4.0, 3.0, 2.0, 1.0])
    t.begin()
    t.mask("1110")
    t.set([4, 0, 2, 0])
    t.step()
    t.begin()
    assert t.masks == "1110"


def test_several_steps_at_once():
    """every="2st": an update brings two steps' l1, 2 · lr · α = 2 · ½ · 1/8."""
    t = Tiny(method(every="2st"), [4.0, -4.0, 2.0, -3.0], lr=0.5)
    t.begin()
    t.mask("1110")
    t.step()
    t.step()
    t.begin()
    assert [abs(w) for w in t.weights[:2]] == [3.875, 3.875]


def test_noise_has_the_papers_size():
    """√(2 η T) with η = ½ and T = 1e-4: 0.01."""
    row = [1.0] * 20000
    t = Tiny(method(l1=0, temperature=1e-4, sparsity=0.5), row, lr=0.5)
    t.step()
    t.begin()
    moved = t.params[0].detach()[t.sparsifier.masks["0.weight"]] - 1
    assert moved.std().item() == pytest.approx(0.01, rel=0.05)
    assert abs(moved.mean().item()) < 0.001
    again = Tiny(method(l1=0, temperature=1e-4, sparsity=0.5), row, lr=0.5)
    again.step()
    torch.manual_seed(5)
    again.begin()
    assert torch.equal(again.params[0], t.params[0]), "a function of seed, step and layer"


def test_a_dense_layer_starts_its_crossed_weights_from_zero():
    t = Tiny(method(sparsity=0.0), [1.0, -1.0])
    t.step([2, 0])
    t.begin()
    assert t.masks == "11"
    assert t.weights == [0, -0.875]


def test_signs_hold_after_every_update():
    torch.manual_seed(0)
    row = torch.randn(64).tolist()
    t = Tiny(method(sparsity=0.5, l1=0.01, temperature=1e-4, schedule=sparse_for(40)), row, lr=0.1)
    positive, first = torch.tensor(row) >= 0, None
    for _ in range(39):
        t.step(torch.randn(64).tolist())
        t.begin()
        weight, mask = t.params[0].detach()[0], t.sparsifier.masks["0.weight"][0]
        first = mask if first is None else first
        assert mask.sum() == 32
        assert torch.all((weight >= 0)[mask & positive])
        assert torch.all((weight <= 0)[mask & ~positive])
        assert not weight[~mask].any()
    assert first is not None
    assert not torch.equal(first, t.sparsifier.masks["0.weight"][0])


@pytest.mark.parametrize("count", [0, 1, 3, 5])
def test_choose_draws_different_places(count):
    among = torch.tensor([c == "1" for c in "0110100101"])
    places = choose(among, count, torch.Generator().manual_seed(1))
    assert len(places.unique()) == count
    assert among[places].all()


def test_choose_is_uniform():
    """One in a hundred, drawn 2000 times by looking at few: 20 ± 4.5 each."""
    among = torch.zeros(200, dtype=torch.bool)
    among[::2] = True
    counts = Counter(int(choose(among, 1, torch.Generator().manual_seed(seed))) for seed in range(2000))
    assert len(counts) == 100
    assert max(counts.values()) < 45


def test_a_loop_that_calls_no_module_is_told():
    t = Tiny(method(), [1.0, 2.0, 3.0, 4.0])
    t.step()
    with pytest.raises(
        RuntimeError, match=r"step 1: DeepR writes weights when a step begins.*begin_step\(\) at the top"
    ):
        (t.params[0] ** 2).sum().backward()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"l1": -1}, r"l1=-1: expected a number, 0 or more; write l1=1e-5"),
        ({"temperature": float("inf")}, r"temperature=inf: expected a number, 0 or more"),
        ({"every": "0st"}, "every='0st': updates must be"),
        ({"distribution": "global"}, "DeepR starts from random masks"),
    ],
)
def test_refusals(knobs, message):
    with pytest.raises(ValueError, match=message):
        method(**knobs)
