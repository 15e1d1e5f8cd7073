"""Layers worked on together: the same values as each by itself, whatever their layout, device group or gradient."""

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.core.latent import Bundle, make_bundles
from acdc.sparsity.layers import Weight
from tests.warned import SMALL_NETS


def layers(*shapes: tuple[int, ...]) -> list[Weight]:
    torch.manual_seed(0)
    return [Weight(f"{i}", nn.Parameter(torch.randn(shape)), nn.Module(), "other") for i, shape in enumerate(shapes)]


def channels_last() -> list[Weight]:
    found = layers((4, 3, 2, 2), (5, 4), (2, 4, 3, 3))
    for weight in found[::2]:
        weight.param.data = weight.param.data.contiguous(memory_format=torch.channels_last)
    return found


def by_name(weights: list[Weight]) -> dict[str, Tensor]:
    return {weight.name: torch.randn_like(weight.param).detach() for weight in weights}


@pytest.mark.parametrize("weights", [layers((2, 3), (4,), (1, 2, 3, 3)), channels_last()])
def test_joined_tensors_keep_their_values_and_split_again(weights):
    bundle, tensors = Bundle(weights, 0), by_name(weights)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    flat = bundle.join(tensors)
    assert flat.shape == (bundle.size,)
    for name, view, weight in zip(before, bundle.split(flat), weights, strict=True):
        assert torch.equal(view, before[name])
        assert torch.equal(tensors[name], before[name])
        assert view.stride() == weight.param.stride()
    flat.fill_(7)
    assert all((tensor == 7).all() for tensor in tensors.values()), "what is by name is the same memory"
    assert bundle.join(tensors).data_ptr() == flat.data_ptr(), "moved once"
    tensors["1"] = torch.ones_like(tensors["1"])
    again = bundle.join(tensors)
    assert torch.equal(bundle.split(again)[1], torch.ones_like(tensors["1"]))


def test_one_layer_of_joined_tensors_is_seen_in_place():
    weights = channels_last()
    tensors = by_name(weights)
    flat = Bundle(weights, 0).join(tensors)
    alone = Bundle(weights[1:2], 0).join(tensors)
    alone.zero_()
    assert int((flat == 0).sum()) == weights[1].param.numel()


def test_a_tensor_that_has_holes_is_copied():
    weight = Weight("0", nn.Parameter(torch.randn(4, 6)[:, ::2]), nn.Module(), "other")
    bundle = Bundle([weight], 0)
    tensors = {"0": weight.param.detach()}
    flat = bundle.join(tensors)
    assert torch.equal(bundle.split(flat)[0], weight.param)
    assert flat.data_ptr() != weight.param.data_ptr()


def test_what_lies_together_is_one_without_a_copy():
    weights = channels_last()
    for weight in weights:
        one = Bundle([weight], 0).as_one([weight.param])
        assert one is not None
        assert one.data_ptr() == weight.param.data_ptr()
        assert one.shape == (weight.param.numel(),)
        assert not one.requires_grad
    assert Bundle(weights, 0).as_one([weight.param for weight in weights]) is None
    assert Bundle(weights[:1], 0).as_one([weights[0].param.contiguous()]) is None, "another order in memory"


def test_sums_and_values_of_layers():
    weights = layers((2, 3), (4,), (1,))
    bundle = Bundle(weights, 0)
    flat = torch.arange(11.0)
    assert bundle.sums(flat).tolist() == [15, 30, 10]
    assert bundle.spread(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1] * 6 + [2] * 4 + [3]
    assert Bundle(weights[:1], 0).spread(torch.tensor([5.0])).tolist() == 5


def test_pieces_match():
    bundle = Bundle(layers((600, 400)), 0)
    flat = torch.arange(float(bundle.size))
    pieces = list(bundle.pieces(flat, -flat))
    assert torch.equal(torch.cat([one for one, _ in pieces]), flat)
    assert all(torch.equal(one, -other) for one, other in pieces)
    assert max(one.numel() for one, _ in pieces) <= 1 << 17


def test_layers_of_one_kind_and_group_come_together_until_the_cache_is_full():
    weights = [*layers((400, 400), (300, 300), (10, 10), (1000, 1000)), *layers((5, 5))]
    weights[2].param.data = weights[2].param.data.double()
    optimizer = torch.optim.SGD([{"params": [w.param for w in weights[:4]]}, {"params": [weights[4].param]}])
    found = [([w.name for w in bundle.weights], bundle.group) for bundle in make_bundles(weights, optimizer)]
    assert found == [(["0", "1"], 0), (["3"], 0), (["2"], 0), (["0"], 1)]


@pytest.mark.parametrize("name", ["top_kast", "str", "sr_ste", "sparse_vd"])
@SMALL_NETS
def test_layers_without_a_gradient_are_left_out(name):
    """The first layer is not part of the loss: neither it nor what a method remembers of it moves."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 8, bias=False) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    knobs = {"top_kast": {"sparsity": 0.5}, "str": {"start": -4.0, "decay": 0.1}}.get(name, {})
    schedule = acdc.Schedule.from_phases([("sparse", "10st")])
    sparsifier = acdc.attach(model, optimizer, acdc.methods.build(name, schedule=schedule, **knobs))
    before = {layer: weight.clone() for layer, weight in sparsifier.context.weights.items()}
    for _ in range(3):
        optimizer.zero_grad()
        model[2](model[1](torch.randn(4, 8))).square().sum().backward()
        optimizer.step()
    moved = {layer: not torch.equal(weight, before[layer]) for layer, weight in sparsifier.context.weights.items()}
    assert moved == {"0.weight": False, "1.weight": True, "2.weight": True}
    for key in ("s", "log_variance"):
        values = sparsifier.context.memory.get(key)
        if values:
            assert (values["0.weight"] == {"s": -4.0, "log_variance": -10.0}[key]).all()
            assert not (values["1.weight"] == {"s": -4.0, "log_variance": -10.0}[key]).all()
