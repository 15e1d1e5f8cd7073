import pytest
import torch

from acdc.methods.snfs import SNFS, share_out
from tests.methods.tiny import Tiny, sparse_for


def method(**knobs) -> SNFS:
    return SNFS(**{"sparsity": 0.5, "schedule": sparse_for(4), "every": "2st", "beta": 0.0, **knobs})


def test_by_hand():
    """Two layers of 8, 4 kept each. At step 2 of 4: ζ = ¼ (1 + cos π/2) = ¼, so each drops one, its smallest.

    With β = 0 the momentum is the last gradient. Over kept weights it is .3 on average in the first layer, 0 in the
    second: both places go to the first, to its largest momenta among weights not kept: −.9 and .5.
    """
    t = Tiny(method(), [0] * 8, [0] * 8)
    t.step()
    t.mask("11110000", "11110000")
    t.set([4, 3, 2, -1, 0, 0, 0, 0], [9, 8, 7, 6, 0, 0, 0, 0])
    t.step([0.5, -0.5, 0.2, 0, 0.1, -0.9, 0.5, 0.4], [0, 0, 0, 0, 3, 3, 3, 3])
    t.begin()
    assert t.masks == ["11100110", "11100000"]
    assert t.weights == [[3.5, 3.5, 1.8, 0, 0, 0, 0, 0], [9, 8, 7, 0, 0, 0, 0, 0]]


def test_momentum_is_of_gradients_as_they_are_before_clipping():
    t = Tiny(method(schedule=sparse_for(8)), [1] * 4)
    t.step()
    t.mask("1100")
    t.sparsifier.begin_step()
    t.params[0].grad = torch.tensor([[3.0, 4.0, 7.0, 8.0]])
    t.sparsifier.mask_gradients()
    assert float(torch.nn.utils.clip_grad_norm_(t.params, 1.0)) == 5
    t.optimizer.step()
    assert t.sparsifier.context.memory["momentum"]["0.weight"].tolist() == [[3, 4, 7, 8]]


def test_a_weight_just_dropped_may_come_back_as_it_was():
    """ζ = ½: of 4 and ½ the smaller is dropped, and has the largest momentum."""
    t = Tiny(method(drop=1.0), [0] * 4)
    t.step()
    t.mask("1100")
    t.set([4, 3, 0, 0])
    t.step([0, 2.5, 1, 0])
    t.begin()
    assert t.masks == "1100"
    assert t.weights == [4, 0.5, 0, 0]


def test_few_weights_and_a_small_share_drop_none():
    """⌊¼ · 2⌋ = 0."""
    t = Tiny(method(), [0] * 4)
    t.step()
    t.mask("1100")
    t.step([0, 0, 1, 1])
    t.begin()
    assert t.masks == "1100"


def test_momentum_is_of_all_gradients():
    """M = ½ · 0 + ½ · 8 = 4, then ½ · 4 + ½ · 0 = 2, of a weight that was never kept."""
    t = Tiny(method(beta=0.5, schedule=sparse_for(8), every="4st"), [0] * 4)
    t.begin()
    t.mask("1100")
    t.step([0, 0, 8, 0])
    assert t.sparsifier.context.memory["momentum"]["0.weight"].tolist() == [[0, 0, 4, 0]]
    t.step()
    assert t.sparsifier.context.memory["momentum"]["0.weight"].tolist() == [[0, 0, 2, 0]]
    assert t.weights == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("total", "weights", "room", "shares"),
    [
        (4, [3, 1], [9, 9], [3, 1]),
        (5, [3, 1, 1], [2, 9, 9], [2, 2, 1]),  # the first is full; 3 are left for two, 1½ each
        (6, [1, 0], [4, 4], [4, 2]),  # without momentum last, but the places must go somewhere
        (4, [0, 0], [9, 9], [2, 2]),
        (7, [1, 1, 1], [9, 9, 9], [3, 2, 2]),
        (3, [1e-30, 1e30], [1, 2], [1, 2]),
        (0, [1, 2], [0, 3], [0, 0]),
    ],
)
def test_shares(total, weights, room, shares):
    assert share_out(total, weights, room) == shares


def test_the_total_stays_exact_and_no_layer_dies():
    """All momentum in one small layer: it fills, the rest goes on to the others, and each keeps a weight."""
    t = Tiny(method(drop=1.0, schedule=sparse_for(12), every="1st"), [0] * 4, [0] * 8, [0] * 12)
    for step in range(12):
        t.step([5, 5, 5, 5], [0.1 * step] * 8)
        kept = [row.count("1") for row in t.masks]
        assert sum(kept) == 12
        assert min(kept) >= 1
    assert t.masks[0].count("1") > 2


def test_dropping_all_leaves_one():
    """Early in a long run ζ is 1 to the last digit."""
    snfs = method(drop=1.0, schedule=sparse_for(10**9), every="1st")
    t = Tiny(snfs, [0] * 4, [0] * 8)
    t.step([0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1, 1])
    assert snfs.fraction_at(1, 10**9) == 1
    t.begin()
    assert [row.count("1") for row in t.masks] == [1, 5]


def test_the_share_falls_to_nothing():
    snfs = SNFS(sparsity=0.5, epochs=4)
    assert (snfs.drop, snfs.beta, snfs.every) == (0.5, 0.9, "1ep")
    assert [snfs.fraction_at(step, 100) for step in (0, 50, 100)] == pytest.approx([0.5, 0.25, 0])


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"beta": 1.5}, r"beta=1\.5: expected a fraction"),
        ({"drop": -1}, "drop=-1: expected a fraction"),
        ({"distribution": "global"}, "SNFS starts from random masks"),
        ({"end": 0}, "end=0: updates must end after they begin"),
    ],
)
def test_refusals(knobs, message):
    with pytest.raises(ValueError, match=message):
        method(**knobs)
