import pytest

import acdc
from acdc.methods.one_shot import OneShot
from tests.methods.tiny import Tiny


def test_by_hand():
    """Half of 4 weights, after one step: the two largest stay and train on."""
    schedule = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", "2st")])
    t = Tiny(OneShot(sparsity=0.5, schedule=schedule), [1, -2, 3, -4])
    t.step([-3, 0, 0, 0])
    assert t.weights == [4, -2, 3, -4]
    t.step([1, 1, 1, 1])
    assert t.weights == [3, 0, 0, -5]
    t.step([0, 0, 0, -9])
    result = t.sparsifier.finish()
    assert result.sparse["0.weight"].tolist() == [[3, 0, 0, 4]]
    assert result.dense is not None
    assert result.dense["0.weight"].tolist() == [[4, -2, 3, -4]], "the twin is the model before pruning"
    assert result.dense_step == 1


def test_when():
    def lengths(**knobs):
        return [str(phase.length) for phase in OneShot(sparsity=0.5, **knobs).schedule.phases]

    assert lengths(epochs=10) == ["5ep", "5ep"]
    assert lengths(epochs=10, at=0.8) == ["8ep", "2ep"]
    assert lengths(epochs=2, at=0.99) == ["1ep", "1ep"]
    assert lengths(epochs=10, at=0) == ["10ep"]


@pytest.mark.parametrize("at", [-0.5, 1, 50, "half"])
def test_refusals(at):
    with pytest.raises(ValueError, match=rf"at={at!r}: .* write at=0\.5"):
        OneShot(sparsity=0.5, epochs=10, at=at)


def test_a_floor_is_a_number():
    with pytest.raises(ValueError, match=r"floor=None: expected a fraction of .*; write floor=0\.75, or 0 for none"):
        OneShot(sparsity=0.5, epochs=10, floor=None)
