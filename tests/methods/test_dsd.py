import pytest
import torch
from torch import nn

import acdc
from acdc.methods.dsd import DSD, EndsDense
from tests.methods.tiny import Tiny


def test_by_hand():
    """One step a phase, each gradient −1: every trained weight gains 1. The two largest of 4 survive the middle one."""
    schedule = EndsDense.from_phases([("dense", "1st"), ("sparse", "1st"), ("dense", "1st")])
    t = Tiny(DSD(sparsity=0.5, schedule=schedule), [3, -4, 1, 0])
    t.step([-1, -1, -1, -1])
    assert t.weights == [4, -3, 2, 1]
    t.step([-1, -1, -1, -1])
    assert t.weights == [5, -2, 0, 0]
    t.step([-1, -1, -1, -1])
    assert t.weights == [6, -1, 1, 1], "the pruned ones continue from 0"
    result = t.sparsifier.finish()
    assert result.sparse["0.weight"].tolist() == [[5, -2, 0, 0]]
    assert result.dense is not None
    assert result.dense["0.weight"].tolist() == [[6, -1, 1, 1]]
    assert result.masks["0.weight"].tolist() == [[True, True, False, False]]
    assert (result.sparsity, result.dense_step) == (0.5, 3)


def test_each_layer_by_its_own_threshold():
    schedule = EndsDense.from_phases([("dense", "1st"), ("sparse", "1st"), ("dense", "1st")])
    t = Tiny(DSD(sparsity=0.5, schedule=schedule), [8, 7, 6, 5], [4, 3, 2, 1])
    t.step()
    t.step()
    assert t.weights == [[8, 7, 0, 0], [4, 3, 0, 0]]


def test_thirds_and_the_papers_sparsity():
    method = DSD(epochs=10)
    assert method.sparsity == 0.3
    assert [(p.kind, str(p.length)) for p in method.schedule.phases] == [
        ("dense", "3ep"),
        ("sparse", "4ep"),
        ("dense", "3ep"),
    ]
    assert str(method.schedule.total) == "10ep"
    assert method.schedule.phases[-1].final
    assert EndsDense.from_dict(method.schedule.to_dict()) == method.schedule


def test_through_an_unchanged_loop():
    """The last dense phase is noticed in its first backward pass; the sparse model kept has the weights from before."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsifier = acdc.attach(model, optimizer, DSD(epochs=3), steps_per_epoch=2)
    kept = None
    for step in range(6):
        if step == 4:
            kept = {name: param.detach().clone() for name, param in model.named_parameters()}
        optimizer.zero_grad()
        model(torch.randn(5, 8)).square().sum().backward()
        optimizer.step()
    result = sparsifier.finish()
    assert kept is not None
    assert result.dense is not None
    assert all(torch.equal(result.sparse[name], value) for name, value in kept.items())
    assert result.sparsity == pytest.approx(0.3, abs=0.01)
    assert all(torch.equal(value, result.dense[name]) for name, value in model.state_dict().items())


def test_refusals():
    with pytest.raises(ValueError, match=r"epochs=2: .* there are 3 phases, so write epochs=3 or more"):
        DSD(epochs=2)
    with pytest.raises(ValueError, match="kinds must alternate"):
        EndsDense.from_phases([("sparse", "1ep"), ("dense", "1ep"), ("dense", "1ep")])
    with pytest.raises(RuntimeError, match=r"finish\(\) at step 0 of 3"):
        Tiny(DSD(schedule=EndsDense.from_phases([("dense", "1st"), ("sparse", "1st"), ("dense", "1st")])), [1, 2, 3])\
            .sparsifier.finish()  # fmt: skip
