"""The counts the paper's numbers rest on, and seeded weights."""

import math

import pytest
import torch
from torch import nn

from acdc import find_prunable
from acdc.models.resnet_cifar import ResNet, digits_net, resnet20


def test_resnet20_has_the_paper_s_counts() -> None:
    model = resnet20()
    layers = find_prunable(model)
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    assert sum(p.numel() for p in model.parameters()) == 272_474
    assert (layers.size, len(layers.weights)) == (270_896, 22)
    assert sum(p.numel() for p in norms) == 1_568
    assert not layers.left_dense


def test_digits_net_has_the_size_it_says() -> None:
    assert find_prunable(digits_net()).size == 19_408
    assert "19,408" in (digits_net.__doc__ or "")


def test_stages_halve_the_image() -> None:
    model, sizes = resnet20(), []
    for stage in model.stages:
        stage.register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    logits = model.eval()(torch.zeros(2, 3, 32, 32))
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]
    assert logits.shape == (2, 10)


def test_depth_width_channels_and_classes() -> None:
    model = ResNet(blocks=(1, 2), widths=(4, 8), in_channels=2, classes=7)
    assert [len([*stage.children()]) for stage in model.stages] == [1, 2]
    assert model(torch.zeros(3, 2, 8, 8)).shape == (3, 7)
    assert digits_net(in_channels=2, classes=7)(torch.zeros(3, 2, 8, 8)).shape == (3, 7)


def test_a_seed_fixes_every_weight_whatever_was_drawn_before() -> None:
    torch.manual_seed(1)
    first = resnet20(seed=3).state_dict()
    torch.rand(5)
    second = resnet20(seed=3).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_changes_every_weight() -> None:
    first, second = (find_prunable(digits_net(seed=seed)).weights for seed in (0, 1))
    assert not any(torch.equal(a.param, b.param) for a, b in zip(first, second, strict=True))


def test_without_a_seed_weights_come_from_the_global_generator() -> None:
    torch.manual_seed(0)
    first = digits_net().conv1.weight
    assert not torch.equal(first, digits_net().conv1.weight)
    torch.manual_seed(0)
    assert torch.equal(first, digits_net().conv1.weight)


def test_initial_weights_are_torch_s_kaiming_normal() -> None:
    model, generator = digits_net(seed=5), torch.Generator().manual_seed(5)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            expected = torch.empty_like(module.weight)
            how = ("fan_out", "relu") if isinstance(module, nn.Conv2d) else ("fan_in", "linear")
            nn.init.kaiming_normal_(expected, mode=how[0], nonlinearity=how[1], generator=generator)
            assert torch.equal(module.weight, expected)
    assert not model.fc.bias.any()


def test_on_the_meta_device_nothing_is_drawn() -> None:
    before = torch.get_rng_state()
    with torch.device("meta"):
        assert resnet20(seed=0).fc.weight.is_meta
        assert resnet20().fc.weight.is_meta
    assert torch.equal(before, torch.get_rng_state())


def test_initial_weights_have_he_s_variance() -> None:
    weight = resnet20(seed=0).get_parameter("stages.2.0.conv1.weight")  # 64 x 32 x 3 x 3: fan-out 576, fan-in 288
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 576), rel=0.02)


@pytest.mark.parametrize(
    "wrong",
    [
        {"blocks": (3, 3), "widths": (16,)},
        {"blocks": (0,), "widths": (16,)},
        {"blocks": (1,), "widths": (16,), "classes": 0},
        {"blocks": (1,), "widths": (16,), "in_channels": 0},
    ],
)
def test_impossible_shapes_are_refused(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"^(blocks|widths|classes|in_channels)=.*: expected .* above 0; .*write "):
        ResNet(**wrong)
