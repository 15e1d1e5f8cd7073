"""Theoretical FLOPs: layers and whole models by hand, by torch's own counter, and what is not known."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from acdc.flops.training import Flops, epoch_flops, inference_flops, training_flops
from acdc.models.mobilenet import mobilenet_v1
from acdc.models.resnet import resnet50
from acdc.models.resnet_cifar import resnet20
from acdc.models.wide_resnet import wrn28_10
from tests.models.counting import on_meta


def half_pruned(model: nn.Module) -> nn.Module:
    """Every second weight set to 0."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
            if parameter.ndim > 1:
                parameter.view(-1)[::2] = 0
    return model


def on_paper(make, side: int) -> Flops:
    """A model's counts without the memory of its weights."""
    return inference_flops(on_meta(make), torch.zeros(2, 3, side, side, device="meta"))


# Whole models


def conv(inputs: int, outputs: int, kernel: int, side: int, groups: int = 1) -> int:
    """One multiplication and one addition for each weight at each of side x side outputs, one output at a time."""
    flops = 0
    for _ in range(outputs):
        flops += 2 * (inputs // groups) * kernel * kernel * side * side
    return flops


RESNET20 = [
    conv(3, 16, 3, 32),
    *[conv(16, 16, 3, 32)] * 6,
    *[conv(16, 32, 3, 16), conv(32, 32, 3, 16), conv(16, 32, 1, 16), *[conv(32, 32, 3, 16)] * 4],
    *[conv(32, 64, 3, 8), conv(64, 64, 3, 8), conv(32, 64, 1, 8), *[conv(64, 64, 3, 8)] * 4],
    2 * 64 * 10,
]
MOBILENET = [
    conv(3, 32, 3, 112),
    *[conv(32, 32, 3, 112, 32), conv(32, 64, 1, 112)],
    *[conv(64, 64, 3, 56, 64), conv(64, 128, 1, 56)],
    *[conv(128, 128, 3, 56, 128), conv(128, 128, 1, 56)],
    *[conv(128, 128, 3, 28, 128), conv(128, 256, 1, 28)],
    *[conv(256, 256, 3, 28, 256), conv(256, 256, 1, 28)],
    *[conv(256, 256, 3, 14, 256), conv(256, 512, 1, 14)],
    *[conv(512, 512, 3, 14, 512), conv(512, 512, 1, 14)] * 5,
    *[conv(512, 512, 3, 7, 512), conv(512, 1024, 1, 7)],
    *[conv(1024, 1024, 3, 7, 1024), conv(1024, 1024, 1, 7)],
    2 * 1024 * 1000,
]


@pytest.mark.parametrize(
    ("make", "side", "layers"),
    [(resnet20, 32, RESNET20), (mobilenet_v1, 224, MOBILENET)],
    ids=["resnet20", "mobilenet"],
)
def test_the_slow_reference(make, side: int, layers: list[int]) -> None:
    flops = on_paper(make, side)
    assert len(layers) == {resnet20: 22, mobilenet_v1: 28}[make]
    assert flops.dense == flops.actual == sum(layers)


@pytest.mark.parametrize(
    ("make", "side", "giga"),
    [(resnet50, 224, 8.178), (mobilenet_v1, 224, 1.1375), (wrn28_10, 32, 11.902), (resnet20, 32, 0.0816)],
)
def test_dense_totals_of_the_paper_s_models(make, side: int, giga: float) -> None:
    flops = on_paper(make, side)
    assert flops.dense / 1e9 == pytest.approx(giga, abs=5e-4)
    assert (flops.ratio, flops.lower_bound, flops.attention) == (1, False, 0)


def test_11_905_counts_one_addition_for_each_bias_of_wrn() -> None:
    flops = on_paper(wrn28_10, 32)
    assert (flops.dense + flops.biases) / 1e9 == pytest.approx(11.905, abs=5e-4)


@pytest.mark.parametrize(
    ("make", "side", "samples", "epochs", "exa"),
    [
        (resnet50, 224, 1_281_167, 100, 3.14),
        (mobilenet_v1, 224, 1_281_167, 100, 0.44),
        (wrn28_10, 32, 50_000, 200, 0.36),
    ],
)
def test_training_totals_of_the_paper(make, side: int, samples: int, epochs: int, exa: float) -> None:
    dense = on_paper(make, side).dense
    total = training_flops([("dense", dense)] * epochs, dense, samples=samples)
    assert total == 3 * dense * samples * epochs
    assert total / 1e18 == pytest.approx(exa, abs=5e-3)


@pytest.mark.parametrize("make", [resnet20, wrn28_10])
def test_torch_s_own_counter_agrees(make) -> None:
    model, images = on_meta(make).eval(), torch.zeros(1, 3, 32, 32, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(images)
    assert counter.get_total_flops() == inference_flops(model, images).dense


# Training, by rule


def test_training_by_the_paper_s_rule() -> None:
    """Worked by hand: F = 100, F_C = 10, and in the second dense epoch a fifth of the cost is of weights still zero."""
    epochs = [("dense", 100), ("sparse", 10), ("dense", 80), ("sparse", 10)]
    assert [epoch_flops(kind, flops, 100) for kind, flops in epochs] == [300, 30, 260, 30]
    assert training_flops(epochs, 100) == 620
    assert training_flops(epochs, 100, samples=50) == 31_000


def test_training_by_the_published_code_s_rule() -> None:
    """3 F in both kinds of phases, and F holds what is not a weight too."""
    epochs = [("dense", 100), ("sparse", 10), ("dense", 80), ("sparse", 10)]
    assert training_flops(epochs, 100, rule="published") == 600
    assert training_flops(epochs, 100, rule="published", extra=7) == 3 * (107 + 17 + 87 + 17)


def test_what_the_published_code_adds() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),  # 4 x 8 x 8 outputs, each with a bias
        nn.BatchNorm2d(4),  # 2 for each element
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),  # 4 x 4 x 4 outputs of a window of 4
        nn.AvgPool2d((2, 1)),  # 4 x 2 x 4 outputs of a window of 2
        nn.Flatten(),
        nn.Linear(32, 5),
    )
    flops = inference_flops(model, torch.zeros(3, 3, 8, 8))
    assert flops.biases == 256 + 5
    assert flops.elementwise == 2 * 256 + 256 + 64 * 4 + 32 * 2
    assert flops.inference() == flops.actual
    assert flops.inference("published") == flops.actual + flops.extra == flops.actual + 261 + 1088


def test_functional_relus_count_as_modules_do() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 6, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.fc(x), inplace=True).relu()

    assert inference_flops(Functional(), torch.zeros(2, 4)).elementwise == 12


@pytest.mark.parametrize(
    "use",
    [
        lambda: epoch_flops("sparse", 1, 1, rule="ours"),  # pyright: ignore[reportArgumentType]
        lambda: Flops(1, 1).inference("x"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_an_unknown_rule_is_refused(use) -> None:
    with pytest.raises(ValueError, match=r"rule='.*': expected one of 'paper', 'published'; write rule='paper'"):
        use()


# Layers


def test_only_non_zero_weights_count() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5))
    with torch.no_grad():
        model.get_parameter("0.weight").zero_()[0, 0, 0, 0] = 1.0
    flops = inference_flops(model, torch.zeros(1, 2, 8, 8))
    assert (flops.dense, flops.actual) == (2 * (54 * 16 + 240), 2 * (16 + 240))
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
    weights = layer.get_parameter("weight").numel()
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
    assert flops.attention == 2 * (2 * 5 * 5 * 8)  # QKᵀ and AV, beside
    assert f"and {flops.attention:,} in products between activations" in str(flops)


class Attention(nn.Module):
    """One head by hand, in the way `how` says."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.qkv = how, nn.Linear(8, 24, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        if self.how == "sdpa":
            return F.scaled_dot_product_attention(q, k, v)
        if self.how == "@":
            return (q @ k.transpose(-1, -2)).softmax(-1) @ v
        return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)


@pytest.mark.parametrize("how", ["sdpa", "@", "bmm"])
def test_products_between_activations_stand_beside(how: str) -> None:
    flops = inference_flops(Attention(how), torch.zeros(3, 5, 8))
    assert flops == Flops(dense=2 * 192 * 5, actual=flops.actual, attention=2 * 2 * 5 * 5 * 8)


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_as_torch_counts_it(batch_first: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first).eval(), torch.randn(3, 3, 8)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # it does not know fused kernels
        model(x)
    flops = inference_flops(model, x)
    assert 3 * (flops.dense + flops.attention) == counter.get_total_flops()


class Tied(nn.Module):
    """The decoder is the embedding's weight, used as a function: no layer is called for it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.conv = nn.Embedding(10, 8), nn.Conv1d(8, 8, 1)
        self.up = nn.ConvTranspose1d(8, 4, 2, stride=2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        F.conv_transpose1d(x.transpose(1, 2), self.up.weight, stride=2)
        return F.linear(F.conv1d(x.transpose(1, 2), weight=self.conv.weight).transpose(1, 2), self.embedding.weight)


def test_weights_used_as_functions_count() -> None:
    flops = inference_flops(Tied(), torch.zeros(2, 5, dtype=torch.int64))
    assert flops.dense == 2 * 5 * (64 + 64 + 80)
    assert not flops.lower_bound


# What is not known


class Mixer(nn.Module):
    """A layer of no known type."""

    def __init__(self, transposed: bool = False) -> None:
        super().__init__()
        self.mix, self.scale = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))
        self.place, self.idle = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(5, 5))
        self.transposed = transposed

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.place) * self.scale
        return x @ self.mix.T if self.transposed else x @ self.mix


@pytest.mark.parametrize("transposed", [False, True])
def test_an_unknown_layer_is_named_counts_0_and_makes_a_lower_bound(transposed: bool) -> None:
    """Added or scaling vectors and what is never used are no reason for doubt; a matrix product is."""
    flops = inference_flops(nn.Sequential(nn.Linear(4, 4), Mixer(transposed)), torch.zeros(2, 3, 4))
    assert flops.dense == 2 * 16 * 3
    assert flops.uncounted == ("1.mix (Mixer)",)
    assert flops.lower_bound
    assert flops.attention == 0
    said = str(flops)
    assert said.startswith("at least 96 FLOPs per sample of 96 dense (1.00x); a lower bound")
    assert said.endswith("count 0: 1.mix (Mixer)")


@pytest.mark.parametrize("layer", [nn.LSTM(4, 4), nn.GRU(4, 4)])
def test_recurrent_layers_are_not_known(layer: nn.Module) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.cell = nn.Linear(4, 4), layer

        def forward(self, x: Tensor) -> Tensor:
            return self.cell(self.fc(x))[0]

    names = inference_flops(Recurrent(), torch.zeros(2, 3, 4)).uncounted
    assert names == tuple(f"cell.weight_{side}_l0 ({type(layer).__name__})" for side in ("ih", "hh"))


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.weight = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.fc(x), self.weight * torch.eye(4))


def test_a_weight_made_from_an_unknown_parameter_is_seen() -> None:
    assert inference_flops(Masked(), torch.zeros(2, 4)).uncounted == ("weight (Masked)", "linear in Masked")


class Does(nn.Module):
    """A known layer, and after it something without a parameter."""

    def __init__(self, what: Callable[["Does", Tensor], Tensor]) -> None:
        super().__init__()
        self.fc, self.what = nn.Linear(4, 4), what
        self.register_buffer("fixed", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.what(self, self.fc(x))


torch.library.define("acdc_tests::twice", "(Tensor x) -> Tensor")


@torch.library.impl("acdc_tests::twice", "CompositeExplicitAutograd")
def twice(x: Tensor) -> Tensor:
    return 2 * x


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (lambda m, x: torch.fft.rfft(x).abs(), "fft_rfft"),
        (lambda m, x: torch.fft.fft2(x).real, "fft_fft2"),
        (lambda m, x: torch.einsum("ni,mi->nm", x, x), "einsum"),
        (lambda m, x: F.linear(x, m.fixed), "linear"),
        (lambda m, x: F.conv1d(x[:, None], m.fixed[:1, None]), "conv1d"),
        (lambda m, x: torch.addmm(x, x, m.fixed), "addmm"),
        (lambda m, x: torch.cdist(x, x), "cdist"),
        (lambda m, x: torch.linalg.svd(x)[0], "linalg_svd"),
        (lambda m, x: x @ m.fc.weight[:, :2], "matmul"),  # a part of a known weight, and not as its layer uses it
        (lambda m, x: torch.ops.acdc_tests.twice(x), "twice"),
    ],
    ids=["rfft", "fft2", "einsum", "linear", "conv1d", "addmm", "cdist", "svd", "matmul", "custom"],
)
def test_an_operation_no_layer_accounts_for_is_named_with_its_place(what, name: str) -> None:
    flops = inference_flops(nn.Sequential(Does(what)), torch.randn(6, 4))
    assert (flops.dense, flops.attention, flops.lower_bound) == (2 * 16, 0, True)
    (said,) = flops.uncounted
    assert said.endswith(f"{name} in 0 (Does)")


@pytest.mark.parametrize(
    "what",
    [
        lambda m, x: F.gelu(x * m.fixed[0] + 1).softmax(-1).cumsum(0).sort().values,
        lambda m, x: F.normalize(F.layer_norm(x, (4,))) / x.norm(dim=1, keepdim=True).clamp(min=1),
        lambda m, x: F.interpolate(F.avg_pool1d(x[:, None], 2), scale_factor=2).flatten(1).t().contiguous().t(),
        lambda m, x: torch.fft.fftshift(x)[:, torch.arange(4)].outer(x[0]) if x.ndim == 1 else torch.fft.fftshift(x),
        lambda m, x: (x @ x.T) @ x,  # counted, as a product between activations
        lambda m, x: m.fc(x).roll(1).var(0, keepdim=True).expand(6, 4).where(x > 0, x.exp()),
    ],
)
def test_cheap_operations_are_not_named(what) -> None:
    assert not inference_flops(nn.Sequential(Does(what)), torch.randn(6, 4)).lower_bound


@pytest.mark.parametrize("make", [resnet20, wrn28_10, mobilenet_v1, resnet50])
def test_the_paper_s_models_are_known_whole(make) -> None:
    assert on_paper(make, 32).uncounted == ()


def test_a_compiled_model_is_counted_too() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert inference_flops(compiled, torch.zeros(2, 4)) == inference_flops(model, torch.zeros(2, 4))


def test_norms_of_several_axes_are_known() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.LayerNorm([3, 4, 4]), nn.PReLU(3))
    assert not inference_flops(model, torch.zeros(1, 2, 4, 4)).lower_bound


def test_a_model_of_unknown_layers_only_is_refused_with_their_names() -> None:
    with pytest.raises(
        ValueError,
        match=r"model=Bilinear: its forward pass used no .*\(of unknown layer type: weight \(Bilinear\)\): there are",
    ):
        inference_flops(nn.Bilinear(2, 3, 4), (torch.zeros(5, 2), torch.zeros(5, 3)))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="example=a batch of 0: expected at least one sample; pass"):
        inference_flops(nn.Linear(4, 4), torch.zeros(0, 4))


def test_lazy_layers_are_made_by_the_pass_itself() -> None:
    flops = inference_flops(nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 2)), torch.zeros(2, 4))
    assert flops.dense == 2 * (12 + 6)


# How it counts


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
    with pytest.raises(
        ValueError, match="model=BatchNorm1d: its forward pass used no convolution, linear or attention weight"
    ):
        inference_flops(nn.BatchNorm1d(3), torch.zeros(2, 3))
