import pytest
import torch

import acdc
from acdc.methods.sr_ste import SRSTE
from tests.methods.tiny import Tiny, sparse_for


def dense(t: Tiny) -> list[float]:
    return [round(value, 6) for value in t.sparsifier.context.weights["0.weight"].flatten().tolist()]


def test_one_step_by_hand():
    """λ = .5, lr = .1, gradient 1: kept weights 4 − .1, 3 − .1; pruned −2 − .1 (1 − 1) = −2, 1 − .1 (1 + .5) = .85."""
    t = Tiny(SRSTE(decay=0.5, schedule=sparse_for(4)), [4, 3, -2, 1], lr=0.1)
    t.begin()
    assert t.weights == [4, 3, 0, 0]
    t.step([1, 1, 1, 1])
    assert dense(t) == [3.9, 2.9, -2, 0.85]
    assert t.weights == [3.9, 2.9, 0, 0]


def test_the_choice_is_new_every_step():
    t = Tiny(SRSTE(decay=0.0, schedule=sparse_for(4)), [4, 3, -2, 1])
    t.step([0, 0, 0, 2.5])
    assert t.weights == [4, 3, 0, 0]
    t.step([3.5, 0, 0, 0])
    assert t.weights == [0, 3, -2, 0]
    assert dense(t) == [0.5, 3, -2, -1.5]


def test_every_group_keeps_n_of_m():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    s = acdc.attach(model, optimizer, SRSTE(pattern=acdc.NM(1, 4), schedule=sparse_for(5)))
    for _ in range(5):
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        for mask in s.masks.values():
            assert (mask.view(-1, 4).sum(1) == 1).all()
    assert s.finish().sparsity == 0.75


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"pattern": acdc.Unstructured()}, r"SR-STE keeps N of every M weights; write pattern=NM\(2, 4\)"),
        ({"sparsity": 0.9}, "omit sparsity"),
        ({"decay": -1}, "write decay=2e-4"),
    ],
)
def test_bad_knobs(knobs, message):
    with pytest.raises(ValueError, match=message):
        SRSTE(epochs=10, **knobs)


def test_a_model_it_does_not_fit():
    model = torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="fits none of the model's 1 prunable layers"):
        acdc.attach(model, torch.optim.SGD(model.parameters()), SRSTE(epochs=4), steps_per_epoch=2)
