"""Tests of shrinking: dead channels are removed, others stay, and the outputs are the same."""

import random
from collections.abc import Callable
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.errors import ArgumentError
from acdc.export import compare_sizes, shrink
from tests.export.pruned import conv, linear, prune, size, with_statistics

SMALL = {
    "digits_net": {"in_channels": 1},
    "resnet20": {},
    "wide_resnet": {"depth": 10, "width": 1},
    "mobilenet_v1": {"width": 0.125},
}
LARGE = ("resnet18", "resnet34", "resnet50", "resnet101", "wrn28_10")
Model = TypeVar("Model", bound=nn.Module)
PATTERNS = {"channels": (acdc.Channel(), 0.5), "unstructured": (acdc.Unstructured(), 0.98)}


def shrunk(model: Model, *shape: int, dtype: torch.dtype = torch.float64) -> Model:
    """Return the smaller model; its outputs are the same to the last digits on inputs that it was not made with."""
    model = model.to(dtype).eval()
    small = shrink(model, torch.randn(2, *shape, dtype=dtype))
    inputs = torch.randn(5, *shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        one, other = model(inputs), small(inputs)
    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-9 * float(one.abs().max()))
    assert isinstance(small, type(model))
    small.load_state_dict(small.state_dict())
    return small


# acdc's own models


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("digits_net", "channels"),
        ("digits_net", "unstructured"),
        ("wide_resnet", "channels"),
        *(pytest.param("resnet20", pattern, marks=pytest.mark.long) for pattern in PATTERNS),
        pytest.param("wide_resnet", "unstructured", marks=pytest.mark.long),
        *(pytest.param("mobilenet_v1", pattern, marks=pytest.mark.long) for pattern in PATTERNS),
        *(pytest.param(name, pattern, marks=pytest.mark.long) for name in LARGE for pattern in PATTERNS),
    ],
)
def test_models_of_acdc(name: str, pattern: str) -> None:
    options = SMALL.get(name, {})
    model = with_statistics(acdc.models.build(name, classes=10, seed=0, **options))
    model = prune(model, *PATTERNS[pattern])
    side = 8 if name in SMALL else 32
    small = shrunk(model, options.get("in_channels", 3), side, side)
    assert small.state_dict().keys() >= model.state_dict().keys()
    if pattern == "channels":
        assert size(small) < 0.9 * size(model)
    if name == "digits_net":
        again = shrink(small, torch.zeros(1, 1, side, side, dtype=torch.float64))
        assert size(again) == size(small), "one call leaves nothing for another"


def test_the_usual_wide_resnet_and_float32() -> None:
    model = with_statistics(acdc.models.build("wide_resnet", classes=10, seed=0, depth=10, width=1, variant="usual"))
    model = prune(model, acdc.Channel(), 0.6).eval()
    inputs = torch.randn(4, 3, 8, 8)
    small = shrink(model, inputs)
    assert size(small) < 0.8 * size(model)
    with torch.no_grad():
        torch.testing.assert_close(small(inputs), model(inputs), rtol=1e-4, atol=1e-5)


# What a constant may do


def two_convs(padding: int, bias: float, activation: nn.Module | None = None, kernel: int = 3) -> nn.Sequential:
    """The first of eight filters is dead and gives `bias` everywhere."""
    model = nn.Sequential(nn.Conv2d(3, 8, 3), activation or nn.ReLU(), nn.Conv2d(8, 4, kernel, padding=padding))
    with torch.no_grad():
        model.get_parameter("0.weight")[0] = 0
        model.get_parameter("0.bias")[0] = bias
    return model


@pytest.mark.parametrize(
    ("padding", "bias", "left"),
    [(0, 0.0, 7), (0, 0.7, 7), (0, -0.7, 7), (1, 0.0, 7), (1, -0.7, 7), (1, 0.7, 8)],
)
def test_a_constant_goes_unless_padding_makes_it_another_at_the_border(padding: int, bias: float, left: int) -> None:
    small = shrunk(two_convs(padding, bias), 3, 8, 8)
    assert conv(small, "0").out_channels == left
    assert conv(small, "2").in_channels == left


def test_an_activation_that_does_not_keep_zero() -> None:
    assert conv(shrunk(two_convs(1, 0.0, nn.Sigmoid()), 3, 8, 8), "0").out_channels == 8
    assert conv(shrunk(two_convs(0, 0.0, nn.Sigmoid()), 3, 8, 8), "0").out_channels == 7


def test_what_nobody_reads_goes_though_it_varies() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sigmoid(), nn.Conv2d(8, 4, 3, padding=1))
    with torch.no_grad():
        model.get_parameter("2.weight")[:, 3:5] = 0
    assert conv(shrunk(model, 3, 8, 8), "0").out_channels == 6


def test_batch_norm_decides_what_a_dead_filter_gives() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1))
    with torch.no_grad():
        model.get_parameter("0.weight")[:2] = 0
        model.get_parameter("1.bias")[0], model.get_parameter("1.bias")[1] = -0.5, 0.5
    assert conv(shrunk(model, 3, 8, 8), "0").out_channels == 7, "one gives 0 after the ReLU, the other .5"


def test_a_layer_without_a_bias_gets_one_for_what_it_absorbs() -> None:
    model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3, bias=False))
    with_statistics(model)
    with torch.no_grad():
        model.get_parameter("0.weight")[::2] = 0
    small = shrunk(model, 8)
    assert linear(small, "3").bias is not None
    assert compare_sizes(model, small).biases_added == ("3.bias",)
    assert "biases added to 1 layer" in str(compare_sizes(model, small))


def test_it_goes_on_until_nothing_is_left_to_remove() -> None:
    """The last layer reads one input: back through the chain one channel of each layer is needed."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(6, 6), nn.Tanh())), nn.Linear(6, 2))
    with torch.no_grad():
        for place in (2, 4, 6):
            model.get_parameter(f"{place}.weight").copy_(torch.eye(6))
        model.get_parameter("8.weight")[:, 1:] = 0
    small = shrunk(model, 6)
    assert [tuple(p.shape) for n, p in small.named_parameters() if p.ndim > 1] == [
        (1, 6),
        (1, 1),
        (1, 1),
        (1, 1),
        (2, 1),
    ]


def test_a_layer_that_died_whole_keeps_one_channel() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    nn.init.zeros_(model.get_parameter("0.weight"))
    assert linear(shrunk(model, 4), "0").out_features == 1


def test_nan_weights_are_not_zeros() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        model.get_parameter("2.weight")[:, 0] = torch.nan
    assert linear(shrink(model, torch.zeros(1, 4)), "0").out_features == 8


# Networks of other shapes


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        return self.last(F.relu(x + self.second(x), inplace=True))


def test_both_sides_of_a_residual_addition_go_together() -> None:
    model = Residual()
    with torch.no_grad():
        model.first.weight[:4] = 0
        model.get_parameter("first.bias")[:4] = 0
        model.second.weight[2:6] = 0
        model.get_parameter("second.bias")[2:6] = 0
    small = shrunk(model, 3, 8, 8)
    assert (small.first.out_channels, small.second.out_channels, small.last.in_channels) == (6, 6, 6)


def test_depthwise_convolutions_with_a_multiplier() -> None:
    model = with_statistics(nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU6(), nn.Conv2d(8, 16, 3, padding=1, groups=8, bias=False),
        nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 5, 1),
    ))  # fmt: skip
    with torch.no_grad():
        model.get_parameter("3.weight")[[0, 1, 4, 5, 6]] = 0
        model.get_parameter("6.weight")[:, 10:12] = 0
    middle = conv(shrunk(model, 3, 8, 8), "3")
    assert (middle.in_channels, middle.out_channels, middle.groups) == (5, 10, 5)


@pytest.mark.parametrize(
    ("dead_inputs", "dead_outputs", "sizes"),
    [
        ([4, 5, 6, 7], range(6, 12), (12, 18, 3)),  # a whole group
        ([0, 1, 4, 5, 8, 12, 13], [0, 1, 6, 12, 13, 18, 19], (12, 20, 4)),  # as many of each group as of the poorest
        ([0, 4, 5], [0, 6, 12], (16, 24, 4)),  # others have none to lose
    ],
)
def test_groups_stay_equal(dead_inputs: list[int], dead_outputs: list[int], sizes: tuple[int, int, int]) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 1), nn.ReLU(), nn.Conv2d(16, 24, 3, groups=4), nn.ReLU(), nn.Conv2d(24, 5, 1)
    )
    with torch.no_grad():
        model.get_parameter("0.weight")[list(dead_inputs)] = 0
        model.get_parameter("2.weight")[list(dead_outputs)] = 0
    middle = conv(shrunk(model, 3, 8, 8), "2")
    assert (middle.in_channels, middle.out_channels, middle.groups) == sizes


def test_the_mlp_of_a_transformer() -> None:
    model = nn.TransformerEncoderLayer(16, 4, 64, batch_first=True, activation="gelu")
    with torch.no_grad():
        model.linear1.weight[::2] = 0
        model.linear2.weight[:, 1:9] = 0
    small = shrunk(model, 5, 16)
    assert (small.linear1.out_features, small.linear2.in_features) == (28, 28)
    assert small.self_attn.in_proj_weight.shape == (48, 16)


class Conv1D(nn.Module):
    """As Hugging Face writes GPT-2's linear layer: the weight's first axis is the input's."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf, self.nx = outputs, inputs
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return flat.view(*x.shape[:-1], self.nf)


def test_the_mlp_of_gpt2() -> None:
    model = nn.Sequential(nn.LayerNorm(8), Conv1D(32, 8), nn.GELU(), Conv1D(8, 32))
    with torch.no_grad():
        model.get_parameter("1.weight")[:, :10] = 0
        model.get_parameter("3.weight")[20:25] = 0
    small = shrunk(model, 5, 8)
    layer = small.get_submodule("1")
    assert isinstance(layer, Conv1D)
    assert (layer.weight.shape, layer.nf) == ((8, 17), 17)


class Squeeze(nn.Module):
    """Gates, a scale of its own, pooling, padding, resizing and a concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.down, self.up = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 1)
        self.scale = nn.Parameter(torch.randn(16, 1, 1))
        self.out, self.head = nn.Conv2d(19, 6, 3, padding=1), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        y = y * torch.sigmoid(self.up(F.silu(self.down(F.adaptive_avg_pool2d(y, 1))))) * self.scale
        y = F.interpolate(F.pad(F.max_pool2d(y, 2), (2, 2, 2, 2)), scale_factor=1.0)
        return self.head(self.out(torch.cat([x, y], 1)).mean((-1, -2)))


def test_gates_scales_pools_and_concatenations() -> None:
    model = Squeeze()
    with_statistics(model)
    with torch.no_grad():
        model.conv.weight[:6] = 0
        model.norm.bias[:6], model.norm.weight[:6] = -5, 0
        model.down.weight[:3] = 0
    small = shrunk(model, 3, 8, 8)
    assert (small.conv.out_channels, small.scale.shape[0], small.down.out_channels, small.out.in_channels) == (
        10,
        10,
        5,
        13,
    )


class Flattened(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.conv, self.head, self.way = nn.Conv2d(3, 8, 3), nn.Linear(8 * 36, 5), way

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x))
        ways: dict[str, Callable[[], Tensor]] = {
            "flatten": lambda: x.flatten(1),
            "view": lambda: x.view(x.size(0), -1),
            "number": lambda: x.view(-1, 288),
            "last": lambda: x.permute(0, 2, 3, 1).reshape(len(x), -1),
        }
        return self.head(ways[self.way]())


@pytest.mark.parametrize(("way", "left"), [("flatten", 4), ("view", 4), ("last", 4), ("number", 8)])
def test_flattening_unless_its_size_is_a_number_in_the_code(way: str, left: int) -> None:
    model = Flattened(way)
    with torch.no_grad():
        model.conv.weight[::2] = 0
    small = shrunk(model, 3, 8, 8)
    assert (small.conv.out_channels, small.head.in_features) == (left, 36 * left)


class InPlace(nn.Module):
    """A view is changed in place, and what it is a view of is read: its values are no longer the convolution's."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        y.view(len(y), -1).mul_(2).add_(1)
        return self.two(y)


def test_what_is_changed_through_a_view_is_left_alone() -> None:
    model = InPlace()
    with torch.no_grad():
        model.one.weight[:4] = 0
    assert shrunk(model, 3, 8, 8).one.out_channels == 8


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.twice(F.relu(self.twice(F.relu(self.first(x)))))))


def test_a_layer_that_is_used_twice() -> None:
    model = Shared()
    with torch.no_grad():
        model.twice.weight[8:10] = 0
        model.twice.weight[:, 8:10] = 0
        model.last.weight[:, 8:10] = 0
        model.first.weight[:4] = 0  # constant, and no bias can take it up: the second use has other inputs
    small = shrunk(model, 8)
    assert small.twice.weight.shape == (14, 14)


def test_tied_weights_stay_tied() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.head = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 2)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.one(x)) + F.relu(self.two(x)))

    model = Tied()
    nn.init.zeros_(model.head.weight[:, :5])
    small = shrunk(model, 8)
    assert small.two.weight is small.one.weight
    assert small.one.weight.shape == (7, 8)


# Nets of chance


class Chance(nn.Module):
    """Layers drawn at random, with zeros in rows and columns of every weight."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.blocks, channels = nn.ModuleList(), 3
        self.kinds: list[str] = []
        for _ in range(rng.randrange(2, 6)):
            kind = rng.choice(("plain", "plain", "residual", "concat", "depthwise", "grouped", "gate"))
            kind = "plain" if kind == "grouped" and channels % 2 else kind
            out = channels if kind in ("residual", "depthwise", "gate") else rng.choice((4, 6, 8))
            groups = {"depthwise": channels, "grouped": 2}.get(kind, 1)
            kernel = rng.choice((1, 3))
            padding = kernel // 2 if kind in ("residual", "concat", "gate") else rng.choice((0, 1))
            layers: list[nn.Module] = [
                nn.Conv2d(channels, out, kernel, padding=padding, groups=groups, bias=rng.random() < 0.5)
            ]
            layers += [nn.BatchNorm2d(out)] if rng.random() < 0.6 else []
            layers.append(
                rng.choice((nn.ReLU(), nn.ReLU(inplace=True), nn.GELU(), nn.Sigmoid(), nn.Hardswish(), nn.Identity()))
            )
            layers += [nn.AvgPool2d(2, 1, padding=1)] if kind == "plain" and rng.random() < 0.2 else []
            self.blocks.append(nn.Sequential(*layers))
            self.kinds.append(kind)
            channels = channels + out if kind == "concat" else out
        self.flat = rng.random() < 0.5
        self.head = nn.LazyLinear(4, bias=rng.random() < 0.5)

    def forward(self, x: Tensor) -> Tensor:
        for kind, block in zip(self.kinds, self.blocks, strict=True):
            y = block(x)
            x = {"residual": lambda x, y: x + y, "concat": lambda x, y: torch.cat([y, x], 1), "gate": torch.mul}.get(
                kind, lambda x, y: y
            )(x, y)
        return self.head(x.flatten(1) if self.flat else x.mean((2, 3)))


def zero_at_random(model: nn.Module, rng: random.Random) -> None:
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.ndim > 1):
            for axis in (0, 1):
                dead = [place for place in range(weight.shape[axis]) if rng.random() < 0.35]
                weight.index_fill_(axis, torch.tensor(dead, dtype=torch.long), 0)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and rng.random() < 0.5:
                assert module.running_mean is not None
                module.bias.abs_().neg_()
                module.running_mean.zero_()


def test_nets_of_chance_compute_the_same(request: pytest.FixtureRequest) -> None:
    smaller, seeds = 0, range(600 if request.config.getoption("--long") else 8)
    for seed in seeds:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        model = Chance(rng).eval()
        model(torch.zeros(1, 3, 9, 9))
        zero_at_random(with_statistics(model, seed), rng)
        try:
            small = shrunk(model, 3, 9, 9)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        smaller += size(small) < size(model)
    assert smaller > len(seeds) / 2


# What is refused, and what is left alone


def test_the_model_stays_as_it_was() -> None:
    model = with_statistics(acdc.models.build("digits_net", classes=10, in_channels=1, seed=0)).train()
    prune(model, acdc.Channel(), 0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small = shrink(model, torch.zeros(1, 1, 8, 8))
    assert model.training
    assert small.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_network_without_zeros_stays_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert str(compare_sizes(model, shrink(model, torch.zeros(1, 4)))) == "nothing to remove: 67 parameters, 268 B"


def test_the_table_lists_what_was_removed() -> None:
    model = two_convs(0, 0.0)
    text = str(compare_sizes(model, shrink(model, torch.zeros(1, 3, 8, 8))))
    assert text.splitlines()[0].split() == ["layer", "before", "after", "weights", "left"]
    assert "8 x 3 x 3 x 3" in text
    assert "7 x 3 x 3 x 3" in text
    assert text.splitlines()[-1].startswith("516 parameters became 452 (87.6%), 2.06 kB became 1.81 kB")


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    ("model", "example", "message"),
    [
        (Branches(), torch.zeros(1, 3), "torch.export cannot trace Branches"),
        (nn.Linear(3, 2), torch.zeros(1, 4), "torch.export cannot trace Linear"),
        (nn.Linear(3, 2), [1, 2, 3], "expected a batch of inputs"),
    ],
)
def test_what_cannot_be_traced_is_refused(model: nn.Module, example: Tensor, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        shrink(model, example)
