import pytest

from acdc.methods.dpf import DPF
from tests.methods.tiny import Tiny, sparse_for


def dense(t: Tiny) -> list[float]:
    return t.sparsifier.context.weights["0.weight"].flatten().tolist()


def test_what_was_pruned_comes_back_by_hand():
    """Masks every 2 steps at 50 %: −2 is pruned, its gradient moves it to −5, and the next mask takes it for 3."""
    t = Tiny(DPF(sparsity=0.5, initial=0.5, every="2st", schedule=sparse_for(8)), [4, 3, -2, 1])
    t.step([0, 0, 3, 0])
    assert dense(t) == [4, 3, -5, 1]
    assert t.weights == [4, 3, 0, 0]
    t.step()
    assert t.weights == [4, 3, 0, 0]
    t.begin()
    assert t.weights == [4, 0, -5, 0]
    t.step([0, -2, 0, 0])  # 3 was not lost
    assert dense(t) == [4, 5, -5, 1]


def test_the_rise_by_hand():
    """8 weights to 75 % over the first 4 of 8 steps, mask every 2: 0, .75 · 7/8 · 8 = 5.25, then 6 zeros."""
    t = Tiny(DPF(sparsity=0.75, every="2st", schedule=sparse_for(8)), [8, -7, 6, -5, 4, -3, 2, -1])
    zeros = []
    for _ in range(8):
        t.step()
        zeros.append(t.weights.count(0))
    assert zeros == [0, 0, 5, 5, 6, 6, 6, 6]
    assert dense(t) == [8, -7, 6, -5, 4, -3, 2, -1]
    assert t.sparsifier.finish().sparsity == 0.75


@pytest.mark.parametrize("end", [0.3, 0.5, 1.0])
@pytest.mark.parametrize("every", ["1st", "3st", "100st"])
def test_the_target_is_reached(end, every):
    t = Tiny(DPF(sparsity=0.5, end=end, every=every, schedule=sparse_for(10)), [4, 3, 2, 1])
    for _ in range(10):
        t.step()
    assert t.weights == [4, 3, 0, 0]


def test_masks_freeze():
    method = DPF(sparsity=0.5, end=0.25, freeze=0.5, every="1st", schedule=sparse_for(8))
    t = Tiny(method, [4, 3, 2, 1])
    for _ in range(5):
        t.step()
    t.step([0, 0, -9, 0])
    t.step()
    assert t.weights == [4, 3, 0, 0]
    assert [step for step in range(8) if method.updates_at(t.sparsifier.context, step)] == [1, 2, 3, 4]


def test_bad_knobs():
    with pytest.raises(ValueError, match=r"freeze=0\.3: .*write freeze=0\.5 or more"):
        DPF(sparsity=0.9, epochs=10, freeze=0.3)
    with pytest.raises(ValueError, match="end=0"):
        DPF(sparsity=0.9, epochs=10, end=0.0)
