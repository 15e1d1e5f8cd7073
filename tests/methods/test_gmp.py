import pytest

import acdc
from acdc.methods.gmp import GMP
from tests.methods.tiny import Tiny


def schedule(dense: int, sparse: int) -> acdc.Schedule:
    return acdc.Schedule.from_phases([("dense", f"{dense}st"), ("sparse", f"{sparse}st")])


def test_the_cubic_rise_at_three_points():
    """From 0 to .8 over steps 10 to 30: half-way the rest is (1/2)³ = 1/8 of the way, .8 · 7/8 = .7."""
    method = GMP(sparsity=0.8, schedule=schedule(10, 30))
    assert method.sparsity_at(0.8, 10, 10, 30) == 0
    assert method.sparsity_at(0.8, 20, 10, 30) == pytest.approx(0.7)
    assert method.sparsity_at(0.8, 30, 10, 30) == 0.8
    assert method.sparsity_at(0.8, 35, 10, 30) == 0.8


def test_the_rise_from_an_initial_sparsity():
    """.8 + (.4 − .8) / 8 = .75."""
    assert GMP(sparsity=0.8, initial=0.4, schedule=schedule(10, 30)).sparsity_at(0.8, 20, 10, 30) == pytest.approx(0.75)


def test_by_hand():
    """8 weights, 75 %: updates at steps 2, 4 and 6 of 8. Half-way .75 · 7/8 · 8 = 5.25 zeros, then 6."""
    t = Tiny(GMP(sparsity=0.75, schedule=schedule(2, 6), every="2st"), [8, -7, 6, -5, 4, -3, 2, -1])
    t.step()
    t.step()
    assert t.masks == []
    t.step()
    assert t.masks == "11111111"
    assert t.sparsifier.context.twin is not None
    assert t.sparsifier.context.twin.step == 2
    t.step()
    t.step()
    assert t.weights == [8, -7, 6, 0, 0, 0, 0, 0]
    t.step([7.5, 0, 0, 0, 0, 0, 0, 0])  # the largest weight becomes the smallest
    assert t.weights == [0.5, -7, 6, 0, 0, 0, 0, 0]
    t.step()
    assert t.weights == [0, -7, 6, 0, 0, 0, 0, 0]
    t.step()
    assert t.sparsifier.finish().sparsity == 0.75


@pytest.mark.parametrize("end", [0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("every", ["1st", "3st", "100st"])
def test_the_last_update_reaches_the_target(end, every):
    """The published code ends one update short of it (FACTS §6.4)."""
    t = Tiny(GMP(sparsity=0.75, begin=0.25, end=end, schedule=schedule(3, 9), every=every), [8, 7, 6, 5, 4, 3, 2, 1])
    for _ in range(12):
        t.step()
    assert t.sparsifier.finish().sparsity == 0.75
    assert t.masks == "11000000"


def test_each_layer_rises_to_its_own():
    """Half-way, 7/8 of the way: .5 · 7 = 3.5 zeros of 8, rounded to even, 4; and .25 · 7 = 1.75, rounded to 2."""
    method = GMP(distribution={"0.*": 0.5, "1.*": 0.25}, schedule=schedule(2, 6), every="2st")
    t = Tiny(method, [8, 7, 6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6, 7, 8])
    for _ in range(5):
        t.step()
    assert t.masks == ["11110000", "00111111"]


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"begin": 0.8}, r"end=0\.75: the rise must end after it begins, at begin=0\.8; write end="),
        ({"end": 1.5}, r"end=1\.5: expected a fraction .* write end=0\.75"),
        ({"initial": 0.95}, r"initial=0\.95: the sparsity rises to 0\.9; start lower"),
        ({"epochs": 1}, r"epochs=1: expected a whole number, 2 or more; GMP needs a dense epoch and a sparse one"),
        ({"floor": None}, r"floor=None: expected a fraction of .* from 0 to 1; write floor=0\.75, or 0 for none"),
        ({"every": "0st"}, r"every='0st': updates must be some steps or epochs apart; write every=\"1st\""),
        ({"every": "10%"}, r"every='10%': it cannot be a percentage; write"),
        ({"every": "often"}, r"every='often': a duration needs a unit; write"),
        ({"pattern": acdc.NM(2, 4), "sparsity": None}, r"pattern=NM.*fixes the sparsity.*or use OneShot"),
    ],
)
def test_refusals(knobs, message):
    with pytest.raises(ValueError, match=message):
        GMP(**{"sparsity": 0.9, "epochs": 10, **knobs})


def test_epochs_between_updates_need_their_length():
    with pytest.raises(ValueError, match="every='1ep': epochs need steps_per_epoch"):
        Tiny(GMP(sparsity=0.5, schedule=schedule(1, 3)), [1, 2])
