from itertools import pairwise

import pytest
import torch
from torch import nn

import acdc
from acdc.methods.lottery import LotteryTicket
from tests.methods.tiny import Tiny


def method(**knobs) -> LotteryTicket:
    schedule = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "4st")])
    return LotteryTicket(**{"sparsity": 0.75, "schedule": schedule, "rounds": 3, "rewind": "1st", **knobs})


def test_by_hand():
    """4 weights to 1, in 3 rounds of 2 steps: half are left after each. Momentum ½, going back to before step 1.

    step 0   gradient −1: m = −1          [1, 2, 3, 4] → [2, 3, 4, 5], the point to go back to
    step 1   −9 for the first: m = [−9½, −½, −½, −½]   → [11½, 3½, 4½, 5½]
    round 2  11½ and 5½ stay, as they were:              [2, 0, 0, 5], m = [−1, 0, 0, −1]
    step 2   m = −½ for both                           → [2½, 0, 0, 5½]
    step 3   9 for the last: m = [−¼, 0, 0, 8¾]        → [2¾, 0, 0, −3¼]
    round 3  −3¼ stays, as it was:                       [0, 0, 0, 5], m = −1
    """
    t = Tiny(method(), [1, 2, 3, 4], momentum=0.5)
    t.step([-1, -1, -1, -1])
    assert t.weights == [2, 3, 4, 5]
    t.step([-9, 0, 0, 0])
    assert t.weights == [11.5, 3.5, 4.5, 5.5]
    t.begin()
    assert t.weights == [2, 0, 0, 5]
    assert t.momentum == [-1, 0, 0, -1]
    t.step()
    assert t.weights == [2.5, 0, 0, 5.5]
    t.step([0, 0, 0, 9])
    assert t.weights == [2.75, 0, 0, -3.25]
    t.begin()
    assert t.weights == [0, 0, 0, 5]
    assert t.momentum == [0, 0, 0, -1]
    t.step()
    t.step()
    result = t.sparsifier.finish()
    assert result.sparsity == 0.75
    assert result.dense is not None
    assert result.dense["0.weight"].tolist() == [[11.5, 3.5, 4.5, 5.5]]
    assert result.dense_step == 2


def test_the_original_tickets_go_back_to_the_start():
    t = Tiny(method(rewind="0st"), [1, 2, 3, 4], momentum=0.5)
    t.step([-1, -1, -1, -1])
    t.step([-9, 0, 0, 0])
    t.begin()
    assert t.weights == [1, 0, 0, 4]
    assert not t.optimizer.state[t.params[0]]


def test_a_kept_weight_that_is_zero_comes_before_the_pruned():
    t = Tiny(method(), [4, 3, 2, 1])
    t.step()
    t.step()
    t.step()
    assert t.masks == "1100"
    t.step([4, 3, 0, 0])  # both to exactly 0
    assert t.weights == [0, 0, 0, 0]
    t.begin()
    assert t.masks in ("1000", "0100")


def test_the_learning_rate_starts_over():
    """Each round of 2 steps walks the curve of 6; round 2 and 3 from half of it on, as they go back to step 1 of 2."""
    t = Tiny(method(), [1, 2, 3, 4])
    assert [t.sparsifier.method.rate_step(t.sparsifier.context, step) for step in range(6)] == [0, 3, 3, 4, 3, 4]
    start = Tiny(method(rewind="0st"), [1, 2, 3, 4])
    assert [start.sparsifier.method.rate_step(start.sparsifier.context, step) for step in range(6)] == [0, 3] * 3


def test_equal_shares_and_the_target_exactly():
    lottery = LotteryTicket(sparsity=0.9, epochs=24)
    left = [1 - lottery.left_after(0.9, prunings) for prunings in range(12)]
    assert all(b / a == pytest.approx(0.1 ** (1 / 11)) for a, b in pairwise(left))
    assert lottery.left_after(0.9, 11) == 0.9
    assert 1 - left[1] == pytest.approx(0.19, abs=0.005)


def test_rounds_that_do_not_divide_the_epochs():
    t = nn.Linear(8, 8)
    lottery = LotteryTicket(sparsity=0.9, epochs=10, rounds=3)
    s = acdc.attach(t, torch.optim.SGD(t.parameters(), lr=0.1), lottery, steps_per_epoch=10)
    assert lottery.starts(s.context) == [0, 33, 67, 100]
    assert s.total_steps == 100


def test_batch_norm_goes_back_too():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    s = acdc.attach(model, optimizer, method())
    kept = {}
    for step in range(3):
        if step == 1:
            kept = {name: value.clone() for name, value in model.state_dict().items()}
        if step == 2:
            s.begin_step()
            for name, value in model.state_dict().items():
                mask = s.masks.get(name)
                assert torch.equal(value, kept[name] if mask is None else kept[name] * mask), name
            assert all(int(state["step"]) == 1 for state in optimizer.state.values())
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"rounds": 0}, r"rounds=0: expected a whole number, 2 or more; .* write rounds=12"),
        ({"rounds": 1}, r"rounds=1: expected a whole number, 2 or more"),
        ({"rewind": "5%"}, r"rewind='5%': it cannot be a percentage"),
        ({"rewind": "soon"}, r"rewind='soon': a duration needs a unit"),
        ({"schedule": acdc.Schedule.for_epochs(10)}, r"schedule=.*a dense phase and a sparse one; omit it"),
        ({"pattern": acdc.NM(2, 4), "sparsity": None}, r"fixes the sparsity, which LotteryTicket raises"),
    ],
)
def test_refusals(knobs, message):
    with pytest.raises(ValueError, match=message):
        method(**knobs)


def test_rewinding_past_the_first_round():
    with pytest.raises(ValueError, match=r"rewind='2st': the first round has 2 steps.*; write an earlier point"):
        Tiny(method(rewind="2st"), [1, 2, 3, 4])


def test_a_run_that_did_not_pass_the_point():
    t = Tiny(method(), [1, 2, 3, 4])
    t.sparsifier.set_step(2)
    with pytest.raises(RuntimeError, match=r'did not pass rewind="1st"; start it from step 0'):
        t.step()


def test_the_point_to_go_back_to_stays_on_the_host():
    """Also after a resume; meta stands for a GPU here, see tests/conformance/test_devices.py."""
    t = Tiny(method(), [1, 2, 3, 4], momentum=0.5)
    t.step([-1, -1, -1, -1])
    t.step()
    model = nn.Sequential(nn.Linear(4, 1, bias=False, device="meta"))
    sparsifier = acdc.Sparsifier(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5), method())
    sparsifier.load_state_dict(t.sparsifier.state_dict())
    start = sparsifier.context.memory["start"]
    assert start["model"]["0.weight"].tolist() == [[2, 3, 4, 5]]
    assert start["optimizer"][0]["momentum_buffer"].tolist() == [[-1, -1, -1, -1]]
