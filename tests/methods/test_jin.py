import pytest

from acdc.methods.dsd import EndsDense
from acdc.methods.jin import Jin
from tests.methods.tiny import Tiny


def test_by_hand():
    """Momentum ½, one step a phase, gradients −1 at first and then 0. Weight by weight, m is the momentum:

    dense   [4, −3, 2, 1]: m = −1 each               → [5, −2, 3, 2]
    sparse  the two largest: 5 and 3; m = −½ for them → [5.5, 0, 3.5, 0]
    dense   m = −¼ for them, not reset; the others start anew, m = 0
                                                     → [5.75, 0, 3.75, 0]
    """
    phases = [("dense", "1st"), ("sparse", "1st"), ("dense", "1st")]
    t = Tiny(Jin(sparsity=0.5, schedule=EndsDense.from_phases(phases)), [4, -3, 2, 1], momentum=0.5)
    t.step([-1, -1, -1, -1])
    assert t.weights == [5, -2, 3, 2]
    t.step()
    assert t.weights == [5.5, 0, 3.5, 0]
    t.step()
    assert t.weights == [5.75, 0, 3.75, 0]
    assert t.momentum == [-0.25, 0, -0.25, 0]
    result = t.sparsifier.finish()
    assert result.sparse["0.weight"].tolist() == [[5.5, 0, 3.5, 0]]
    assert result.dense is not None
    assert result.dense["0.weight"].tolist() == [[5.75, 0, 3.75, 0]]


def test_the_support_is_taken_anew_each_time():
    phases = [("dense", "1st"), ("sparse", "1st"), ("dense", "1st"), ("sparse", "1st"), ("dense", "1st")]
    t = Tiny(Jin(sparsity=0.5, schedule=EndsDense.from_phases(phases)), [4, 3, 2, 1])
    t.step()
    t.step()
    assert t.masks == "1100"
    t.step([0, 2, -5, 0])
    assert t.weights == [4, 1, 5, 0]
    t.step()
    assert t.masks == "1010"
    assert t.sparsifier.context.sparse_model is None, "only the last sparse model is kept"
    t.step()
    assert t.sparsifier.finish().sparse["0.weight"].tolist() == [[4, 0, 5, 0]]


def test_cycles():
    assert [phase.kind[0] for phase in Jin(sparsity=0.5, epochs=10).schedule.phases] == list("dsdsdsd")
    assert [str(phase.length) for phase in Jin(sparsity=0.5, epochs=10, cycles=1).schedule.phases] == [
        "3ep",
        "4ep",
        "3ep",
    ]
    with pytest.raises(ValueError, match=r"cycles=0: expected a whole number, 1 or more; write cycles=3"):
        Jin(sparsity=0.5, epochs=10, cycles=0)
    with pytest.raises(ValueError, match="there are 7 phases, so write epochs=7"):
        Jin(sparsity=0.5, epochs=6)
