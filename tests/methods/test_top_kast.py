import pytest
import torch

import acdc
from acdc.methods.top_kast import TopKAST
from tests.methods.tiny import Tiny, sparse_for
from tests.warned import SMALL_NETS


def dense(t: Tiny) -> list[float]:
    return [round(value, 6) for value in t.sparsifier.context.weights["0.weight"].flatten().tolist()]


@SMALL_NETS
def test_one_step_by_hand():
    """A = {4}, B = {4, 3}, D = 1/4, λ = .1, lr = .1, gradient 1 everywhere.

    On A 4 − .1 (1 + .1·4) = 3.86; on B∖A 3 − .1 (1 + .1·3·4) = 2.78; the rest stays.
    """
    t = Tiny(TopKAST(sparsity=0.75, backward=0.5, decay=0.1, schedule=sparse_for(4)), [4, 3, -2, 1], lr=0.1)
    t.begin()
    assert t.weights == [4, 0, 0, 0]
    t.step([1, 1, 1, 1])
    assert dense(t) == [3.86, 2.78, -2, 1]
    assert t.weights == [3.86, 0, 0, 0]


@SMALL_NETS
def test_the_optimizers_weight_decay_is_the_penalty_if_none_is_set():
    """As by hand above: 4 − .1 (1 + .4), where the optimizer adds the .4; 3 − .1 (1 + .3 + .9), it adds the .3."""
    t = Tiny(TopKAST(sparsity=0.75, backward=0.5, schedule=sparse_for(4)), [4, 3, -2, 1], lr=0.1)
    t.optimizer.param_groups[0].update(weight_decay=0.1)
    t.begin()
    t.step([1, 1, 1, 1])
    assert dense(t) == [3.86, 2.78, -2, 1]


def test_a_weight_of_b_grows_into_a():
    """Masks every 2 steps: 3 grows to 5 at once, and the model computes with it from step 2 on; 4 rests in B."""
    t = Tiny(TopKAST(sparsity=0.75, backward=0.5, decay=0.0, every="2st", schedule=sparse_for(6)), [4, 3, -2, 1])
    t.step([0, -2, -9, -9])
    assert dense(t) == [4, 5, -2, 1]
    assert t.weights == [4, 0, 0, 0]
    t.step()
    assert t.weights == [4, 0, 0, 0]
    t.begin()
    assert t.weights == [0, 5, 0, 0]
    t.step([2.5, 0, 0, 0])  # 4 leaves B as 1.5; −2 enters it
    t.step()
    t.step([1, 0, -4, 0])
    assert dense(t) == [1.5, 5, 2, 1]


def test_what_rests_does_not_move_by_momentum_or_weight_decay():
    t = Tiny(TopKAST(sparsity=0.75, backward=0.5, decay=0.0, every="1st", schedule=sparse_for(6)), [4, 3, -2, 1])
    t.optimizer.param_groups[0].update(momentum=0.5, weight_decay=0.1)
    t.step([0, 2, 0, 0])  # 4 − .4 = 3.6;  3 − 2.3 = .7: out of B
    assert dense(t) == [3.6, 0.7, -2, 1]
    t.step()  # 3.6 − (.5·.4 + .36) = 3.04;  −2, now in B, + (.5·.2 + .2) = −1.7
    assert dense(t) == [3.04, 0.7, -1.7, 1]


def test_exploration_ends():
    """After half of 4 steps B = A."""
    t = Tiny(
        TopKAST(sparsity=0.75, backward=0.5, explore=0.5, every="1st", decay=0.0, schedule=sparse_for(4)), [4, 3, 2, 1]
    )
    for _ in range(4):
        t.step([-1, -0.5, 0, 0])
    assert dense(t) == [8, 4, 2, 1]


@pytest.mark.parametrize(("forward", "backward"), [(0.9, 0.8), (0.8, 0.6), (0.5, 0.0), (0.3, 0.0)])
def test_twice_the_density_unless_set(forward, backward):
    assert TopKAST(sparsity=forward, epochs=1).backward_of(forward) == backward


def test_counts_are_exact_and_b_holds_a():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = TopKAST(sparsity=0.9, backward=0.7, distribution="erk", schedule=sparse_for(10), every="2st")
    s = acdc.attach(model, optimizer, method)
    for _ in range(10):
        model(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
        shares = s.context.memory["share"]
        assert sum(int(mask.sum()) for mask in s.masks.values()) == 90
        assert sum(int((share > 0).sum()) for share in shares.values()) == 270
        assert all((shares[name][mask] == 1).all() for name, mask in s.masks.items())
    assert s.finish().sparsity == 0.9


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        (
            {"backward": 0.95},
            r"backward=0\.95: expected at most the forward sparsity, 0\.9: .*; write backward=0\.8",
        ),
        ({"backward": 80}, r"for 80 % write backward=0\.8"),
        ({"decay": -1}, "decay=-1: expected a penalty"),
        ({"every": "5%"}, "every"),
        ({"explore": 2}, "explore=2"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        TopKAST(sparsity=0.9, epochs=10, **knobs)
