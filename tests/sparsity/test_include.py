"""What rules reach beyond the known layers, what they never sweep in, and what is said of one that reaches nothing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.sparsity.layers import Layers
from acdc.sparsity.prunable import find_prunable
from tests.warned import warned


class Gated(nn.Module):
    """A layer of no known type: a matrix with a scale, as one axis and as several."""

    def __init__(self) -> None:
        super().__init__()
        self.w_v, self.w_g = nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4))
        self.scale, self.gain = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(1, 1, 4))
        self.steps = nn.Parameter(torch.zeros(2, 2, dtype=torch.int64), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w_v) * (x @ self.w_g) * self.scale * self.gain


class Encoder(nn.Module):
    """Layers of known and of unknown types, and a position embedding as a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 7, 4))
        self.rnn = nn.LSTM(4, 4)
        self.norm, self.plane = nn.LayerNorm(4), nn.LayerNorm([7, 4])
        self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
        self.words = nn.EmbeddingBag(9, 4)
        self.fc = nn.Linear(4, 4)


def model() -> nn.ModuleDict:
    return nn.ModuleDict({"encoder": Encoder(), "gate": Gated(), "head": nn.Linear(4, 2)})


def names(layers: Layers) -> list[str]:
    return [weight.name for weight in layers.weights]


RECURRENT = ["encoder.rnn.weight_ih_l0", "encoder.rnn.weight_hh_l0"]
ATTENTION = ["encoder.attention.in_proj_weight", "encoder.attention.out_proj.weight"]
GATED = ["gate.w_v", "gate.w_g"]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("encoder.rnn", RECURRENT),
        ("encoder.rnn.*", RECURRENT),
        ("*.weight_hh_l?", RECURRENT[1:]),
        ("encoder.*", [*RECURRENT, *ATTENTION, "encoder.fc.weight"]),
        ("encoder", [*RECURRENT, *ATTENTION, "encoder.fc.weight"]),
        ("gate", GATED),
        ("gate.w_*", GATED),
        (lambda name, module: isinstance(module, nn.LSTM), RECURRENT),
        (lambda name, module: isinstance(module, nn.LSTM | nn.Linear), [*RECURRENT, ATTENTION[1], "encoder.fc.weight",
                                                                       "head.weight"]),
        (lambda name, module: "w_" in name, GATED),
    ],
)  # fmt: skip
def test_a_rule_reaches_matrices_of_unknown_layers(rule: str | Callable, expected: list[str]) -> None:
    """Not what is beside layers, normalises, is a vector or an embedding, though most of these rules match it."""
    assert names(find_prunable(model(), include=[rule])) == expected


@pytest.mark.parametrize("rule", ["*", "**", "*.*", "?*"])
def test_a_rule_of_wildcards_alone_means_the_known_layers(rule: str) -> None:
    assert names(find_prunable(model(), include=[rule])) == names(find_prunable(model()))


@pytest.mark.parametrize("name", ["encoder.places", "gate.gain", "encoder.attention.bias_k"])
def test_a_full_name_still_reaches_what_stands_beside_layers(name: str) -> None:
    assert names(find_prunable(model(), include=[name])) == [name]


class Adapted(nn.Linear):
    """A known layer with a matrix beside its weight."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.adapter = nn.Parameter(torch.randn(4, 2))


def test_what_stands_beside_the_weight_of_a_known_layer_is_not_swept_in_with_it() -> None:
    net = nn.ModuleDict({"fc": Adapted()})
    assert names(find_prunable(net, include=["fc"])) == ["fc.weight"]
    assert names(find_prunable(net, include=["fc", "fc.adapter"])) == ["fc.weight", "fc.adapter"]


def test_embeddings_are_asked_for_by_their_own_switch() -> None:
    layers = find_prunable(model(), include=["encoder.words", "head"])
    assert names(layers) == ["head.weight"]
    assert layers.left_dense["encoder.words.weight"] == "embedding (embeddings=True prunes it)"
    assert "encoder.words.weight" in names(find_prunable(model(), include=["encoder.words"], embeddings=True))


def test_exclude_takes_away_from_unknown_layers_too() -> None:
    layers = find_prunable(model(), include=["encoder.*"], exclude=["*.weight_ih_l0", "*.attention"])
    assert names(layers) == ["encoder.rnn.weight_hh_l0", "encoder.fc.weight"]
    assert layers.left_dense["encoder.rnn.weight_ih_l0"] == "excluded"


def test_exclude_may_name_an_unknown_layer_that_is_dense_anyway() -> None:
    layers = find_prunable(model(), exclude=["encoder.rnn"])
    assert {layers.left_dense[name] for name in RECURRENT} == {"excluded"}
    assert names(layers) == names(find_prunable(model()))


def test_a_function_that_excludes_is_asked_of_known_layers_only() -> None:
    """It changes nothing for the others, and may rely on what a known layer has."""
    seen = []
    find_prunable(model(), exclude=[lambda name, module: bool(seen.append(name))])
    assert {*seen} == {*names(find_prunable(model())), "encoder.words.weight"}


def test_a_layer_under_two_names_is_reached_by_either() -> None:
    shared = nn.LSTM(4, 4)
    twice = nn.ModuleDict({"a": shared, "b": shared, "fc": nn.Linear(4, 4)})
    for rule in ("a", "b", "b.weight_hh_l0"):
        found = names(find_prunable(twice, include=[rule]))
        assert found[-1] == "a.weight_hh_l0"
        assert not [name for name in find_prunable(twice, include=[rule]).left_dense if name.startswith("b.")]


def test_an_included_recurrent_layer_trains_sparse() -> None:
    torch.manual_seed(0)
    net = nn.LSTM(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", "2st")])
    sparsifier = acdc.attach(net, optimizer, acdc.ACDC(sparsity=0.5, schedule=schedule, include=["weight_*"]))
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.randn(3, 2, 4))[0].square().mean().backward()
        optimizer.step()
    result = sparsifier.finish()
    assert result.sparsity == 0.5
    assert result.masks.keys() == {"weight_ih_l0", "weight_hh_l0"}


# Rules that reach nothing


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ("encoder.norm", r"it matches encoder\.norm \(LayerNorm\), whose parameters are for normalisation"),
        ("encoder.plane", r"it matches encoder\.plane \(LayerNorm\), whose parameters are for normalisation"),
        ("encoder.plane.weight", r"it matches encoder\.plane\.weight, and biases and normalisation parameters always"),
        ("*norm*", r"it matches encoder\.norm \(LayerNorm\), whose"),
        ("head.bias", r"it matches head\.bias, and biases and normalisation parameters always stay dense"),
        ("relu", r"it matches relu \(ReLU\), which has no parameters"),
        ("act*", r"it matches act1 \(PReLU\) and 1 more modules, whose parameters are biases or vectors"),
    ],
)
@pytest.mark.parametrize("argument", ["include", "exclude"])
def test_what_a_rule_matches_instead_of_a_weight_is_said(argument: str, rule: str, found: str) -> None:
    net = model()
    net["relu"], net["act1"], net["act2"] = nn.ReLU(), nn.PReLU(4), nn.PReLU(4)
    start = rf"^{argument}=\['{rule.replace('*', '[*]')}'\]: the rule matches no weight that can be pruned: "
    message = rf"{start}{found}.*; remove"
    with pytest.raises(ValueError, match=message):
        find_prunable(net, **dict[str, Any]({argument: [rule]}))


def test_a_misspelt_rule_is_told_of_unknown_layers_too() -> None:
    with pytest.raises(ValueError, match=r"matches no weight of this model .*did you mean encoder\.rnn"):
        find_prunable(model(), include=["encoder.rnm"])


def test_a_parameter_beside_layers_is_to_be_named_in_full() -> None:
    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.drop = nn.Parameter(torch.randn(7, 4)), nn.Dropout()

    net = nn.ModuleDict({"places": Places(), "fc": nn.Linear(4, 4)})
    message = r"it matches places \(Places\), where places\.table is of unknown .*write include=\['places\.table'\]"
    with pytest.raises(ValueError, match=message):
        find_prunable(net, include=["places"])
    assert names(find_prunable(net, include=["places.table"])) == ["places.table"]


def test_parameters_named_as_weight_norm_names_its_own_are_not_taken_for_them() -> None:
    """w_g and w_v without a w that is computed from them: a gate and a value."""
    assert not find_prunable(model()).computed


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (nn.Linear, r"include=\[Linear\]: .*write include=\[lambda name, module: isinstance\(module, Linear\)\]"),
        (lambda name: True, r"include=\[<lambda>\]: expected a function with two arguments"),
    ],
    ids=["class", "one argument"],
)
def test_a_rule_that_cannot_be_asked_says_what_to_write(rule: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        find_prunable(nn.Sequential(nn.Linear(4, 4)), include=[rule])  # pyright: ignore[reportArgumentType]


# Recurrent layers that nobody asked for


def warned_of(**knobs: Any) -> list[str]:
    model = nn.ModuleDict({"rnn": nn.GRU(4, 10), "fc": nn.Linear(10, 2)})
    with warned() as messages:
        method = acdc.ACDC(sparsity=0.5, epochs=5, **knobs)
        acdc.attach(model, torch.optim.SGD(model.parameters(), 0.1), method, steps_per_epoch=9, quiet=True)
    return messages


def test_recurrent_layers_that_stay_dense_are_named() -> None:
    (message,) = warned_of()
    assert message == (
        "some weights stay dense: rnn.weight_ih_l0, rnn.weight_hh_l0, which are 420 of 440 weights (95%). GRU layers "
        "are pruned only on request. To prune them beside all others, write include=['rnn', '*']; to keep them dense "
        "without this warning, write exclude=['rnn']"
    )


@pytest.mark.parametrize("knobs", [{"include": ["rnn", "*"]}, {"exclude": ["rnn"]}, {"include": ["fc"]}])
def test_what_the_warning_says_ends_it(knobs: dict) -> None:
    assert warned_of(**knobs) == []


def test_recurrent_layers_are_pruned_beside_others_as_the_warning_says() -> None:
    model = nn.ModuleDict({"rnn": nn.GRU(4, 10), "fc": nn.Linear(10, 2)})
    weights = find_prunable(model, include=["rnn", "*"]).weights
    assert [weight.name for weight in weights] == ["rnn.weight_ih_l0", "rnn.weight_hh_l0", "fc.weight"]


def test_recurrent_layers_that_cannot_be_pruned_are_not_named() -> None:
    model = nn.ModuleDict({"rnn": nn.LSTM(4, 4).requires_grad_(False), "fc": nn.Linear(4, 4)})
    assert find_prunable(model).on_request == ()
