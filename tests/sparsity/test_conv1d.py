"""GPT-2's Conv1D is a linear layer whose weight is stored as inputs x outputs: every part must treat it as the twin
nn.Linear, transposed.

transformers is no dependency. The stand-in computes as its Conv1D does and carries its name, which is all acdc reads.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.flops.training import inference_flops
from acdc.flops.uses import forward_uses
from acdc.measure.dynamics import Dynamics
from acdc.methods.quantised import QuantisedACDC
from acdc.sparsity.patterns import NM, Block, Channel, Pattern, Unstructured
from acdc.sparsity.prunable import find_prunable


def stand_in(path: str) -> type[nn.Module]:
    class Conv1D(nn.Module):
        def __init__(self, outputs: int, inputs: int) -> None:
            super().__init__()
            self.outputs = outputs
            self.weight = nn.Parameter(torch.randn(inputs, outputs))
            self.bias = nn.Parameter(torch.zeros(outputs))

        def forward(self, x: Tensor) -> Tensor:
            flat = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
            return flat.view(*x.size()[:-1], self.outputs)

    Conv1D.__module__, Conv1D.__qualname__ = path, "Conv1D"
    return Conv1D


Conv1D = stand_in("transformers.pytorch_utils")


class Fused(Conv1D):
    """A subclass, whose own module path says nothing."""


class Perceptron(nn.Module):
    """Two layers, as GPT-2's MLP has them: of type Conv1D, or of nn.Linear with the same weights transposed."""

    def __init__(self, linear: bool) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.c_fc = nn.Linear(8, 12) if linear else Conv1D(12, 8)
        self.c_proj = nn.Linear(12, 4) if linear else Conv1D(4, 12)
        with torch.no_grad():
            layer: Any
            for layer in (self.c_fc, self.c_proj):
                layer.bias.zero_()
                outputs, inputs = layer.weight.shape if linear else layer.weight.T.shape
                drawn = torch.randn(outputs, inputs, generator=generator)
                layer.weight.copy_(drawn if linear else drawn.T)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(self.c_fc(x).relu())


def test_the_two_models_are_twins() -> None:
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(Perceptron(linear=True)(x), Perceptron(linear=False)(x))


@pytest.mark.parametrize(
    "kind",
    [Conv1D, stand_in("transformers.modeling_utils"), Fused],
    ids=["where it is", "where it was in older releases", "a subclass"],
)
def test_it_is_a_known_layer_with_its_axes_swapped(kind: type[nn.Module]) -> None:
    (weight,) = find_prunable(nn.Sequential(kind(6, 4))).weights
    assert (weight.name, weight.out_dim, weight.in_dim) == ("0.weight", 1, 0)
    assert (weight.param.shape[weight.out_dim], weight.param.shape[weight.in_dim]) == (6, 4)


def test_another_class_of_that_name_is_not_known() -> None:
    layers = find_prunable(nn.Sequential(stand_in("somewhere.else")(6, 4), nn.Linear(2, 2)))
    assert [weight.name for weight in layers.weights] == ["1.weight"]


def masks_of(linear: bool, **knobs: Any) -> dict[str, Tensor]:
    """The masks of a first compression, as outputs x inputs."""
    model = Perceptron(linear)
    method = acdc.ACDC(schedule=acdc.Schedule.from_phases([("sparse", "1st")]), **knobs)
    sparsifier = acdc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
    sparsifier.begin_step()
    return {name: mask if linear else mask.T for name, mask in sparsifier.masks.items()}


@pytest.mark.parametrize("pattern", [Unstructured(), NM(2, 4), Block(2, 4), Channel()], ids=str)
@pytest.mark.parametrize("distribution", ["global", "uniform", "erk"])
def test_every_pattern_and_distribution_prunes_as_in_a_linear_layer(pattern: Pattern, distribution: str) -> None:
    if isinstance(pattern, NM):  # it gives every layer the same sparsity, whatever the distribution
        knobs: dict[str, object] = {"pattern": pattern}
    else:
        knobs = {"pattern": pattern, "distribution": distribution, "sparsity": 0.5}
    transposed, plain = masks_of(linear=False, **knobs), masks_of(linear=True, **knobs)
    assert transposed.keys() == plain.keys() == {"c_fc.weight", "c_proj.weight"}
    for name, mask in plain.items():
        assert torch.equal(transposed[name], mask), name
    assert not all(mask.all() for mask in plain.values())


def test_two_of_four_inputs_of_each_output_survive() -> None:
    for mask in masks_of(linear=False, pattern=NM(2, 4)).values():
        assert (mask.unflatten(1, (-1, 4)).sum(-1) == 2).all()


def test_inputs_that_do_not_divide_stay_dense() -> None:
    model = nn.Sequential(Conv1D(8, 6), Conv1D(6, 8))
    method = acdc.ACDC(pattern=NM(2, 4), epochs=10)
    assert [weight.name for weight in method.layers(model).weights] == ["1.weight"]
    assert method.layers(model).left_dense == {"0.weight": "6 input channels are not a multiple of 4"}


def revived(linear: bool) -> Tensor:
    """Outputs x inputs as a dense phase begins, after a compression that kept 4 weights of the first three outputs."""
    rows = torch.tensor([[3.0, 4.0, 0.1], [0.0, 0.1, 6.0], [1.0, 0.0, 8.0], [0.1, 0.1, 0.1], [0.2, 0.0, 0.0]])
    model = nn.Sequential(nn.Linear(3, 5) if linear else Conv1D(5, 3))
    with torch.no_grad():
        weight = model.get_parameter("0.weight").copy_(rows if linear else rows.T)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    phases = acdc.Schedule.from_phases([("sparse", "1st"), ("dense", "1st"), ("sparse", "1st")])
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=1 - 4 / 15, schedule=phases, revive=True))
    sparsifier.begin_step()
    optimizer.step()
    sparsifier.begin_step()
    return weight.detach() if linear else weight.detach().T


def test_revival_gives_whole_outputs_new_weights() -> None:
    assert torch.equal(revived(linear=False), revived(linear=True))
    assert (revived(linear=False)[3:] != 0).all()


def test_each_output_has_its_own_grid() -> None:
    rounded = []
    for linear in (True, False):
        model = Perceptron(linear)
        method = QuantisedACDC(bits=3, schedule=acdc.Schedule.from_phases([("sparse", "1st")]))
        sparsifier = acdc.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method)
        sparsifier.begin_step()
        weight = model.get_parameter("c_fc.weight").detach()
        rounded.append(weight if linear else weight.T)
    assert torch.equal(*rounded)


def test_dead_filters_are_outputs() -> None:
    model = nn.Sequential(Conv1D(6, 4))
    with torch.no_grad():
        model.get_parameter("0.weight").fill_(1)[:, 2] = 0
    layers = find_prunable(model)
    dynamics = Dynamics(layers, layers, forward_uses(model, torch.zeros(1, 4)))
    end = dynamics.phase_end(run="r", index=0, phase="p", kind="dense", epoch=0)
    assert (end.dead_filters, end.filters) == ({"0.weight": 1}, {"0.weight": 6})


def test_flops_are_those_of_the_linear_layers() -> None:
    """Weights, biases and activations; and nothing of it is beyond the count."""
    x = torch.zeros(3, 5, 8)
    plain, transposed = (Perceptron(linear) for linear in (True, False))
    with torch.no_grad():
        plain.get_parameter("c_fc.weight")[:6] = 0
        transposed.get_parameter("c_fc.weight")[:, :6] = 0
    flops = inference_flops(transposed, x)
    assert flops == inference_flops(plain, x)
    assert (flops.dense, flops.actual, flops.biases) == (2 * 5 * (96 + 48), 2 * 5 * (48 + 48), 5 * (12 + 4))
    assert not flops.lower_bound
    assert forward_uses(transposed, x) == {"c_fc.weight": 5, "c_proj.weight": 5}


def test_copies_stay_known() -> None:
    assert len(find_prunable(copy.deepcopy(Perceptron(linear=False))).weights) == 2
