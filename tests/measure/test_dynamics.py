"""Where phases end: a tiny case worked by hand, and what it costs to look."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from acdc import find_prunable
from acdc.flops.counting import weight_flops
from acdc.measure import dynamics
from acdc.measure.dynamics import BINS, Dynamics, PhaseEnd, edge, nonzeros, threshold
from acdc.schedule import Kind
from acdc.sparsity import masks as working

NAMES = ("0.weight", "1.weight")


def model() -> nn.Sequential:
    """10 prunable weights: 2 outputs x 3 inputs, then 2 x 2."""
    return nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 2, bias=False))


def write(net: nn.Sequential, first: list[float], second: list[float]) -> None:
    with torch.no_grad():
        net.get_parameter("0.weight").copy_(torch.tensor(first).view(2, 3))
        net.get_parameter("1.weight").copy_(torch.tensor(second).view(2, 2))


def watched(net: nn.Module, uses: dict[str, float] | None = None) -> Dynamics:
    layers = find_prunable(net)
    return Dynamics(layers, layers, uses or {weight.name: 1.0 for weight in layers.weights})


def end(seen: Dynamics, kind: Kind, masks: dict[str, Tensor] | None = None, index: int = 0) -> PhaseEnd:
    return seen.phase_end(run="acdc", index=index, phase="phase", kind=kind, epoch=index, masks=masks)


# By hand


def test_three_phases_by_hand() -> None:
    net = model()
    seen = watched(net, {"0.weight": 5.0, "1.weight": 1.0})

    write(net, [1.0, 0.5, 0, 0, 0, 0], [2.0, 0, 0.25, 0])  # 4 of 10 kept; the first layer's second output is dead
    first = end(seen, "sparse", index=1)
    assert first.nonzero == {"0.weight": 2, "1.weight": 2}
    assert first.size == {"0.weight": 6, "1.weight": 4}
    assert first.dead_filters == {"0.weight": 1, "1.weight": 0}
    assert first.filters == {"0.weight": 2, "1.weight": 2}
    assert first.flops == 2 * (5 * 2 + 1 * 2)
    assert (first.mask_change, first.regrown, first.explored, first.inactive) == (None, None, 0.4, None)
    assert sum(first.histogram) == 4

    write(net, [1.0, 0.5, 0.1, 0, -0.1, 0.1], [2.0, 0.1, 0.25, 0])  # 2 of the 6 pruned have not moved
    dense = end(seen, "dense", index=2)
    assert dense.inactive == pytest.approx(0.2)
    assert dense.dead_filters == {"0.weight": 0, "1.weight": 0}
    assert (dense.mask_change, dense.regrown, dense.explored) == (None, None, None)

    write(net, [1.0, 0, 0, 0, -0.5, 0], [2.0, 0.5, 0, 0])  # 2 weights left the mask, 2 came
    second = end(seen, "sparse", index=3)
    assert second.mask_change == pytest.approx(100 * 4 / 10)
    assert second.regrown == 2 / 4
    assert second.explored == pytest.approx(0.6)
    assert second.dead_filters == {"0.weight": 0, "1.weight": 1}

    third = end(seen, "sparse", index=4)
    assert (third.mask_change, third.regrown, third.explored) == (0, 0, pytest.approx(0.6))


def test_magnitudes_and_where_the_next_compression_cuts() -> None:
    net = model()
    write(net, [1.0, 1.01, 2.0, 0, 0, 4.0], [-8.0, 0.125, 1e-20, 1e20])
    found = end(watched(net), "dense")
    zero = BINS * 30 // 34  # where log2 |w| = 0
    filled = {index: count for index, count in enumerate(found.histogram) if count}
    expected = {0: 1, zero - 30: 1, zero: 2, zero + 10: 1, zero + 20: 1, zero + 30: 1, BINS - 1: 1}
    assert filled == expected, "ten bins to a factor of two, and those beyond the ends in the outermost"
    assert [edge(index) for index in (0, zero, BINS)] == [2.0**-30, 1, 16]

    def cut(sparsity: float) -> float | None:
        return threshold(found.histogram, 2, sparsity)

    assert cut(0.1) is None
    assert cut(0.2) is None, "as many are zero already"
    assert cut(0.3) == edge(1)
    assert cut(0.4) == edge(zero - 29)
    assert cut(0.5) == cut(0.6) == edge(zero + 1), "1 and 1.01 are in one bin"
    assert cut(0.7) == edge(zero + 11)
    assert cut(1.0) == edge(BINS) == 16


def test_a_kept_weight_that_is_0_is_kept_where_the_masks_are_given() -> None:
    net = model()
    seen = watched(net)
    masks = {"0.weight": torch.tensor([[1, 1, 0], [0, 0, 0]]).bool(), "1.weight": torch.ones(2, 2).bool()}
    write(net, [1.0, 0, 0, 0, 0, 0], [1.0, 1.0, 1.0, 1.0])  # 0.weight[0, 1] is kept and has become 0
    assert end(seen, "sparse", masks).explored == 0.6
    write(net, [1.0, 3.0, 0, 0, 0, 0], [1.0, 1.0, 1.0, 1.0])
    again = end(seen, "sparse", masks)
    assert (again.mask_change, again.regrown) == (0, 0)
    assert again.nonzero == {"0.weight": 2, "1.weight": 4}, "of the weights as they are"


def test_working_masks_will_do_too() -> None:
    net, kept = model(), {name: torch.tensor([True, False]) for name in NAMES}
    bools = {"0.weight": kept["0.weight"][:, None].expand(2, 3), "1.weight": kept["1.weight"][:, None].expand(2, 2)}
    seen = watched(net)
    assert end(seen, "sparse", {name: working.from_bool(mask) for name, mask in bools.items()}).explored == 0.5
    assert end(seen, "sparse", bools).mask_change == 0


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=10, max_size=10), min_size=2, max_size=5))
def test_as_counted_with_all_masks_at_hand(history: list[list[bool]]) -> None:
    net = model()
    seen = watched(net)
    for index, now in enumerate(history):
        write(net, [float(kept) for kept in now[:6]], [float(kept) for kept in now[6:]])
        found = end(seen, "sparse", index=index)
        assert found.explored == sum(any(column) for column in zip(*history[: index + 1], strict=True)) / 10
        if index:
            before = history[index - 1]
            assert found.mask_change == 10 * sum(a != b for a, b in zip(now, before, strict=True))
            grown = sum(a and not b for a, b in zip(now, before, strict=True))
            assert found.regrown == grown / max(1, sum(now))


# Layouts and layers


def pruned_conv(seed: int) -> nn.Conv2d:
    layer = nn.Conv2d(4, 6, 3)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
        layer.weight[torch.rand(layer.weight.shape, generator=generator) < 0.7] = 0
        layer.weight[seed % 6] = 0
    return layer


def test_channels_last_weights_give_the_same() -> None:
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        net = nn.Sequential(pruned_conv(1)).to(memory_format=layout)  # pyright: ignore[reportCallIssue]  # torch's stub
        assert net[0].weight.is_contiguous(memory_format=layout)
        seen = watched(net)
        ends = [end(seen, "sparse")]
        net[0].load_state_dict(pruned_conv(2).state_dict())
        ends.append(end(seen, "sparse", index=1))
        results.append([asdict(each) for each in ends])
    assert results[0] == results[1]
    assert results[0][1]["mask_change"] > 10
    assert results[0][1]["dead_filters"] == {"0.weight": 1}


@pytest.mark.parametrize("groups", [1, 2])
def test_dead_filters_of_transposed_convolutions(groups: int) -> None:
    layer = nn.ConvTranspose2d(4, 6, 2, groups=groups)  # 4 x (6 / groups) x 2 x 2
    with torch.no_grad():
        layer.weight.fill_(1)
        layer.weight[: 4 // groups, 0] = 0  # the first output of the first group
    found = end(watched(nn.Sequential(layer)), "dense")
    assert (found.dead_filters, found.filters) == ({"0.weight": 1}, {"0.weight": 6})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_number_formats(dtype: torch.dtype) -> None:
    net = model()
    write(net, [1.0, 0.5, 0, 0, 0, 0], [2.0, 0, 0.25, 0])
    assert asdict(end(watched(net), "sparse")) == asdict(end(watched(net.to(dtype)), "sparse"))


def test_layers_that_are_not_pruned_count_towards_flops_only() -> None:
    net = model()
    write(net, [1.0, 0.5, 0, 0, 0, 0], [2.0, 0, 0.25, 0])
    seen = Dynamics(find_prunable(net), find_prunable(net, exclude=["1"]), {"0.weight": 1.0, "1.weight": 1.0})
    found = end(seen, "sparse")
    assert (found.flops, found.explored, sum(found.histogram)) == (8, 2 / 6, 2)
    assert end(seen, "dense").inactive == pytest.approx(4 / 6)


def test_large_layers_are_counted_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(pruned_conv(1))
    whole = end(watched(net), "dense")
    monkeypatch.setattr(dynamics, "_CHUNK", 10)
    assert end(watched(net), "dense") == whole
    assert sum(whole.histogram) == nonzeros(find_prunable(net))["0.weight"]


def test_flops_of() -> None:
    assert weight_flops({"a": 3, "b": 2}, {"a": 4.0, "b": 0.5, "unused": 9.0}) == 2 * (12 + 1)


# State


def test_two_packed_masks_are_all_it_keeps() -> None:
    net = nn.Sequential(nn.Linear(100, 37, bias=False))
    seen = watched(net)
    assert seen.state_dict() == {"last": {}, "union": {}}
    for index in range(3):
        end(seen, "sparse", index=index)
        end(seen, "dense", index=index)
    kept = [held for part in seen.state_dict().values() for held in part.values()]
    assert [(held.dtype, held.numel()) for held in kept] == [(torch.uint8, 463)] * 2  # 3,700 bits each


def test_taken_up_between_phases_it_says_the_same(tmp_path) -> None:
    nets = [pruned_conv(seed) for seed in range(3)]
    net = nn.Sequential(nn.Conv2d(4, 6, 3))
    whole, told = watched(net), []
    for index, source in enumerate(nets):
        net[0].load_state_dict(source.state_dict())
        told.append(end(whole, "sparse", index=index))
        if index == 1:
            torch.save(whole.state_dict(), tmp_path / "state.pt")
    resumed = watched(net)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert end(resumed, "sparse", index=2) == told[2]


# Cost


class Syncs(TorchDispatchMode):
    """Counts what would make a GPU wait: numbers read from tensors, copies to the CPU, shapes that depend on values."""

    WAITS = ("_local_scalar_dense", "nonzero", "equal", "_to_copy.cpu", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        name = func.overloadpacket.__name__
        if name in self.WAITS or (name == "index" and any(t.dtype == torch.bool for t in args[1] if t is not None)):
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def counting_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """tolist() reads a whole tensor at once, below the dispatcher."""
    reads: list[str] = []
    real = Tensor.tolist
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "tolist", lambda self: reads.append("tolist") or real(self))
        with Syncs() as syncs:
            yield reads
    reads += syncs.seen


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_the_device_is_asked_once(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(*(nn.Conv2d(4, 4, 3) for _ in range(5)))
    seen = watched(net)
    end(seen, "sparse")
    with counting_reads(monkeypatch) as reads:
        end(seen, kind, index=1)
    assert reads == ["tolist"]
    with counting_reads(monkeypatch) as reads:
        nonzeros(find_prunable(net))
    assert reads == ["tolist"]


def test_the_counter_of_syncs_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with counting_reads(monkeypatch) as reads:
        int(torch.ones(3).sum())
        torch.ones(3)[torch.ones(3) > 0]
    assert len(reads) == 2
