"""The device under test (ACDC_TEST_DEVICE) takes the same masks as the slow reference on the CPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import acdc
from acdc.methods.lottery import LotteryTicket
from acdc.sparsity import topk
from acdc.sparsity.masks import apply_, pack, unpack
from acdc.sparsity.topk import top_k, top_k_reference
from tests.conformance.harness import DEVICE

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def scores(dtype: torch.dtype, distinct: int, seed: int) -> dict[str, torch.Tensor]:
    """Layers of uneven sizes and layouts; few distinct values make many ties."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, 5), (64, 33), (16, 8, 3, 3), (1,), (0, 4), (257, 31)]
    layers = {
        f"layer{i}": (torch.randn(shape, generator=generator) * distinct).round().div(distinct).to(dtype)
        for i, shape in enumerate(shapes)
    }
    layers["layer2"] = layers["layer2"].to(memory_format=torch.channels_last)
    return layers


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("distinct", [2, 1000])
@pytest.mark.parametrize("k", [0, 1, 500, 6000, 11247])
def test_same_masks_as_the_reference(dtype, distinct, k):
    here = scores(dtype, distinct, k)
    there = {name: score.to(DEVICE) for name, score in here.items()}
    masks, expected = top_k(there, k), top_k_reference(here, k)
    for name, mask in masks.items():
        assert mask.device.type == DEVICE
        assert torch.equal(mask.cpu(), expected[name])
        assert torch.equal(unpack(pack(mask), there[name]), mask)
        apply_(there[name], mask)
        assert torch.equal(there[name].cpu(), here[name].where(expected[name] != 0, 0))


def test_same_masks_when_only_deterministic_algorithms_are_allowed():
    here = scores(torch.float32, 100, 0)
    torch.use_deterministic_algorithms(True)
    try:
        masks = top_k({name: score.to(DEVICE) for name, score in here.items()}, 3000)
    finally:
        torch.use_deterministic_algorithms(False)
    for name, expected in top_k_reference(here, 3000).items():
        assert torch.equal(masks[name].cpu(), expected)


def test_layers_on_several_devices_in_one_call():
    here = scores(torch.float32, 50, 1)
    there = {name: score.to(DEVICE if i % 2 else "cpu") for i, (name, score) in enumerate(here.items())}
    for names in (list(here), list(reversed(here))):
        masks = top_k({name: there[name] for name in names}, 2000)
        expected = top_k_reference({name: here[name] for name in names}, 2000)
        assert all(torch.equal(masks[name].cpu(), expected[name]) for name in names)


def test_many_chunks(monkeypatch):
    monkeypatch.setattr(topk, "_chunk", lambda _: 1000)
    here = scores(torch.float32, 20, 2)
    masks = top_k({name: score.to(DEVICE) for name, score in here.items()}, 4321)
    for name, expected in top_k_reference(here, 4321).items():
        assert torch.equal(masks[name].cpu(), expected)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    for item in value.values() if isinstance(value, dict) else ():
        yield from tensors(item)


@pytest.mark.parametrize("resumed", [False, True])
def test_what_a_method_remembers_on_the_host_stays_there(resumed):
    schedule = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "4st")])
    method = LotteryTicket(sparsity=0.75, schedule=schedule, rounds=3, rewind="1st")

    def attached() -> tuple[torch.nn.Module, torch.optim.Optimizer, acdc.Sparsifier]:
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return model, optimizer, acdc.attach(model, optimizer, method)

    model, optimizer, sparsifier = attached()
    for step in range(6):
        if step == 2 and resumed:
            states = [one.state_dict() for one in (model, optimizer, sparsifier)]
            model, optimizer, sparsifier = attached()
            for one, state in zip((model, optimizer, sparsifier), states, strict=True):
                one.load_state_dict(state)
        sparsifier.begin_step()
        optimizer.zero_grad()
        model(torch.ones(2, 8, device=DEVICE)).sum().backward()
        optimizer.step()
        if step > 0:
            kept = list(tensors(sparsifier.context.memory["start"]))
            assert kept
            assert {tensor.device.type for tensor in kept} == {"cpu"}
    assert sparsifier.finish().sparsity == 0.75
