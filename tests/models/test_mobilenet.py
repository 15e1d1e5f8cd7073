"""MobileNetV1 has the paper's counts, with and without its depthwise convolutions."""

import math
from typing import Any

import pytest
import torch

from acdc import find_prunable
from acdc.flops.training import inference_flops
from acdc.models.mobilenet import MobileNetV1, mobilenet_v1
from tests.models.counting import counts, equal_weights, no_equal_weight, on_meta, reported_sparsity


def test_the_paper_s_counts() -> None:
    model = on_meta(mobilenet_v1)
    assert counts(model) == {"parameters": 4_231_976, "prunable": 4_209_088, "layers": 28, "norm": 21_888}
    assert f"{4_231_976:,} parameters" in (mobilenet_v1.__doc__ or "")


def test_the_first_and_the_depthwise_convolutions_left_dense() -> None:
    """The paper's ⋆ for MobileNet, where the last layer is pruned."""
    model, star = on_meta(mobilenet_v1), {"exclude": ["conv1"], "depthwise_dense": True}
    left = find_prunable(model, **star).left_dense
    assert len(left) == 14
    assert sum(model.get_parameter(name).numel() for name in left) == 45_504
    assert reported_sparsity(model, 0.9, **star) == pytest.approx(88.57, abs=0.005)


def test_first_and_last_dense_leaves_the_linear_layer_too() -> None:
    left = find_prunable(on_meta(mobilenet_v1), first_and_last_dense=True, depthwise_dense=True).left_dense
    assert {name for name in left if not name.endswith("depthwise.weight")} == {"conv1.weight", "fc.weight"}
    assert len(left) == 15


def test_flops() -> None:
    flops = inference_flops(mobilenet_v1(), torch.zeros(1, 3, 224, 224))
    adds, channels, side = 27 * 32 * 112**2, 32, 112
    for width in (64, 128, 128, 256, 256, *[512] * 6, 1024, 1024):
        halves = width == 2 * channels and width != 64
        side = side // 2 if halves else side
        adds += (9 * channels + channels * width) * side**2
        channels = width
    assert flops.dense == 2 * (adds + 1_024_000) == 1_137_480_704


def test_shapes() -> None:
    model, sides = on_meta(mobilenet_v1), []
    for pair in model.get_submodule("pairs").children():
        pair.register_forward_hook(lambda module, args, output: sides.append(output.shape[-1]))
    assert model(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, 1000)
    assert sides == [112, 56, 56, 28, 28, *[14] * 6, 7, 7]


def test_width_channels_and_classes() -> None:
    model = MobileNetV1(width=0.25, in_channels=2, classes=7, seed=0)
    assert model.fc.in_features == 256
    logits = model(torch.randn(3, 2, 64, 64))
    assert logits.shape == (3, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_seed_fixes_every_weight_and_another_changes_it() -> None:
    first = MobileNetV1(width=0.25, seed=3)
    torch.rand(5)
    assert equal_weights(first, MobileNetV1(width=0.25, seed=3))
    assert no_equal_weight(first, MobileNetV1(width=0.25, seed=4))


def test_a_depthwise_weight_s_fan_out_is_its_own_channel_s() -> None:
    pair: Any = mobilenet_v1(seed=0).pairs[12]
    assert pair.depthwise.weight.std().item() == pytest.approx(math.sqrt(2 / 9), rel=0.03)
    assert pair.pointwise.weight.std().item() == pytest.approx(math.sqrt(2 / 1024), rel=0.01)


@pytest.mark.parametrize("wrong", [{"width": 0}, {"width": math.nan}, {"classes": 0}, {"in_channels": 0}])
def test_impossible_shapes_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}=.*: expected a .*number .*; .*write "):
        MobileNetV1(**wrong)


def test_as_published_every_layer_is_as_torch_draws_it() -> None:
    """Seeded, they are the weights that torch's own constructors draw after torch.manual_seed."""
    torch.manual_seed(5)
    plain = MobileNetV1(width=0.25, classes=10, init="published")
    assert equal_weights(plain, MobileNetV1(width=0.25, classes=10, init="published", seed=5))
    assert not equal_weights(plain, MobileNetV1(width=0.25, classes=10, seed=5))
