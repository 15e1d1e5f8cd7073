"""Floors: no layer of a group keeps less, the total stays exact, and the others are ranked as before."""

from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import acdc
from acdc.sparsity.distributions import Budget, budgets, erk_counts
from acdc.sparsity.floors import with_floors, write_masks
from acdc.sparsity.layers import Weight
from acdc.sparsity.masks import new_mask
from acdc.sparsity.patterns import Pattern
from acdc.sparsity.topk import WHOLE, Shards, top_k
from tests.sparsity.workers import on_workers

shapes = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=6)


def layers_of(shapes: list[tuple[int, ...]], scales: list[float], seed: int = 0) -> list[Weight]:
    """Linear layers whose weights are as large as their scale."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Weight(
            f"{i}.weight",
            nn.Parameter(scale * torch.randn(shape, generator=generator, dtype=torch.float64)),
            nn.Identity(),
            "linear",
        )
        for i, (shape, scale) in enumerate(zip(shapes, scales, strict=True))
    ]


def masks_of(layers: list[Weight], shares: list[Budget], pattern: Pattern | None = None) -> dict[str, Tensor]:
    scores = {w.name: w.param.detach() for w in layers}
    masks = {name: new_mask(score) for name, score in scores.items()}
    write_masks(pattern or acdc.Unstructured(), layers, scores, shares, masks)
    return {name: mask != 0 for name, mask in masks.items()}


def reference(layers: list[Weight], keep: int, share: Fraction) -> dict[str, set[int]]:
    """The same, slowly: fix every layer below its floor at it, rank the others anew, until none is below."""
    counts = erk_counts([tuple(w.param.shape) for w in layers], keep)
    floors = {w.name: max(int(share * c), min(1, c)) for w, c in zip(layers, counts, strict=True)}
    ranked = sorted(
        ((abs(v), w.name, i) for w in layers for i, v in enumerate(w.param.detach().flatten().tolist())), reverse=True
    )
    fixed: dict[str, int] = {}
    while True:
        kept: dict[str, set[int]] = {w.name: set() for w in layers}
        for name, floor in fixed.items():
            kept[name] = {i for _, _, i in [entry for entry in ranked if entry[1] == name][:floor]}
        free = [entry for entry in ranked if entry[1] not in fixed]
        for _, name, i in free[: keep - sum(fixed.values())]:
            kept[name].add(i)
        low = [name for name in kept if name not in fixed and len(kept[name]) < floors[name]]
        if not low:
            return kept
        fixed |= {name: floors[name] for name in low}


@settings(deadline=None, max_examples=150)
@given(shapes, st.data(), st.sampled_from([0.25, 0.5, 0.75, 1.0]), st.integers(0, 99))
def test_floors_hold_and_the_total_is_exact(
    shapes: list[tuple[int, ...]], data: st.DataObject, share: float, seed: int
) -> None:
    scales = [10.0 ** data.draw(st.integers(-3, 3)) for _ in shapes]
    sparsity = data.draw(st.sampled_from([0.3, 0.5, 0.9, 0.98]))
    layers = layers_of(shapes, scales, seed)
    total = sum(w.param.numel() for w in layers)
    assume(round(sparsity * total) < total)
    (budget,) = with_floors(budgets("global", layers, sparsity), layers, share)
    masks = masks_of(layers, [budget])
    assert sum(int(mask.sum()) for mask in masks.values()) == budget.keep == total - round(sparsity * total)
    assert sum(budget.floors) <= budget.keep
    assert all(int(masks[name].sum()) >= floor for name, floor in zip(budget.names, budget.floors, strict=True))
    expected = reference(layers, budget.keep, Fraction(share))
    assert {name: set(mask.flatten().nonzero().flatten().tolist()) for name, mask in masks.items()} == expected


def test_a_layer_with_small_weights_keeps_its_floor_and_no_more() -> None:
    layers = layers_of([(40, 40), (40, 40), (40, 40)], [1.0, 1e-6, 1.0])
    keep = 480
    plain = masks_of(layers, [Budget(tuple(w.name for w in layers), keep)])
    assert int(plain["1.weight"].sum()) == 0
    (budget,) = with_floors([Budget(tuple(w.name for w in layers), keep)], layers, 0.75)
    assert budget.floors == (120, 120, 120)  # of 160 each, as the layers are alike
    masks = masks_of(layers, [budget])
    assert [int(masks[w.name].sum()) for w in layers][1] == 120
    others = top_k({w.name: w.param.detach() for w in (layers[0], layers[2])}, 360)
    assert all(torch.equal(masks[name], mask != 0) for name, mask in others.items())


def test_no_layer_is_emptied_that_erk_would_not_empty() -> None:
    layers = layers_of([(256, 8), (256, 256), (8, 256), (1, 8)], [1.0, 1.0, 1.0, 1e-3])
    shares = budgets("global", layers, 0.999)
    assert int(masks_of(layers, shares)["3.weight"].sum()) == 0
    floored = masks_of(layers, with_floors(shares, layers, 0.75))
    assert [int(mask.sum()) for mask in floored.values()] == [13, 43, 13, 1]


def test_a_layer_without_weights_takes_none() -> None:
    layers = layers_of([(10, 10), (0, 10), (10, 10)], [1.0, 1.0, 1e-6])
    (budget,) = with_floors(budgets("global", layers, 0.5), layers, 0.5)
    assert budget.floors == (25, 0, 25)
    assert [int(mask.sum()) for mask in masks_of(layers, [budget]).values()] == [75, 0, 25]
    assert [b.keep for b in budgets("erk", layers, 0.5)] == [50, 0, 50]


def test_a_pattern_sees_the_layers_of_the_budgets_it_is_given() -> None:
    class EachHasABudget(acdc.Unstructured):
        def write_masks(self, weights, scores, budgets, out, shards=WHOLE) -> None:
            assert [weight.name for weight in weights] == [name for budget in budgets for name in budget.names]
            super().write_masks(weights, scores, budgets, out, shards)

    layers = layers_of([(20, 20), (20, 20), (9, 9)], [1.0, 1e-6, 1.0])
    shares = with_floors(budgets({"2.weight": {"uniform": 0.5}}, layers, 0.9), layers, 0.75)
    masks = masks_of(layers, shares, EachHasABudget())
    assert int(masks["1.weight"].sum()) == 30


def test_where_no_layer_is_below_nothing_changes() -> None:
    layers = layers_of([(30, 20), (20, 30)], [1.0, 1.0])
    shares = budgets("global", layers, 0.5)
    plain, floored = masks_of(layers, shares), masks_of(layers, with_floors(shares, layers, 0.5))
    assert all(torch.equal(plain[name], floored[name]) for name in plain)


def test_budgets_of_single_layers_have_no_floor() -> None:
    layers = layers_of([(30, 20), (20, 30), (9, 9)], [1.0, 1.0, 1.0])
    for distribution in ("uniform", "erk", {"0.weight": 0.5}):
        shares = budgets(distribution, layers, 0.9)
        assert with_floors(shares, layers, 0.75) == shares
    grouped = with_floors(budgets({"2.weight": {"uniform": 0.5}}, layers, 0.9), layers, 0.75)
    assert [(b.names, bool(b.floors)) for b in grouped] == [(("0.weight", "1.weight"), True), (("2.weight",), False)]


@pytest.mark.parametrize("pattern", [acdc.Block(4, 4), acdc.Channel()])
def test_other_patterns_come_as_near_as_their_units_allow(pattern: Pattern) -> None:
    layers = [
        Weight(w.name, w.param, nn.Linear(1, 1), "linear")
        for w in layers_of([(32, 32), (32, 32), (32, 32)], [1.0, 1e-6, 1.0])
    ]
    shares = with_floors(budgets("global", layers, 0.5), layers, 0.75)
    kept = {name: int(mask.sum()) for name, mask in masks_of(layers, shares, pattern).items()}
    assert kept == {"0.weight": kept["0.weight"], "1.weight": 384, "2.weight": 1536 - 384 - kept["0.weight"]}


def test_what_whole_channels_leave_of_a_floor_goes_to_the_other_layers() -> None:
    """Floors of 306 or 307 weights are 4 channels of 64, and about 51 of each are left."""
    layers = [
        Weight(w.name, w.param, nn.Linear(1, 1), "linear") for w in layers_of([(64, 64)] * 12, [1.0, *[1e-6] * 11])
    ]
    shares = with_floors(budgets("global", layers, 0.9), layers, 0.75)
    assert set(shares[0].floors) == {306, 307}
    kept = [int(mask.sum()) for mask in masks_of(layers, shares, acdc.Channel()).values()]
    assert kept[1:] == [256] * 11
    assert sum(kept) == shares[0].keep // 64 * 64


def test_shards_choose_as_the_whole_does() -> None:
    layers = layers_of([(24, 10), (24, 30), (24, 10)], [1.0, 1e-4, 10.0])
    shares = with_floors(budgets("global", layers, 0.8), layers, 0.75)
    whole = masks_of(layers, shares)
    pieces = [{w.name: w.param.detach().chunk(3)[index] for w in layers} for index in range(3)]

    def choose(piece: dict[str, Tensor], shards: Shards) -> dict[str, Tensor]:
        masks = {name: new_mask(score) for name, score in piece.items()}
        write_masks(acdc.Unstructured(), layers, piece, shares, masks, shards)
        return masks

    parts = on_workers(pieces, choose)
    for weight in layers:
        assert torch.equal(torch.cat([part[weight.name] for part in parts]) != 0, whole[weight.name])


def test_a_method_raises_its_floors_with_its_sparsity() -> None:
    model = nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40))
    with torch.no_grad():
        model.get_parameter("0.weight").mul_(1e-6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    method = acdc.methods.GMP(sparsity=0.9, epochs=10, floor=0.5)
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=1, quiet=True)
    least = []
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.ones(1, 40)).sum().backward()
        optimizer.step()
        zeros = {name: round(share * 1600) for name, share in sparsifier.layer_sparsity.items()}
        least.append((1600 - zeros["0.weight"]) / (3200 - sum(zeros.values())))
    result = sparsifier.finish()
    assert result.sparsity == pytest.approx(0.9)
    assert least[-1] == pytest.approx(0.25)  # half of an even share: 80 of 320
    assert min(least) >= 0.25 - 0.01, least  # floors are whole numbers of weights
    assert method.config()["floor"] == 0.5
    assert "floor" not in acdc.methods.GMP(sparsity=0.9, epochs=10).config()  # as in checkpoints from before
