"""Layers that compute their weight at each forward pass stay dense, and that is said."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

import acdc
from acdc.sparsity.layers import Layers
from acdc.sparsity.prunable import find_prunable
from tests.warned import warned

# weight_norm as a hook is deprecated, and models still have it.
pytestmark = pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return (weight + weight.T) / 2


class LowRank(nn.Module):
    """A parametrization with matrices of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Parameter(torch.randn(16, 2)), nn.Parameter(torch.randn(2, 16))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.left @ self.right


def symmetric(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer


def low_rank(layer: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", LowRank())
    return layer


def pruned(layer: nn.Module) -> nn.Module:
    return prune.l1_unstructured(layer, "weight", 0.5)


PARAMETRIZE = "torch.nn.utils.parametrize.remove_parametrizations"
WAYS = pytest.mark.parametrize(
    ("compute", "by", "undo"),
    [
        (parametrizations.weight_norm, "weight_norm", PARAMETRIZE),
        (parametrizations.spectral_norm, "spectral_norm", PARAMETRIZE),
        (parametrizations.orthogonal, "orthogonal", PARAMETRIZE),
        (symmetric, "Symmetric", PARAMETRIZE),
        (low_rank, "LowRank", PARAMETRIZE),
        (nn.utils.weight_norm, "weight_norm", "torch.nn.utils.remove_weight_norm"),
        (nn.utils.spectral_norm, "spectral_norm", "torch.nn.utils.remove_spectral_norm"),
        (pruned, "torch.nn.utils.prune", "torch.nn.utils.prune.remove"),
    ],
    ids=[
        "weight_norm",
        "spectral_norm",
        "orthogonal",
        "own",
        "low rank",
        "old weight_norm",
        "old spectral_norm",
        "prune",
    ],
)


def model(compute: Callable[[nn.Module], nn.Module]) -> nn.ModuleDict:
    return nn.ModuleDict({"a": compute(nn.Linear(16, 16)), "b": nn.Linear(16, 16), "c": nn.Linear(16, 8)})


def names(layers: Layers) -> list[str]:
    return [weight.name for weight in layers.weights]


@WAYS
def test_the_layer_is_left_dense_with_the_reason(compute: Callable, by: str, undo: str) -> None:
    """Under the name its weight has without all that, and the parameters it is computed from are not listed."""
    layers = find_prunable(model(compute))
    assert names(layers) == ["b.weight", "c.weight"]
    reason = f"computed by {by} at each forward pass ({undo}(layer, 'weight') makes it a parameter)"
    assert layers.left_dense == {"a.weight": reason}


@WAYS
def test_what_the_reason_says_to_type_helps(compute: Callable, by: str, undo: str) -> None:
    net = model(compute)
    eval(f"{undo}(layer, 'weight')", {"torch": torch, "layer": net["a"]})
    assert names(find_prunable(net)) == ["a.weight", "b.weight", "c.weight"]


@WAYS
def test_looking_changes_nothing(compute: Callable, by: str, undo: str) -> None:
    """Reading a weight under spectral_norm takes a step of its power iteration; a copy is as the original."""
    net = model(compute)
    before = copy.deepcopy(net.state_dict())
    find_prunable(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@WAYS
@pytest.mark.parametrize(
    "rule",
    ["a", "a.weight", "a*", pytest.param(lambda name, module: name.startswith("a."), id="callable")],
)
def test_a_rule_that_asks_for_it_is_refused(compute: Callable, by: str, undo: str, rule: str | Callable) -> None:
    net = model(compute)
    with pytest.raises(
        ValueError, match=rf"include=.* matches no parameter: a\.weight is computed by {by} at"
    ) as error:
        find_prunable(net, include=[rule, "b"])
    assert f"make it a parameter with {undo}(model.get_submodule('a'), 'weight') before attaching" in str(error.value)
    eval(f"{undo}(model.get_submodule('a'), 'weight')", {"torch": torch, "model": net})
    assert names(find_prunable(net, include=[rule, "b"])) == ["a.weight", "b.weight"]


@WAYS
def test_so_is_one_that_names_a_parameter_it_is_computed_from(compute: Callable, by: str, undo: str) -> None:
    net = model(compute)
    for source in [name for name, param in net["a"].named_parameters() if param.ndim > 1]:
        with pytest.raises(ValueError, match=rf"it matches a\.{source}, from which a\.weight is computed by {by}"):
            find_prunable(net, include=[f"a.{source}"])


def attach(net: nn.Module, **knobs: Any) -> list[str]:
    """What is said as a sparsifier is attached and goes through its first steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", "2st")])
    with warned() as messages:
        sparsifier = acdc.attach(net, optimizer, acdc.ACDC(sparsity=0.5, schedule=schedule, **knobs))
        for _ in range(2):
            sparsifier.begin_step()
            optimizer.step()
    sparsifier.detach()
    return messages


@WAYS
def test_attaching_says_so_once(compute: Callable, by: str, undo: str) -> None:
    (said,) = attach(model(compute))
    assert said.startswith("some weights stay dense: a.weight, which are 256 of 640 weights (40%). ")
    assert f"{by} computes them at each forward pass, so" in said
    assert f"call {undo}(layer, 'weight') before attaching" in said
    assert said.endswith("write exclude=['a.weight']")


def test_many_layers_are_counted_and_each_way_is_named() -> None:
    ways = [
        pruned,
        parametrizations.spectral_norm,
        parametrizations.spectral_norm,
        pruned,
        parametrizations.spectral_norm,
    ]
    (said,) = attach(nn.Sequential(*(way(nn.Linear(8, 8)) for way in ways), nn.Linear(8, 8)))
    assert "stay dense: 0.weight, 1.weight, 2.weight and 2 more, which are 320 of 384 weights (83%)" in said
    assert "torch.nn.utils.prune or spectral_norm computes them" in said
    assert f"call torch.nn.utils.prune.remove(layer, 'weight') or {PARAMETRIZE}(layer, 'weight') before" in said
    assert said.endswith("write exclude=['0.weight', …]")


@WAYS
@pytest.mark.parametrize(
    "knobs",
    [
        {"exclude": ["a"]},
        {"exclude": ["a.weight"]},
        {"exclude": [lambda name, module: name == "a.weight"]},
        {"include": ["b", "c"]},
    ],
    ids=["module", "weight", "function", "not included"],
)
def test_a_rule_that_leaves_it_out_silences_that(compute: Callable, by: str, undo: str, knobs: dict[str, Any]) -> None:
    assert attach(model(compute), **knobs) == []
    reason = "excluded" if "exclude" in knobs else "not included"
    assert find_prunable(model(compute), **knobs).left_dense == {"a.weight": reason}


def test_a_glob_over_other_layers_too_leaves_it_dense_with_the_warning() -> None:
    (said,) = attach(model(parametrizations.spectral_norm), include=["[ab]"])
    assert "a.weight, which are 256 of 512 weights" in said


def test_layers_that_stay_dense_for_another_reason_are_not_warned_of() -> None:
    net = nn.ModuleDict({"frozen": parametrizations.spectral_norm(nn.Linear(4, 4)).requires_grad_(False)})
    net["embedding"], net["fc"] = parametrizations.weight_norm(nn.Embedding(9, 4)), nn.Linear(4, 4)
    net["rnn"] = parametrizations.weight_norm(nn.LSTM(4, 4), "weight_hh_l0")
    parametrize.register_parametrization(net["fc"], "bias", nn.ReLU())
    assert attach(net, exclude=["rnn.weight_ih*"]) == []
    assert names(find_prunable(net)) == ["fc.weight"]
    left = find_prunable(net).left_dense
    assert "fc.bias" not in left
    assert left["frozen.weight"] == "frozen (requires_grad=False)"
    assert left["embedding.weight"] == "embedding (embeddings=True prunes it)"
    assert left["rnn.weight_hh_l0"].startswith("computed by weight_norm")


def test_a_recurrent_weight_that_is_computed_is_refused_by_every_rule_that_asks_for_it_alone() -> None:
    net = nn.ModuleDict({"rnn": parametrizations.weight_norm(nn.LSTM(4, 4), "weight_hh_l0"), "fc": nn.Linear(4, 4)})
    message = r"rnn\.weight_hh_l0 is computed by weight_norm .*get_submodule\('rnn'\), 'weight_hh_l0'\)"
    for rule in ("rnn.weight_hh_l0", "rnn.weight_hh*"):
        with pytest.raises(ValueError, match=message):
            find_prunable(net, include=[rule])
    layers = find_prunable(net, include=["rnn"])
    assert names(layers) == ["rnn.weight_ih_l0"]
    assert [weight.name for weight in layers.computed] == ["rnn.weight_hh_l0"]


def test_where_all_is_computed_the_error_says_why() -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"every weight stays dense \(0\.weight: computed by weight_norm"):
        find_prunable(net)


def test_a_model_that_is_itself_such_a_layer_is_named() -> None:
    net = parametrizations.spectral_norm(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"weight is computed by .*remove_parametrizations\(model, 'weight'\) before"):
        find_prunable(net, include=["weight"])


def test_the_warning_survives_a_pattern_that_leaves_layers_out() -> None:
    net = nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 8), nn.Linear(6, 8))
    layers = acdc.ACDC(pattern=acdc.NM(2, 4), epochs=10).layers(net)
    assert names(layers) == ["1.weight"]
    assert [weight.name for weight in layers.computed] == ["0.weight"]
