"""A shrunk model's state dict in a model as the recipe builds it."""

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.errors import ArgumentError
from tests.export.pruned import conv, prune, with_statistics


def build() -> nn.Module:
    """Return a small separable network, whose pointwise convolution has no bias."""
    torch.manual_seed(0)
    return nn.Sequential(OrderedDict(
        first=nn.Conv2d(3, 16, 3, bias=False), norm1=nn.BatchNorm2d(16), relu1=nn.ReLU(),
        depthwise=nn.Conv2d(16, 16, 3, groups=16, bias=False), norm2=nn.BatchNorm2d(16), relu2=nn.ReLU(),
        pointwise=nn.Conv2d(16, 16, 1, bias=False), norm3=nn.BatchNorm2d(16), relu3=nn.ReLU(),
        pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(16, 4),
    ))  # fmt: skip


@pytest.fixture(scope="module")
def small() -> nn.Module:
    return acdc.export.shrink(prune(with_statistics(build()), acdc.Channel(), 0.5).eval(), torch.zeros(1, 3, 8, 8))


def test_it_computes_what_the_shrunk_model_did(small: nn.Module, tmp_path: Path) -> None:
    assert "pointwise.bias" in small.state_dict(), "constants were absorbed"
    acdc.export.save_sparse(small.state_dict(), tmp_path / "small.safetensors")
    plain = build().eval()
    again = acdc.export.resize(plain, acdc.load(tmp_path / "small.safetensors"))
    inputs = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(again(inputs), small(inputs))
    assert conv(again, "depthwise").groups == conv(small, "depthwise").groups < 16
    assert plain.state_dict()["fc.weight"].shape == build().state_dict()["fc.weight"].shape, "it is a copy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("fc.weight"), "fc.weight is missing"),
        (lambda state: state.update(more=torch.ones(2)), "has no more"),
        (lambda state: state.update({"fc.weight": torch.ones(2)}), "fc.weight has 1 axes, and the model's has 2"),
    ],
)
def test_another_state_dict_is_refused(small: nn.Module, change, message: str) -> None:
    state: dict[str, Tensor] = dict(small.state_dict())
    change(state)
    with pytest.raises(ArgumentError, match=message):
        acdc.export.resize(build(), state)


def test_groups_of_several_channels_are_refused() -> None:
    model = nn.Sequential(nn.Conv2d(8, 8, 1, groups=2))
    with pytest.raises(ArgumentError, match="does not tell how many groups are left"):
        acdc.export.resize(model, {"0.weight": torch.ones(6, 3, 1, 1), "0.bias": torch.ones(6)})
