"""AC/DC beyond the paper: knobs whose worth is to be measured. The method itself: tests/core/test_sparsifier.py."""

from typing import Any, TypedDict, Unpack

import pytest
import torch
from torch import nn

import acdc
from tests.warned import LATE_STARTS, SMALL_NETS


class Knobs(TypedDict, total=False):
    gradual: bool
    revive: bool


def sparsities(**knobs: Unpack[Knobs]) -> list[float]:
    """After each compression of three, on a hundred weights."""
    torch.manual_seed(0)
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases = [("dense", "1st"), ("sparse", "1st")] * 3
    sparsifier = acdc.attach(
        model, optimizer, acdc.ACDC(sparsity=0.9, schedule=acdc.Schedule.from_phases(phases), **knobs)
    )
    seen = []
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().sum().backward()
        optimizer.step()
        seen.append(sparsifier.sparsity)
    assert sparsifier.finish().sparsity == pytest.approx(0.9)
    return seen[1::2]


def test_sparsity_rises_from_compression_to_compression() -> None:
    """0.9 · (1 − (2/3)³) = 0.6333, 0.9 · (1 − (1/3)³) = 0.8667, and the target itself."""
    assert sparsities(gradual=True) == pytest.approx([0.63, 0.87, 0.90])
    assert sparsities() == pytest.approx([0.9, 0.9, 0.9])


def test_a_pattern_with_one_sparsity_cannot_rise() -> None:
    with pytest.raises(ValueError, match="has one sparsity only; omit gradual"):
        acdc.ACDC(pattern=acdc.NM(2, 4), epochs=10, gradual=True)


# Filters that a compression took whole


def decompressed(
    rows: list[list[float]], kept: int, layer: type[nn.Module] = nn.Linear, **knobs: Unpack[Knobs]
) -> torch.Tensor:
    """The weights as a dense phase begins, where `kept` of them survived the compression before."""
    weight = torch.tensor(rows)
    if layer is nn.Linear:
        model = nn.Sequential(nn.Linear(*weight.T.shape, bias=False))
    else:
        weight = weight.T[..., None]  # inputs x outputs x positions
        model = nn.Sequential(nn.ConvTranspose1d(*weight.shape, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    phases = acdc.Schedule.from_phases([("sparse", "1st"), ("dense", "1st"), ("sparse", "1st")])
    method = acdc.ACDC(sparsity=1 - kept / weight.numel(), schedule=phases, **knobs)
    sparsifier = acdc.attach(model, optimizer, method)
    sparsifier.begin_step()
    optimizer.step()
    sparsifier.begin_step()
    assert sparsifier.phase.kind == "dense"
    found = model.get_parameter("0.weight").detach()
    return found if layer is nn.Linear else found[..., 0].T


ROWS = [[3.0, 4.0, 0.1], [0.1, 0.1, 0.1], [0.0, 0.1, 6.0], [1.0, 0.0, 8.0], [0.2, 0.0, 0.0]]


@pytest.mark.parametrize("layer", [nn.Linear, nn.ConvTranspose1d])
def test_filters_pruned_whole_are_revived_beside_the_median_of_the_others(layer: type[nn.Module]) -> None:
    """Kept are 8, 6, 4 and 3: norms 5, 6 and 8, whose median is 6; rows 1 and 4 have nothing left."""
    weights = decompressed(ROWS, 4, layer, revive=True)
    assert weights[[0, 2, 3]].tolist() == [[3, 4, 0], [0, 0, 6], [0, 0, 8]]
    assert weights[[1, 4]].norm(dim=1).tolist() == pytest.approx([6, 6])
    assert (weights[[1, 4]] != 0).all()
    assert not torch.allclose(weights[1], weights[4])
    assert torch.equal(weights, decompressed(ROWS, 4, layer, revive=True)), "a function of the step"


def test_without_revive_they_start_at_zero_as_in_the_paper() -> None:
    assert decompressed(ROWS, 4)[[1, 4]].count_nonzero() == 0


@SMALL_NETS
def test_a_layer_without_a_weight_begins_as_torch_would_draw_it() -> None:
    """One layer of two keeps all: the first is made of weights too small beside the other's."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    phases = acdc.Schedule.from_phases([("sparse", "1st"), ("dense", "1st"), ("sparse", "1st")])
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.5, schedule=phases, revive=True))
    sparsifier.begin_step()
    assert model.get_parameter("0.weight").count_nonzero() == 0
    optimizer.step()
    sparsifier.begin_step()
    assert model.get_parameter("0.weight").norm(dim=1).tolist() == pytest.approx([3**-0.5] * 4)


@pytest.mark.parametrize("call", ["the model", "no module", "the compiled model"])
@LATE_STARTS
def test_filters_come_back_in_a_loop_that_is_told_nothing(call: str) -> None:
    """Weights must not change between a forward pass and its backward pass, whenever the phase is noticed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases = acdc.Schedule.from_phases([("sparse", "1st"), ("dense", "1st"), ("sparse", "1st")])
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, schedule=phases, revive=True))
    compiled = torch.compile(model, backend="eager") if call == "the compiled model" else model
    dead = []
    for _ in range(3):
        optimizer.zero_grad()
        outputs = torch.randn(4, 8)
        if call == "no module":
            for index in (0, 2, 4):
                weight, bias = model.get_parameter(f"{index}.weight"), model.get_parameter(f"{index}.bias")
                outputs = nn.functional.linear(outputs, weight, bias)
        else:
            outputs = compiled(outputs)
        outputs.square().sum().backward()
        optimizer.step()
        dead.append(int((model.get_parameter("2.weight") == 0).all(1).sum()))
    assert dead[0] > 0, "a compression took whole filters of the inner layer"
    assert dead[1] == 0, "which a decompression gave back"
    assert sparsifier.finish().sparsity == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize("knob", ["revive", "gradual", "first_and_last_dense"])
def test_a_switch_is_on_or_off(knob: str) -> None:
    """Any number but 0 would turn it on."""
    wrong: dict[str, Any] = {knob: 0.3}
    with pytest.raises(ValueError, match=rf"{knob}=0\.3: expected True or False"):
        acdc.ACDC(sparsity=0.9, epochs=10, **wrong)
