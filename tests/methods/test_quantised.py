import pytest
import torch

import acdc
from acdc.methods.quantised import QuantisedACDC, quantise
from tests.methods.tiny import Tiny, sparse_for


def test_the_grid_by_hand():
    """3 bits: L = 3, Δ = 6/3 = 2. 2.9 → 2 (1.45 steps), 3.1 → 4, −.9 → 0, −6 → −6."""
    assert quantise(torch.tensor([6.0, 2.9, 3.1, -0.9, -6.0]), 3).tolist() == [6, 2, 4, 0, -6]


def test_each_channel_has_its_own_grid():
    weight = torch.tensor([[4.0, 1.4], [1.0, 0.6]])
    assert quantise(weight, 2, 0).tolist() == [[4, 0], [1, 1]]
    assert quantise(weight, 2, 1).tolist() == [[4, 1.399999976158142], [0, 0]]
    assert quantise(weight, 2).tolist() == [[4, 0], [0, 0]]
    assert quantise(torch.zeros(3), 4).tolist() == [0, 0, 0]


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_at_most_2_to_the_b_values_and_the_nearest(bits):
    torch.manual_seed(0)
    weight = torch.randn(16, 300)
    found = quantise(weight, bits, 0)
    assert all(len(row.unique()) <= 2**bits - 1 for row in found)
    delta = weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((weight - found).abs() <= delta / 2 * 1.0001).all()
    torch.testing.assert_close(quantise(found, bits, 0), found)


def test_straight_through_by_hand():
    """2 bits, one grid: Δ = 4. The gradient at [4, 0] moves [4, 1] to [4, 3], which then rounds to [4, 4]."""
    t = Tiny(QuantisedACDC(bits=2, schedule=sparse_for(4)), [4.0, 1.0])
    t.begin()
    assert t.weights == [4, 0]
    t.step([0, -2])
    assert t.weights == [4, 4]
    assert t.sparsifier.context.weights["0.weight"].tolist() == [[4, 3]]


@pytest.mark.parametrize("per", ["channel", "layer"])
def test_a_run_ends_on_the_grid_with_its_twin(per):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    s = acdc.attach(model, optimizer, QuantisedACDC(bits=3, per=per, epochs=6), steps_per_epoch=2)
    for step in range(12):
        optimizer.zero_grad()
        model(torch.randn(4, 20)).square().mean().backward()
        optimizer.step()
        weights = [model.get_parameter("0.weight"), model.get_parameter("2.weight")]
        groups = weights if per == "layer" else [channel for weight in weights for channel in weight]
        on_grid = all(len(group.unique()) <= 7 for group in groups)
        assert on_grid == (s.phase.kind == "sparse"), step
    result = s.finish()
    assert result.dense_step is not None
    assert result.dense is not None
    assert len(result.dense["0.weight"].unique()) > 500
    assert result.masks["0.weight"].equal(result.sparse["0.weight"] != 0)


def test_a_dense_phase_goes_on_from_the_grid():
    schedule = acdc.Schedule.from_phases([("sparse", "2st"), ("dense", "1st"), ("sparse", "1st")])
    t = Tiny(QuantisedACDC(bits=2, schedule=schedule), [4.0, 1.0])
    t.step()
    t.step()
    t.step([0, -0.5])
    assert t.weights == [4, 0.5]
    assert t.masks == []


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"bits": 1}, r"bits=1: expected a whole number from 2 to 16; write bits=4"),
        ({"per": "weight"}, "per='weight': expected one of 'channel', 'layer'"),
        ({"sparsity": 0.9}, "omit sparsity, and set bits"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        QuantisedACDC(epochs=10, **knobs)


@pytest.mark.parametrize(
    ("twin", "reported", "step"), [("last", {}, 5), ("best", {}, 5), ("best", {1: 0.9, 4: 0.5}, 1)]
)
@pytest.mark.filterwarnings("ignore:twin=.best.. no metric was reported:acdc.SparsityWarning")
def test_its_twin_is_chosen_as_acdc_s(twin, reported, step):
    """Dense for 2 steps, compressed for 2, dense for 1, compressed: the twin is of step 5, or the best reported."""
    schedule = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "2st"), ("dense", "1st"), ("sparse", "2st")])
    for method in (
        QuantisedACDC(bits=3, schedule=schedule, twin=twin),
        acdc.ACDC(sparsity=0.5, schedule=schedule, twin=twin),
    ):
        t = Tiny(method, [1.0, 2.0, 3.0, 4.0])
        for now in range(7):
            t.step([0.1, 0.1, 0.1, 0.1])
            if now + 1 in reported:
                t.sparsifier.report_metric(reported[now + 1])
        assert t.sparsifier.finish().dense_step == step
