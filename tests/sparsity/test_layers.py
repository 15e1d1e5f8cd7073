"""Which parameters are prunable, why the others are not, and how often a forward pass uses each."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from acdc.flops.uses import forward_uses
from acdc.sparsity.layers import Layers
from acdc.sparsity.prunable import find_prunable


def names(layers: Layers) -> list[str]:
    return [weight.name for weight in layers.weights]


def convnet() -> nn.Sequential:
    body = nn.Sequential()
    body.add_module("conv1", nn.Conv2d(3, 8, 3))
    body.add_module("bn1", nn.BatchNorm2d(8))
    block = nn.Sequential()
    block.add_module("conv1", nn.Conv2d(8, 8, 3))
    block.add_module("conv2", nn.Conv2d(8, 8, 3))
    body.add_module("layer1", block)
    body.add_module("fc", nn.Linear(8, 10))
    return body


class Tied(nn.Module):
    """A language model whose decoder is its embedding."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6, sparse=sparse)
        self.hidden = nn.Linear(6, 6)
        self.decoder = nn.Linear(6, 11, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(self.hidden(self.embedding(tokens)))


# Layer types


@pytest.mark.parametrize(
    ("layer", "kind", "out_dim", "in_dim"),
    [
        (nn.Conv1d(4, 6, 3), "conv", 0, 1),
        (nn.Conv2d(4, 6, 3, groups=2), "conv", 0, 1),
        (nn.Conv3d(4, 6, 3), "conv", 0, 1),
        (nn.ConvTranspose1d(4, 6, 3), "conv_transpose", 1, 0),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), "conv_transpose", 1, 0),
        (nn.ConvTranspose3d(4, 6, 3), "conv_transpose", 1, 0),
        (nn.Linear(4, 6), "linear", 0, 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else None,
)
def test_weights_that_multiply_activations(layer: nn.Module, kind: str, out_dim: int, in_dim: int) -> None:
    model = nn.Sequential(layer, nn.BatchNorm1d(3), nn.LayerNorm([2, 3]), nn.GroupNorm(1, 3), nn.PReLU())
    (weight,) = find_prunable(model).weights
    assert (weight.name, weight.kind, weight.out_dim, weight.in_dim) == ("0.weight", kind, out_dim, in_dim)
    assert weight.param is layer.weight
    assert weight.module is layer
    if "groups" not in vars(layer) or layer.groups == 1:
        assert (weight.param.shape[out_dim], weight.param.shape[in_dim]) == (6, 4)


def test_a_model_that_is_itself_a_layer() -> None:
    assert names(find_prunable(nn.Linear(2, 3))) == ["weight"]


def test_subclasses_count_as_their_base() -> None:
    class Mine(nn.Linear):
        pass

    assert names(find_prunable(nn.Sequential(Mine(2, 3)))) == ["0.weight"]


def test_attention_with_one_projection_for_all() -> None:
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2)})
    layers = find_prunable(model)
    assert [(w.name, w.kind) for w in layers.weights] == [
        ("attn.in_proj_weight", "attention"),
        ("attn.out_proj.weight", "linear"),
    ]
    assert layers.size == 4 * 8 * 8


def test_attention_with_projections_of_their_own() -> None:
    model = nn.ModuleDict({"attn": nn.MultiheadAttention(8, 2, kdim=6, vdim=4, add_bias_kv=True)})
    assert names(find_prunable(model)) == [
        "attn.q_proj_weight",
        "attn.k_proj_weight",
        "attn.v_proj_weight",
        "attn.out_proj.weight",
    ]


def test_transformer_layer() -> None:
    layers = find_prunable(nn.TransformerEncoderLayer(8, 2, 16))
    assert names(layers) == [
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    ]
    assert not layers.left_dense


def test_names_are_those_of_the_state_dict_in_order() -> None:
    model = nn.ModuleList([convnet(), nn.TransformerEncoderLayer(8, 2, 16), nn.Linear(2, 2)])
    found = names(find_prunable(model))
    assert found == [name for name in model.state_dict() if name in found]
    assert all(weight.param is model.get_parameter(weight.name) for weight in find_prunable(model).weights)


# Embeddings and tied weights


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_stay_dense_unless_asked_for(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind(10, 4), nn.Linear(4, 4))
    layers = find_prunable(model)
    assert names(layers) == ["1.weight"]
    assert layers.left_dense == {"0.weight": "embedding (embeddings=True prunes it)"}
    assert names(find_prunable(model, embeddings=True)) == ["0.weight", "1.weight"]


def test_tied_weights_are_one_weight() -> None:
    layers = find_prunable(Tied(), embeddings=True)
    assert names(layers) == ["embedding.weight", "hidden.weight"]
    assert layers.size == 11 * 6 + 6 * 6


def test_a_decoder_tied_to_an_embedding_stays_dense_with_it() -> None:
    layers = find_prunable(Tied())
    assert names(layers) == ["hidden.weight"]
    assert layers.left_dense == {"embedding.weight": "tied to an embedding"}


def test_rules_see_every_name_of_a_tied_weight() -> None:
    assert names(find_prunable(Tied(), embeddings=True, exclude=["decoder"])) == ["hidden.weight"]
    assert names(find_prunable(Tied(), embeddings=True, include=["decoder"])) == ["embedding.weight"]


def test_a_module_used_under_two_names_is_one_layer() -> None:
    shared = nn.Linear(4, 4)
    assert names(find_prunable(nn.ModuleDict({"a": shared, "b": shared}))) == ["a.weight"]


def test_embeddings_with_sparse_gradients_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"embeddings=True: it needs dense gradients, but 0\.weight has.*sparse=False"):
        find_prunable(model, embeddings=True)
    assert names(find_prunable(model)) == ["1.weight"]
    assert names(find_prunable(model, embeddings=True, exclude=["0"])) == ["1.weight"]


# Rules


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("fc", ["fc.weight"]),
        ("fc.weight", ["fc.weight"]),
        ("layer1", ["layer1.conv1.weight", "layer1.conv2.weight"]),
        ("layer1.*", ["layer1.conv1.weight", "layer1.conv2.weight"]),
        ("conv1", ["conv1.weight"]),
        ("*conv1", ["conv1.weight", "layer1.conv1.weight"]),
        ("*.conv1.weight", ["layer1.conv1.weight"]),
        ("layer?.conv[2-9]", ["layer1.conv2.weight"]),
        (lambda name, module: isinstance(module, nn.Linear), ["fc.weight"]),
        (lambda name, module: name.startswith("layer1."), ["layer1.conv1.weight", "layer1.conv2.weight"]),
    ],
)
def test_rules(rule: str | Callable, expected: list[str]) -> None:
    everything = ["conv1.weight", "layer1.conv1.weight", "layer1.conv2.weight", "fc.weight"]
    included, excluded = find_prunable(convnet(), include=[rule]), find_prunable(convnet(), exclude=[rule])
    rest = [name for name in everything if name not in expected]
    assert names(included) == expected
    assert included.left_dense == dict.fromkeys(rest, "not included")
    assert names(excluded) == rest
    assert excluded.left_dense == dict.fromkeys(expected, "excluded")


def test_exclude_takes_away_from_include() -> None:
    layers = find_prunable(convnet(), include=["layer1", "fc"], exclude=["*.conv1", "fc"])
    assert names(layers) == ["layer1.conv2.weight"]
    assert layers.left_dense == {
        "conv1.weight": "not included",
        "layer1.conv1.weight": "excluded",
        "fc.weight": "excluded",
    }


def test_case_matters() -> None:
    with pytest.raises(ValueError, match="matches no weight"):
        find_prunable(convnet(), exclude=["FC"])


@pytest.mark.parametrize("argument", ["include", "exclude"])
def test_a_rule_that_matches_nothing_is_refused(argument: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{argument}=\['layer1\.conv3'\]: the rule matches no weight.*did you mean .*layer1.conv"
    ):
        find_prunable(convnet(), **dict[str, Any]({argument: ["fc", "layer1.conv3"]}))
    with pytest.raises(ValueError, match=rf"{argument}=\['zzz'\]: the rule matches no weight of this model \([^?]*$"):
        find_prunable(convnet(), **dict[str, Any]({argument: ["zzz"]}))


def test_a_rule_is_not_told_to_be_itself() -> None:
    """bn1 exists, but has nothing to prune: proposing it again helps nobody."""
    with pytest.raises(ValueError, match="matches no weight") as error:
        find_prunable(convnet(), exclude=["bn1"])
    assert "mean 'bn1'" not in str(error.value)
    assert "or 'bn1'" not in str(error.value)


@pytest.mark.parametrize("argument", ["include", "exclude"])
@pytest.mark.parametrize("rule", ["fc", lambda name, module: True])
def test_one_rule_instead_of_a_list_is_refused(argument: str, rule: str | Callable) -> None:
    with pytest.raises(TypeError, match=rf"{argument}=.*: expected a list of rules; write {argument}=\["):
        find_prunable(convnet(), **dict[str, Any]({argument: rule}))


def test_a_module_is_not_a_rule() -> None:
    """Modules are callable, but not predicates: the message must say what a rule is."""
    model = convnet()
    with pytest.raises(TypeError, match="exclude"):
        find_prunable(model, exclude=[model.fc])  # pyright: ignore[reportArgumentType]


def test_a_predicate_that_matches_nothing_is_allowed() -> None:
    assert len(find_prunable(convnet(), exclude=[lambda name, module: False]).weights) == 4


# Parameters of other layer types


def test_a_recurrent_weight_named_in_full() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 5), "fc": nn.Linear(5, 2)})
    assert names(find_prunable(model)) == ["fc.weight"]
    (weight,) = find_prunable(model, include=["rnn.weight_hh_l0"]).weights
    assert (weight.name, weight.kind, weight.module) == ("rnn.weight_hh_l0", "other", model["rnn"])
    assert weight.param is model["rnn"].weight_hh_l0


def test_a_bias_named_in_full_is_still_refused() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 5), "fc": nn.Linear(5, 2)})
    for rule in ("rnn.bias_hh_l0", "fc.bias"):
        with pytest.raises(ValueError, match="matches no weight"):
            find_prunable(model, include=[rule])


def test_weights_named_in_full_keep_the_order_of_registration() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 5), "fc": nn.Linear(5, 2)})
    assert names(find_prunable(model, include=["rnn.weight_hh_l0", "fc"])) == ["rnn.weight_hh_l0", "fc.weight"]


@pytest.mark.parametrize(
    "other",
    [
        nn.LayerNorm([4, 4]),
        nn.MultiheadAttention(4, 2, add_bias_kv=True),
        nn.LSTM(4, 4),
        parametrizations.weight_norm(nn.Linear(4, 4)),
    ],
    ids=["norm of two axes", "biases of three axes", "recurrent", "weight norm"],
)
def test_a_wildcard_includes_no_more_than_no_rule_at_all(other: nn.Module) -> None:
    """ "*" alone is no reason to go beyond the known layers; test_include.py has what is."""
    model = nn.ModuleDict({"fc": nn.Linear(4, 4), "other": other})
    assert names(find_prunable(model, include=["*"])) == names(find_prunable(model))


# First and last, depthwise, frozen


def test_first_and_last_dense() -> None:
    layers = find_prunable(convnet(), first_and_last_dense=True)
    assert names(layers) == ["layer1.conv1.weight", "layer1.conv2.weight"]
    reason = "first or last layer (first_and_last_dense)"
    assert layers.left_dense == {"conv1.weight": reason, "fc.weight": reason}


@pytest.mark.parametrize("depth", [1, 2])
def test_first_and_last_dense_may_leave_nothing(depth: int) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(depth)])
    with pytest.raises(ValueError, match=r"first_and_last_dense=True.*nothing is left to prune.*first or last layer"):
        find_prunable(model, first_and_last_dense=True)


def mobile_block() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(8, 16, 1),
        nn.Conv2d(16, 32, 3, groups=16),
        nn.Conv2d(32, 32, 3, groups=4),
        nn.Conv2d(1, 8, 3),
        nn.ConvTranspose2d(8, 8, 3, groups=8),
    )


def test_depthwise_dense() -> None:
    """Depthwise: one input channel a group, also with several outputs for it; grouped convolutions are not."""
    layers = find_prunable(mobile_block(), depthwise_dense=True)
    assert names(layers) == ["0.weight", "2.weight", "4.weight", "5.weight"]
    reason = "depthwise convolution (depthwise_dense)"
    assert layers.left_dense == {"1.weight": reason, "3.weight": reason, "6.weight": reason}
    assert len(find_prunable(mobile_block()).weights) == 7


def test_frozen_weights_stay_dense() -> None:
    model = convnet()
    model.layer1.requires_grad_(False)
    layers = find_prunable(model)
    assert names(layers) == ["conv1.weight", "fc.weight"]
    assert layers.left_dense["layer1.conv1.weight"] == "frozen (requires_grad=False)"


def test_complex_weights_stay_dense() -> None:
    model = nn.Sequential(nn.Linear(4, 4, dtype=torch.complex64), nn.Linear(4, 4))
    layers = find_prunable(model)
    assert names(layers) == ["1.weight"]
    assert "complex64" in layers.left_dense["0.weight"]


# What cannot be pruned


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_layers_are_left_out(wrap: Callable) -> None:
    """Their weight is computed at each forward pass: there is no parameter to mask."""
    model = nn.Sequential(wrap(nn.Conv2d(4, 4, 3)), nn.Linear(4, 4))
    assert names(find_prunable(model)) == ["1.weight"]


def test_lazy_layers_are_refused_until_initialised() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU())
    with pytest.raises(ValueError, match=r"0\.weight: .* lazy layer that is not initialised yet; run one forward pass"):
        find_prunable(model)
    model(torch.zeros(1, 3, 5, 5))
    assert names(find_prunable(model)) == ["0.weight"]


def test_a_lazy_norm_is_none_of_our_business() -> None:
    assert names(find_prunable(nn.Sequential(nn.Conv2d(3, 4, 3), nn.LazyBatchNorm2d()))) == ["0.weight"]


@pytest.mark.parametrize("model", [nn.Sequential(), nn.BatchNorm2d(3)], ids=lambda m: type(m).__name__)
def test_nothing_prunable(model: nn.Module) -> None:
    with pytest.raises(
        ValueError, match=rf"model={type(model).__name__}: there is nothing to prune: it has no .*include=\["
    ):
        find_prunable(model)


def test_unknown_layers_are_named() -> None:
    with pytest.raises(
        ValueError, match=r"weight_ih_l0: of unknown layer type \(to prune it, give its full name in include"
    ):
        find_prunable(nn.LSTM(3, 3))
    layers = find_prunable(nn.Sequential(nn.Linear(2, 2), nn.LSTM(3, 3)))
    assert list(layers.left_dense) == ["1.weight_ih_l0", "1.weight_hh_l0"]


def test_nothing_left_to_prune_says_why() -> None:
    model = nn.Sequential(*[nn.Embedding(3, 3) for _ in range(7)])
    with pytest.raises(ValueError, match=r"every weight stays dense \(0\.weight: embedding .*; …\)"):
        find_prunable(model)


# How often a forward pass uses each weight


@pytest.mark.parametrize(
    ("layer", "inputs", "uses"),
    [
        (nn.Conv1d(4, 6, 3), (4, 10), 8),
        (nn.Conv2d(4, 6, 3), (4, 7, 9), 5 * 7),
        (nn.Conv2d(4, 6, 3, stride=2, padding=1), (4, 8, 6), 4 * 3),
        (nn.Conv2d(4, 6, 3, dilation=2), (4, 7, 7), 3 * 3),
        (nn.Conv2d(4, 8, 3, groups=4), (4, 5, 5), 3 * 3),
        (nn.Conv3d(2, 3, 2), (2, 3, 4, 5), 2 * 3 * 4),
        (nn.ConvTranspose1d(4, 6, 3), (4, 10), 10),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 5, 7), 5 * 7),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), (4, 5, 7), 5 * 7),
        (nn.Linear(4, 6), (4,), 1),
        (nn.Linear(4, 6), (5, 4), 5),
        (nn.Linear(4, 6), (3, 5, 4), 15),
    ],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_uses_of_one_layer(layer: nn.Module, inputs: tuple[int, ...], uses: int, batch: int) -> None:
    assert forward_uses(nn.Sequential(layer), torch.zeros(batch, *inputs)) == {"0.weight": uses}


def test_uses_times_size_is_the_work_done() -> None:
    """Independently: with every input and weight 1, the outputs add up to the multiply-adds (no padding, no bias)."""
    layers = [
        nn.Conv2d(4, 6, 3, groups=2, stride=2),
        nn.ConvTranspose2d(6, 4, 3, groups=2, stride=3),
        nn.Conv2d(4, 4, 2, groups=4),
    ]
    for layer in layers:
        layer = layer.requires_grad_(False)
        layer.weight.fill_(1)
        layer.bias.fill_(0)
        inputs = torch.ones(1, layer.in_channels, 9, 11)
        work = layer(inputs).sum().item()
        assert forward_uses(layer, inputs)["weight"] * layer.weight.numel() == work


def test_uses_of_attention() -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False)
    uses = forward_uses(model, torch.zeros(3, 5, 8))
    assert len(uses) == 8
    assert set(uses.values()) == {5.0}


class Attend(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.attn(query, key, value)[0]


def test_uses_of_attention_to_a_longer_sequence() -> None:
    """Queries and outputs are as many as the targets; keys and values as many as the sources."""
    inputs = (torch.zeros(2, 3, 8), torch.zeros(2, 5, 6), torch.zeros(2, 5, 4))
    assert forward_uses(Attend(kdim=6, vdim=4), inputs) == {
        "attn.q_proj_weight": 3,
        "attn.k_proj_weight": 5,
        "attn.v_proj_weight": 5,
        "attn.out_proj.weight": 3,
    }
    inputs = (torch.zeros(2, 3, 8), torch.zeros(2, 5, 8), torch.zeros(2, 5, 8))
    uses = forward_uses(Attend(), inputs)  # one third of in_proj_weight is for the queries
    assert uses == {"attn.in_proj_weight": pytest.approx((3 + 5 + 5) / 3), "attn.out_proj.weight": 3}


def test_uses_of_tied_weights_and_embeddings() -> None:
    """A look-up multiplies nothing; the decoder that shares the weight uses it once a token."""
    uses = forward_uses(Tied(), torch.zeros(2, 7, dtype=torch.long))
    assert uses == {"embedding.weight": 7, "hidden.weight": 7}


class Twice(nn.Module):
    """One layer under two names, called through both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.idle = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_uses_of_a_layer_called_twice() -> None:
    assert forward_uses(Twice(), torch.zeros(3, 4)) == {"first.weight": 2, "idle.weight": 0}


def test_uses_do_not_depend_on_a_layers_name() -> None:
    model = nn.ModuleDict({"out_proj": nn.Conv2d(4, 8, 1)})
    model.forward = lambda x: model["out_proj"](x)
    assert forward_uses(model, torch.zeros(2, 4, 5, 7)) == {"out_proj.weight": 5 * 7}


def test_inputs_may_be_a_tuple() -> None:
    model = nn.Bilinear(2, 3, 4)
    assert forward_uses(model, (torch.zeros(5, 2), torch.zeros(5, 3))) == {}


def test_inputs_without_a_tensor_are_refused() -> None:
    with pytest.raises((TypeError, ValueError), match="tensor"):
        forward_uses(nn.Linear(2, 2), {"x": torch.zeros(1, 2)})


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("forward failed")


@pytest.mark.parametrize("fails", [False, True])
def test_forward_uses_leaves_the_model_as_it_was(fails: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), Failing() if fails else nn.ReLU())
    model.train()
    model[1].eval()
    handle = model[0].register_forward_hook(lambda *_: None)
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = torch.randn(2, 3, 5, 5)
    random = torch.get_rng_state()
    if fails:
        with pytest.raises(RuntimeError, match="forward failed"):
            forward_uses(model, inputs)
    else:
        forward_uses(model, inputs)
    assert [module.training for module in model.modules()] == modes
    assert [len(module._forward_hooks) for module in model.modules()] == [0, 1, 0, 0, 0]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.is_grad_enabled()
    handle.remove()


def test_uses_are_per_sample_also_where_they_do_not_divide() -> None:
    """Two positions of a batch of three: a layer that sees only part of the batch."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(x[:2])

    assert math.isclose(forward_uses(Part(), torch.zeros(3, 4))["fc.weight"], 2 / 3)
