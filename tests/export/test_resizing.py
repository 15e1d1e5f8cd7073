"""A shrunk model's state dict in a model as the recipe builds it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.errors import ArgumentError
from tests.export.pruned import prune, with_statistics


def build() -> nn.Module:
    return acdc.models.build("mobilenet_v1", classes=10, seed=0, width=0.125)


@pytest.fixture(scope="module")
def small() -> nn.Module:
    return acdc.export.shrink(prune(with_statistics(build()), acdc.Channel(), 0.5).eval(), torch.zeros(1, 3, 32, 32))


def test_it_computes_what_the_shrunk_model_did(small: nn.Module, tmp_path: Path) -> None:
    assert any(name.endswith("pointwise.bias") for name in small.state_dict()), "constants were absorbed"
    acdc.export.save_sparse(small.state_dict(), tmp_path / "small.safetensors")
    plain = build().eval()
    again = acdc.export.resize(plain, acdc.load(tmp_path / "small.safetensors"))
    inputs = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again(inputs), small(inputs))
    assert again.pairs[0].depthwise.groups == small.pairs[0].depthwise.groups  # type: ignore[union-attr,index]
    assert plain.state_dict()["fc.weight"].shape == build().state_dict()["fc.weight"].shape, "it is a copy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("fc.weight"), "it lacks fc.weight"),
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
    with pytest.raises(ArgumentError, match="does not tell how many are left"):
        acdc.export.resize(model, {"0.weight": torch.ones(6, 3, 1, 1), "0.bias": torch.ones(6)})
