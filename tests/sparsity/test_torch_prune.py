"""acdc.from_torch_prune: plain sparse parameters, the masks they had, and zeros that stay in training."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import acdc
from acdc.errors import ArgumentError, ArgumentTypeError


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_plain_weights_and_masks() -> None:
    model, plain = net(), net()
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.random_unstructured(model[0], "bias", amount=4)
    prune.l1_unstructured(model[0], "weight", amount=0.5)  # twice: torch keeps both in one container
    x = torch.randn(4, 8)
    expected = model(x)
    masks = acdc.from_torch_prune(model)
    assert {name: int(mask.sum()) for name, mask in masks.items()} == {"0.weight": 32, "0.bias": 12}
    assert set(model.state_dict()) == set(plain.state_dict())
    assert torch.equal(model(x), expected)
    for name, mask in masks.items():
        assert not model.get_parameter(name)[~mask].any()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    acdc.keep_masks(model, optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
    assert torch.equal(model.get_parameter("0.weight") != 0, masks["0.weight"])


def test_bad_input() -> None:
    with pytest.raises(ArgumentError, match=r"has pruned none of its layers; pass it before prune.remove"):
        acdc.from_torch_prune(net())
    with pytest.raises(ArgumentTypeError, match=r"expected a torch.nn.Module"):
        acdc.from_torch_prune({})  # pyright: ignore[reportArgumentType]
