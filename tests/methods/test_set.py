from collections import Counter

import pytest

from acdc.methods.set import SET
from tests.methods.tiny import Tiny, sparse_for


def method(**knobs) -> SET:
    return SET(**{"sparsity": 0.2, "distribution": "uniform", "schedule": sparse_for(4), "every": "2st", **knobs})


def test_by_hand():
    """4 of 5 kept: ⌊.3 · 4⌋ = 1 is dropped, and one place is free to grow, so chance has no choice."""
    t = Tiny(method(), [0] * 5)
    t.step()
    t.mask("11101")
    t.set([3, -1, 2, 0, -4])
    t.step()
    t.begin()
    assert t.masks == "10111"
    assert t.weights == [3, 0, 2, 0, -4]
    t.step([0, 5, 0, -2, 0])
    assert t.weights == [3, 0, 2, 2, -4]


def grown(seed: int) -> str:
    t = Tiny(method(sparsity=0.5, seed=seed), [0] * 8)
    t.step()
    t.mask("11110000")
    t.set([4, 3, 2, 1, 0, 0, 0, 0])
    t.step([0, 0, 0, 0, 9, 8, 7, 6])  # gradients do not matter
    t.begin()
    assert t.masks.startswith("1110")
    return t.masks[4:]


def test_growth_is_uniform_and_the_seed_decides():
    """400 draws of one place in four: 100 ± 9 each."""
    assert [grown(7), grown(7)] == [grown(7)] * 2
    counts = Counter(grown(seed) for seed in range(400))
    assert set(counts) == {"1000", "0100", "0010", "0001"}
    assert all(60 < count < 140 for count in counts.values())


def test_until_the_last_epoch():
    t = Tiny(method(), [0] * 5)
    assert [step for step in range(5) if t.sparsifier.method.updates_at(t.sparsifier.context, step)] == [2, 4]
    assert SET(sparsity=0.5, epochs=3).every == "1ep"


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"distribution": "global"}, r"distribution='global': SET starts from random masks"),
        ({"drop": 2}, r"drop=2: expected a fraction"),
        ({"end": 0.0}, r"end=0\.0: updates must end after they begin"),
        ({"every": "0ep"}, r"every='0ep': updates must be some steps or epochs apart"),
    ],
)
def test_refusals(knobs, message):
    with pytest.raises(ValueError, match=message):
        method(**knobs)
