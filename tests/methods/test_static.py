import pytest
import torch
from torch import nn

import acdc
from acdc.methods.static import Static
from tests.methods.tiny import Tiny, sparse_for


def test_by_hand():
    """Half of 4, wherever they are: those weights train, the others are 0 to the end."""
    t = Tiny(Static(sparsity=0.5, schedule=sparse_for(3)), [1, 2, 3, 4])
    t.step([-1, -1, -1, -1])
    masks = t.masks
    assert masks.count("1") == 2
    assert t.weights == [value if kept == "1" else 0 for value, kept in zip([2, 3, 4, 5], masks, strict=True)]
    t.step([-9, -9, -9, -9])
    t.step()
    assert t.masks == masks
    assert t.sparsifier.finish().dense is None


def masks(seed: int, distribution: str = "erk") -> dict[str, torch.Tensor]:
    model = nn.Sequential(nn.Conv2d(4, 16, 3), nn.Conv2d(16, 16, 3), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = Static(sparsity=0.75, distribution=distribution, seed=seed, schedule=sparse_for(2))
    sparsifier = acdc.attach(model, optimizer, method)
    sparsifier.begin_step()
    return sparsifier.masks


def test_the_seed_decides():
    one, two, other = masks(0), masks(0), masks(1)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)


def test_layers_by_their_shape_or_alike():
    size = 4 * 16 * 9 + 16 * 16 * 9 + 640
    uniform, erk = masks(0, "uniform"), masks(0, "erk")
    for found in (uniform, erk):
        assert sum(int(mask.sum()) for mask in found.values()) == size - round(0.75 * size)
    assert all(abs(mask.double().mean() - 0.25) < 0.01 for mask in uniform.values())
    assert erk["0.weight"].double().mean() > erk["1.weight"].double().mean() + 0.1, "smaller layers stay denser"


def test_refusals():
    with pytest.raises(ValueError, match=r"distribution='global': Static starts from random masks"):
        Static(sparsity=0.5, epochs=2, distribution="global")
    with pytest.raises(ValueError, match=r"pattern=NM.*Static prunes single weights"):
        Static(pattern=acdc.NM(2, 4), epochs=2)
    with pytest.raises(TypeError, match=r"seed=0\.5: expected a whole number"):
        Static(sparsity=0.5, epochs=2, seed=0.5)  # pyright: ignore[reportArgumentType]
