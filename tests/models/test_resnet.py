"""ResNet50 has the paper's counts and torchvision's names."""

from typing import Any

import pytest
import torch
from torch import nn

from acdc import find_prunable
from acdc.flops.training import inference_flops
from acdc.models.resnet import Basic, Bottleneck, ResNet, resnet18, resnet34, resnet50, resnet101
from tests.models.counting import counts, equal_weights, no_equal_weight, on_meta, reported_sparsity

BLOCKS = {resnet18: (2, 2, 2, 2), resnet34: (3, 4, 6, 3), resnet50: (3, 4, 6, 3), resnet101: (3, 4, 23, 3)}


# Counts


def test_resnet50_has_the_paper_s_counts() -> None:
    model = on_meta(resnet50)
    assert counts(model) == {"parameters": 25_557_032, "prunable": 25_502_912, "layers": 54, "norm": 53_120}
    assert reported_sparsity(model, 0.9) == pytest.approx(89.8, abs=0.05)


def test_first_and_last_dense() -> None:
    model = on_meta(resnet50)
    layers = find_prunable(model, first_and_last_dense=True)
    sizes = {name: model.get_parameter(name).numel() for name in layers.left_dense}
    assert sizes == {"conv1.weight": 9_408, "fc.weight": 2_048_000}
    assert reported_sparsity(model, 0.9, first_and_last_dense=True) == pytest.approx(82.57, abs=0.005)


@pytest.mark.parametrize("make", BLOCKS)
def test_the_parameters_its_docstring_says(make) -> None:
    assert f"{counts(on_meta(make))['parameters']:,} parameters" in make.__doc__


def test_flops_of_resnet50() -> None:
    flops = inference_flops(resnet50(), torch.zeros(1, 3, 224, 224))
    adds = 9_408 * 112**2 + 2_048_000
    channels, pixels = 64, 56**2
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        after = pixels // stride**2
        adds += channels * width * pixels + (9 * width**2 + 4 * width**2 + 4 * width * channels) * after
        adds += (count - 1) * (4 + 9 + 4) * width**2 * after
        channels, pixels = 4 * width, after
    assert flops.dense == 2 * adds == 8_178_368_512


# torchvision's names


def batch_norm(name: str, channels: int) -> dict[str, tuple[int, ...]]:
    locals_ = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{local}": (channels,) for local in locals_} | {f"{name}.num_batches_tracked": ()}


def torchvision_state_dict(blocks: tuple[int, ...], bottleneck: bool) -> dict[str, tuple[int, ...]]:
    shapes = {"conv1.weight": (64, 3, 7, 7)} | batch_norm("bn1", 64)
    channels = 64
    for stage, (width, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True), start=1):
        for index in range(count):
            prefix, before = f"layer{stage}.{index}", channels
            sizes = ((width, 1), (width, 3), (4 * width, 1)) if bottleneck else ((width, 3), (width, 3))
            for number, (out, size) in enumerate(sizes, start=1):
                shapes[f"{prefix}.conv{number}.weight"] = (out, channels, size, size)
                shapes |= batch_norm(f"{prefix}.bn{number}", out)
                channels = out
            if index == 0 and (bottleneck or stage > 1):
                shapes[f"{prefix}.downsample.0.weight"] = (channels, before, 1, 1)
                shapes |= batch_norm(f"{prefix}.downsample.1", channels)
    return shapes | {"fc.weight": (1000, channels), "fc.bias": (1000,)}


@pytest.mark.parametrize("make", BLOCKS)
def test_names_shapes_and_order_are_torchvision_s(make) -> None:
    state = {name: tuple(tensor.shape) for name, tensor in on_meta(make).state_dict().items()}
    expected = torchvision_state_dict(BLOCKS[make], bottleneck=make in (resnet50, resnet101))
    assert list(state.items()) == list(expected.items())
    assert make is not resnet50 or len(state) == 320


# Forward and backward


def test_the_stride_of_a_bottleneck_is_in_its_3_x_3() -> None:
    model: Any = on_meta(resnet50)
    block = model.layer2[0]
    assert [conv.stride[0] for conv in (block.conv1, block.conv2, block.conv3, block.downsample[0])] == [1, 2, 1, 2]


@pytest.mark.parametrize(("make", "width"), [(resnet18, 1), (resnet50, 4)])
def test_shapes(make, width: int) -> None:
    model, sizes = on_meta(make), []
    for stage in ("layer1", "layer2", "layer3", "layer4"):
        model.get_submodule(stage).register_forward_hook(
            lambda module, args, output: sizes.append(tuple(output.shape[1:]))
        )
    assert model(torch.zeros(2, 3, 224, 224, device="meta")).shape == (2, 1000)
    assert sizes == [(64 * width, 56, 56), (128 * width, 28, 28), (256 * width, 14, 14), (512 * width, 7, 7)]


@pytest.mark.parametrize("block", [Basic, Bottleneck])
def test_every_parameter_gets_a_gradient(block) -> None:
    model = ResNet(block=block, blocks=(1, 2, 1, 1), in_channels=2, classes=7, seed=0)
    logits = model(torch.randn(3, 2, 64, 64))
    assert logits.shape == (3, 7)
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("block", [Basic, Bottleneck])
def test_a_block_without_weights_is_the_relu_of_its_input(block) -> None:
    module = block(4 * block.expansion, 4, stride=1)
    for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.zeros_(norm.weight)
    x = torch.randn(2, 4 * block.expansion, 5, 5)
    assert torch.equal(module(x), x.relu())


# Initial weights


def test_a_seed_fixes_every_weight_and_another_changes_it() -> None:
    first = resnet18(seed=3)
    torch.rand(5)
    assert equal_weights(first, resnet18(seed=3))
    assert no_equal_weight(first, resnet18(seed=4))


@pytest.mark.parametrize("wrong", [{"blocks": (3, 4, 6)}, {"blocks": (3, 4, 6, 0)}, {"classes": 0}, {"in_channels": 0}])
def test_impossible_shapes_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))}=.*: expected .* above 0; .*write "):
        ResNet(**{"block": Bottleneck, "blocks": (3, 4, 6, 3), **wrong})
