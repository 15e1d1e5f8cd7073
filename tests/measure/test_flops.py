"""Inference FLOPs against counts made by hand."""

import pytest
import torch
from torch import Tensor, nn

from acdc.measure.flops import Flops, inference_flops
from acdc.models.resnet_cifar import resnet20


def half_pruned(layer: nn.Module) -> nn.Module:
    """Every second weight of the layer set to 0."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1.0)
            if parameter.ndim > 1:
                parameter.view(-1)[::2] = 0
    return layer


def test_resnet20_costs_what_the_paper_s_convention_gives() -> None:
    flops = inference_flops(resnet20(), torch.zeros(1, 3, 32, 32))
    # stem; stage 1; stages 2 and 3: shortcut, first and other convolutions; fc. Each: weights x output pixels.
    adds = 432 * 1024 + 6 * 2304 * 1024
    adds += (512 + 4608 + 5 * 9216) * 256 + (2048 + 18432 + 5 * 36864) * 64 + 640
    assert flops.dense == flops.actual == 2 * adds
    assert flops.dense / 1e6 == pytest.approx(81.6, abs=0.05)
    assert flops.ratio == 1


def test_only_non_zero_weights_count() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5))
    with torch.no_grad():
        model[0].weight.zero_()[0, 0, 0, 0] = 1.0
    flops = inference_flops(model, torch.zeros(1, 2, 8, 8))
    assert flops == Flops(dense=2 * (54 * 16 + 240), actual=2 * (16 + 240))
    assert flops.ratio == flops.actual / flops.dense


@pytest.mark.parametrize(
    ("layer", "shape", "adds"),
    [
        (nn.Conv2d(4, 8, 3, groups=2), (4, 6, 6), 8 * 2 * 9 * 16),
        (nn.Conv2d(4, 4, 3, groups=4, padding=1), (4, 6, 6), 4 * 9 * 36),
        (nn.Conv1d(2, 4, 5, dilation=2), (2, 20), 2 * 4 * 5 * 12),
        (nn.Conv3d(2, 3, 2), (2, 4, 4, 4), 2 * 3 * 8 * 27),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 5, 5), 4 * 6 * 9 * 25),  # each input pixel meets every weight
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 5, 5), 4 * 3 * 9 * 25),
        (nn.Linear(7, 3), (11, 7), 7 * 3 * 11),  # 11 tokens
    ],
    ids=["grouped", "depthwise", "dilated", "3d", "transposed", "transposed grouped", "tokens"],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_layers_by_hand(layer: nn.Module, shape: tuple[int, ...], adds: int, batch: int) -> None:
    weights = layer.weight.numel()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    flops = inference_flops(half_pruned(layer), torch.zeros(batch, *shape))
    assert flops.dense == 2 * adds
    assert flops.actual == 2 * adds * (weights // 2) // weights


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.attention(x, x, x, need_weights=False)[0]


def test_attention_counts_its_four_projections_and_embeddings_count_nothing() -> None:
    flops = inference_flops(half_pruned(SelfAttention()), torch.zeros(2, 5, dtype=torch.int64))
    assert flops.dense == 2 * (3 * 64 + 64) * 5
    assert flops.actual == flops.dense // 2


def test_a_layer_called_twice_counts_twice_and_one_never_called_nothing() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(self.used(x))

    assert inference_flops(Loop(), torch.zeros(1, 4)).dense == 2 * 2 * 16


def test_several_arguments() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.left(x) + self.right(y)

    assert inference_flops(Sum(), (torch.zeros(6, 4), torch.zeros(6, 3))).dense == 2 * (8 + 6)


def test_counting_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inference_flops(model, torch.randn(4, 1, 5, 5))
    assert model.training
    assert not model[0]._forward_hooks
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_nothing_to_count_is_said() -> None:
    with pytest.raises(ValueError, match="BatchNorm1d used no convolution, linear or attention weight"):
        inference_flops(nn.BatchNorm1d(3), torch.zeros(2, 3))
