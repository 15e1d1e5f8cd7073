"""WRN-28-10 has the counts of the paper's network; where its two variants differ; dropout and seeds."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.flops.training import inference_flops
from acdc.models.wide_resnet import Block, Variant, WideResNet, wrn28_10
from tests.models.counting import counts, equal_weights, no_equal_weight, on_meta, reported_sparsity

small = partial(WideResNet, depth=10, width=1, classes=10)


# Counts


def test_the_published_network_has_the_paper_s_counts() -> None:
    model = on_meta(wrn28_10)
    assert counts(model) == {"parameters": 36_546_980, "prunable": 36_518_832, "layers": 29, "norm": 17_952}
    assert reported_sparsity(model, 0.9) == pytest.approx(89.96, abs=0.005)


def test_the_usual_network_differs_by_its_convolutions_biases() -> None:
    model = on_meta(wrn28_10, variant="usual")
    assert counts(model) == {"parameters": 36_536_884, "prunable": 36_518_832, "layers": 29, "norm": 17_952}
    assert [name for name, _ in model.named_parameters() if name.endswith("conv1.bias")] == []
    assert f"{36_546_980:,}" in (wrn28_10.__doc__ or "")
    assert f"{36_536_884:,}" in (wrn28_10.__doc__ or "")


def adds_by_hand(published: bool) -> int:
    """Multiply-adds of one 32 x 32 image: weights x output pixels."""
    adds, pixels, channels = 3 * 16 * 9 * 1024, 1024, 16
    for width, stride in ((160, 1), (320, 2), (640, 2)):
        after = pixels // stride**2
        first = pixels if published else after  # the first convolution sees the large image if the second halves it
        adds += channels * width * (9 * first + after) + 9 * width**2 * after  # block 1 with its shortcut
        adds += 6 * 9 * width**2 * after  # three more blocks
        pixels, channels = after, width
    return adds + 640 * 100


@pytest.mark.parametrize("variant", ["published", "usual"])
def test_flops(variant: Variant) -> None:
    flops = inference_flops(wrn28_10(variant=variant), torch.zeros(1, 3, 32, 32))
    assert flops.dense == 2 * adds_by_hand(variant == "published")
    assert flops.dense == {"published": 11_902_350_336, "usual": 10_486_772_736}[variant]


def test_the_11_905_gflops_often_given_count_one_add_for_each_bias() -> None:
    model, biases = on_meta(wrn28_10), []
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda module, args, output: biases.append(output.numel()))
    model.eval()(torch.zeros(1, 3, 32, 32, device="meta"))
    assert len(biases) == 29
    assert (11_902_350_336 + sum(biases)) / 1e9 == pytest.approx(11.905, abs=0.0005)


# The two variants


def test_where_the_stride_is() -> None:
    cases: list[tuple[Variant, Any]] = [("published", (1, 2)), ("usual", (2, 1))]
    for variant, strides in cases:
        model: Any = small(variant=variant)
        block = model.stages[1][0]
        assert (block.conv1.stride[0], block.conv2.stride[0], block.shortcut.stride[0]) == (*strides, 2)


def test_momentum_of_the_last_batch_norm_only() -> None:
    cases: list[tuple[Variant, Any]] = [("published", 0.9), ("usual", 0.1)]
    for variant, last in cases:
        momenta = [m.momentum for m in small(variant=variant).modules() if isinstance(m, nn.BatchNorm2d)]
        assert momenta == [0.1] * 6 + [last]


def test_only_the_published_network_s_convolutions_have_biases() -> None:
    cases: list[tuple[Variant, Any]] = [("published", True), ("usual", False)]
    for variant, biased in cases:
        convs = [m for m in small(variant=variant).modules() if isinstance(m, nn.Conv2d)]
        assert {conv.bias is not None for conv in convs} == {biased}


def block_by_the_book(block: Block, x: Tensor, published: bool) -> Tensor:
    active = F.relu(block.bn1(x))
    out = block.conv2(F.relu(block.bn2(block.conv1(active))))
    if block.shortcut is None:
        return out + x
    return out + block.shortcut(x if published else active)


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("channels", [8, 4])
def test_a_block_adds_the_raw_input_or_a_projection(published: bool, channels: int) -> None:
    torch.manual_seed(0)
    block = Block(4, channels, 2 if channels == 8 else 1, dropout=0.0, published=published)
    assert (block.shortcut is None) == (channels == 4)
    x = torch.randn(3, 4, 8, 8)
    expected = block_by_the_book(block, x, published)
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize("published", [True, False])
def test_where_dropout_is(published: bool) -> None:
    block, zeros = Block(4, 4, 1, dropout=0.5, published=published), {}
    for name in ("bn2", "conv2"):
        module = getattr(block, name)
        module.register_forward_pre_hook(lambda m, args, name=name: zeros.update({name: (args[0] == 0).float().mean()}))
    block(torch.randn(16, 4, 16, 16))
    # After the first convolution nothing is 0 but what dropout took; ReLU makes half, and dropout half of the rest.
    if published:
        assert zeros["bn2"].item() == pytest.approx(0.5, abs=0.05)
    else:
        assert zeros["bn2"].item() == 0
        assert zeros["conv2"].item() == pytest.approx(0.75, abs=0.05)


# Forward and backward


@pytest.mark.parametrize("variant", ["published", "usual"])
def test_shapes(variant: Variant) -> None:
    model, sizes = on_meta(wrn28_10, variant=variant), []
    for stage in model.get_submodule("stages").children():
        stage.register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    assert model(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 100)
    assert sizes == [(160, 32, 32), (320, 16, 16), (640, 8, 8)]


def test_depth_width_channels_and_classes() -> None:
    model = WideResNet(depth=16, width=2, classes=7, in_channels=2)
    assert [len([*stage.children()]) for stage in model.stages] == [2, 2, 2]
    assert model(torch.zeros(3, 2, 8, 8)).shape == (3, 7)


@pytest.mark.parametrize("variant", ["published", "usual"])
def test_dropout_is_active_in_training_only(variant: Variant) -> None:
    torch.manual_seed(0)
    model, x = small(variant=variant, dropout=0.3), torch.randn(4, 3, 8, 8)
    assert {m.p for m in model.modules() if isinstance(m, nn.Dropout)} == {0.3}
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_without_dropout_training_draws_nothing() -> None:
    model, x = small(dropout=0), torch.randn(4, 3, 8, 8)
    before = torch.get_rng_state()
    assert torch.equal(model(x), model(x))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("variant", ["published", "usual"])
def test_every_parameter_gets_a_gradient(variant: Variant) -> None:
    model = small(variant=variant, seed=0)
    model(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


# Initial weights


@pytest.mark.parametrize("variant", ["published", "usual"])
def test_a_seed_fixes_every_weight_and_another_changes_it(variant: Variant) -> None:
    first = small(variant=variant, seed=3)
    torch.rand(5)
    assert equal_weights(first, small(variant=variant, seed=3))
    assert no_equal_weight(first, small(variant=variant, seed=4))


def test_published_weights_are_torch_s_own_for_that_seed() -> None:
    torch.manual_seed(3)
    assert equal_weights(small(), small(seed=3))


def test_usual_weights_have_he_s_variance() -> None:
    weight = small(variant="usual", seed=0).get_parameter("stages.2.0.conv2.weight")  # 64 x 64 x 3 x 3
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 576), rel=0.02)


# Refusals


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"depth": 27}, r"depth=27: expected 6 n \+ 4 .*write depth=28"),
        ({"depth": 4}, r"depth=4: .*write depth=10"),
        ({"width": 0}, r"width=0: .*above 0; write width=1"),
        ({"classes": 0}, r"classes=0: .*above 0"),
        ({"in_channels": 0}, r"in_channels=0: .*above 0"),
        ({"dropout": 1.0}, r"dropout=1.0: expected a fraction .*write dropout=0.3"),
        ({"dropout": math.nan}, r"dropout=nan"),
        (
            {"variant": "original"},
            r"variant='original': expected 'published' .* or 'usual' .*write variant='published'",
        ),
    ],
)
def test_impossible_networks_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WideResNet(**wrong)
