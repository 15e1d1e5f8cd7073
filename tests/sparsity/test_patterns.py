"""The shapes zeros may take: each pattern against brute force, and what each refuses."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.sparse import _semi_structured_conversions as semi_structured

import acdc
from acdc import NM, Block, Channel, Unstructured
from acdc.core.method import Method
from acdc.errors import NotFiniteError
from acdc.methods.quantised import QuantisedACDC
from acdc.sparsity import patterns
from acdc.sparsity.distributions import Budget, budgets
from acdc.sparsity.layers import Weight
from acdc.sparsity.masks import new_mask
from acdc.sparsity.patterns import Pattern
from acdc.sparsity.prunable import find_prunable
from acdc.sparsity.topk import WHOLE, Shards, top_k
from tests.sparsity.tensors import LAYOUTS, lay_out
from tests.sparsity.workers import on_workers

some = settings(deadline=None, max_examples=50)
PATTERNS: list[Pattern] = [Unstructured(), NM(2, 4), Block(2, 2), Channel()]
by_name = pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: type(pattern).__name__)


def layers_of(*modules: nn.Module) -> list[Weight]:
    return list(find_prunable(nn.Sequential(*modules)).weights)


def scores_of(weights: Sequence[Weight], seed: int = 0, layout: str = "contiguous") -> dict[str, Tensor]:
    """Distinct magnitudes with random signs, so that every brute force has one answer."""
    generator = torch.Generator().manual_seed(seed)
    scores = {}
    for weight in weights:
        values = torch.randperm(weight.param.numel(), generator=generator).float() + 1
        signs = 1 - 2 * torch.randint(0, 2, values.shape, generator=generator)
        scores[weight.name] = lay_out((values * signs).view(weight.param.shape), layout)
    return scores


def masks_of(
    pattern: Pattern,
    weights: Sequence[Weight],
    scores: dict[str, Tensor],
    sparsity: float = 0.5,
    distribution: str = "global",
) -> dict[str, Tensor]:
    """The masks as booleans. They are written over what was there, in the layout of the scores."""
    out = {name: new_mask(score).fill_(77) for name, score in scores.items()}
    pattern.write_masks(weights, scores, budgets(distribution, weights, sparsity), out)
    for name, mask in out.items():
        assert set(mask.flatten().tolist()) <= {0, -1}, name
    return {name: mask != 0 for name, mask in out.items()}


def groups_of(tensor: Tensor, weight: Weight, m: int) -> list[tuple[tuple[int, ...], ...]]:
    """The index groups of N:M, spelled out: m consecutive input channels of one output channel and kernel position."""
    inputs = range(0, tensor.shape[weight.in_dim], m)
    others = [range(n) for axis, n in enumerate(tensor.shape) if axis != weight.in_dim]
    groups = []
    for place in itertools.product(*others):
        for start in inputs:
            at = [(*place[: weight.in_dim], start + i, *place[weight.in_dim :]) for i in range(m)]
            groups.append(tuple(at))
    return groups


# Unstructured


@pytest.mark.parametrize("distribution", ["global", "uniform", "erk"])
def test_unstructured_keeps_the_largest_of_each_budget(distribution: str) -> None:
    weights = layers_of(nn.Conv2d(3, 4, 3), nn.Linear(10, 6), nn.Linear(5, 5))
    scores = scores_of(weights)
    masks = masks_of(Unstructured(), weights, scores, 0.8, distribution)
    for budget in budgets(distribution, weights, 0.8):
        expected = top_k({name: scores[name] for name in budget.names}, budget.keep)
        assert sum(int(masks[name].sum()) for name in budget.names) == budget.keep
        assert all(torch.equal(masks[name], expected[name] != 0) for name in budget.names)


# N of M

FOUR_WAYS = [
    nn.Linear(12, 5),
    nn.Conv1d(8, 3, 3),
    nn.Conv2d(8, 6, 3),
    nn.Conv2d(16, 6, (1, 3), groups=2),
    nn.Conv3d(4, 2, 2),
    nn.ConvTranspose2d(8, 3, 3),
    nn.ConvTranspose2d(8, 4, 3, groups=2),
]


@pytest.mark.parametrize("layer", FOUR_WAYS, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pattern", [NM(2, 4), NM(1, 4), NM(3, 4), NM(1, 2)], ids=str)
def test_nm_equals_brute_force(layer: nn.Module, layout: str, pattern: NM) -> None:
    (weight,) = layers_of(layer)
    assert pattern.why_not(weight) is None
    scores = scores_of([weight], layout=layout)
    with patch.object(patterns, "_CHUNK", 24):
        mask = masks_of(pattern, [weight], scores)[weight.name]
    score = scores[weight.name].abs()
    for group in groups_of(score, weight, pattern.m):
        best = sorted(group, key=lambda at: -score[at].item())[: pattern.n]
        assert [at for at in group if mask[at]] == [at for at in group if at in best]


@some
@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2**32),
    st.integers(1, 40),
)
def test_nm_keeps_n_of_m_whatever_ties(n: int, extra: int, groups: int, outputs: int, seed: int, chunk: int) -> None:
    m = n + extra
    (weight,) = layers_of(nn.Linear(groups * m, outputs))
    values = torch.randint(-1, 2, weight.param.shape, generator=torch.Generator().manual_seed(seed)).float()
    with patch.object(patterns, "_CHUNK", chunk * groups * m):
        mask = masks_of(NM(n, m), [weight], {weight.name: values})[weight.name]
    for group in groups_of(values, weight, m):
        kept = [abs(values[at].item()) for at in group if mask[at]]
        assert sorted(kept, reverse=True) == sorted((abs(values[at].item()) for at in group), reverse=True)[:n]


@pytest.mark.parametrize("pattern", [NM(2, 4), NM(1, 4), NM(2, 3)], ids=str)
@pytest.mark.parametrize("chunk", [12, 24, 1 << 20])
def test_nm_spreads_ties_over_places(pattern: NM, chunk: int) -> None:
    """Of m groups in a row that tie throughout, every place is kept n times: no input channel is lost to a tie."""
    (weight,) = layers_of(nn.Linear(12, 12))
    with patch.object(patterns, "_CHUNK", chunk):
        mask = masks_of(pattern, [weight], {weight.name: torch.ones(12, 12)})[weight.name]
    groups = mask.view(-1, pattern.m)
    for start in range(len(groups) - pattern.m + 1):
        assert groups[start : start + pattern.m].sum(0).tolist() == [pattern.n] * pattern.m


@pytest.mark.parametrize("piece", [16, 1 << 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "modules",
    [
        (nn.Linear(8, 8), nn.Conv2d(16, 4, 3), nn.Linear(16, 16)),
        (nn.Linear(4, 3), nn.Conv2d(4, 5, 3), nn.Linear(8, 8)),  # the first has 3 groups: turns of the next begin anew
        (nn.Linear(64, 64),),
    ],
)
def test_many_layers_at_once_keep_what_each_keeps_alone(
    modules: tuple[nn.Module, ...], dtype: torch.dtype, piece: int
) -> None:
    weights, pattern = layers_of(*modules), NM(2, 4)
    tensors = [(torch.randn(weight.param.shape) * 2).round().to(dtype) for weight in weights]  # many ties
    expected = []
    for weight, tensor in zip(weights, tensors, strict=True):
        mask = new_mask(tensor)
        pattern.write_mask(weight, tensor, mask)
        assert torch.equal(mask, alone(weight, tensor))
        expected.append(torch.where(mask != 0, tensor, 0))
    with patch.object(patterns, "_PIECE", piece):
        pattern.keep_(weights, tensors)
    for kept, value in zip(tensors, expected, strict=True):
        assert torch.equal(kept, value)


def alone(weight: Weight, tensor: Tensor) -> Tensor:
    """By comparing all pairs: the plain version."""
    last = tensor.movedim(weight.in_dim, -1)
    groups = last.reshape(-1, 4).abs()
    keep = patterns._keep_n_by_pairs(groups, 2, torch.arange(len(groups))).to(torch.int8).neg_()
    return keep.reshape(last.shape).movedim(-1, weight.in_dim)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(("n", "m"), [(2, 4), (1, 4), (3, 4), (2, 3), (5, 8)])
@pytest.mark.parametrize("scale", [0, 2, 1e6])
def test_all_ways_to_keep_n_agree(n: int, m: int, scale: float, dtype: torch.dtype) -> None:
    """All equal, many ties, none: with a threshold as on a CPU, and by keys as on a GPU, as by pairs."""
    groups = (torch.randn(50, m, generator=torch.Generator().manual_seed(0)) * scale).round().to(dtype)
    pairs = patterns._keep_n_by_pairs(groups.abs(), n, torch.arange(7, 57))
    for kept in (patterns._keep_n(groups, n, 7), patterns._keep_n_by_keys(groups, n, 7)):
        assert torch.equal(kept, pairs.to(dtype))
        assert (kept.sum(1) == n).all()


def test_nm_of_rows_longer_than_a_chunk() -> None:
    """No patch: more input channels than one chunk holds, in groups that its size does not divide by."""
    inputs = 3 * (patterns._CHUNK // 2)
    weight = Weight("w", nn.Parameter(torch.randn(1, inputs)), nn.Identity(), "linear")
    mask = masks_of(NM(1, 3), [weight], {"w": weight.param.detach()})["w"]
    assert bool((mask.view(-1, 3).sum(1) == 1).all())


def test_nm_masks_do_not_depend_on_the_layout() -> None:
    (weight,) = layers_of(nn.Conv2d(8, 4, 3))
    score = torch.randint(-2, 3, weight.param.shape, generator=torch.Generator().manual_seed(0)).float()
    expected = masks_of(NM(2, 4), [weight], {weight.name: score})[weight.name]
    for layout in LAYOUTS:
        assert torch.equal(masks_of(NM(2, 4), [weight], {weight.name: lay_out(score, layout)})[weight.name], expected)


@pytest.mark.parametrize("layer", [nn.Linear(128, 64), nn.Conv2d(64, 64, 3), nn.Conv2d(128, 32, 1)], ids=str)
def test_two_of_four_survive_torch_s_compressed_format(layer: nn.Module) -> None:
    """In the layout a GEMM reads, (output, kernel position x input channel), compressing and back loses nothing."""
    (weight,) = layers_of(layer)
    score = weight.param.detach().half()
    mask = masks_of(NM(2, 4), [weight], {weight.name: score})[weight.name]
    matrix = (score * mask).movedim(1, -1).reshape(score.shape[0], -1)
    assert int((matrix.view(-1, 4) != 0).sum(1).max()) <= 2
    packed, meta = semi_structured.sparse_semi_structured_from_dense_cutlass(matrix)
    assert packed.numel() * 2 == matrix.numel()
    assert torch.equal(semi_structured.sparse_semi_structured_to_dense_cutlass(packed, meta), matrix)


def test_nm_sparsity_is_its_own() -> None:
    assert NM(2, 4).sparsity == 0.5
    assert NM(1, 4).sparsity == 0.75
    assert acdc.ACDC(pattern=NM(2, 4), epochs=4).sparsity == 0.5
    assert acdc.ACDC(pattern=NM(2, 4), sparsity=0.5, epochs=4).sparsity == 0.5
    with pytest.raises(ValueError, match=r"sparsity=0\.9: NM\(n=2, m=4\) fixes it at 0\.5; omit sparsity"):
        acdc.ACDC(pattern=NM(2, 4), sparsity=0.9, epochs=4)
    with pytest.raises(ValueError, match=r"distribution='erk': .*omit distribution"):
        acdc.ACDC(pattern=NM(2, 4), distribution="erk", epochs=4)


def test_a_bad_sparsity_beside_nm_is_refused_like_any_other() -> None:
    with pytest.raises(ValueError, match=r"^sparsity='0\.5': "):
        acdc.ACDC(pattern=NM(2, 4), sparsity="0.5", epochs=4)  # pyright: ignore[reportArgumentType]


def test_layers_that_do_not_divide_stay_dense_and_are_named() -> None:
    """The published code lets groups straddle kernel positions there; hardware cannot read that."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),  # 3 input channels, although 3 · 3 · 3 · 8 divides by 4
        nn.Conv2d(8, 8, 3),
        nn.Conv2d(8, 8, 3, groups=8),  # one input channel a group
        nn.Conv2d(16, 8, 3, groups=2),
        nn.ConvTranspose2d(12, 8, 3, groups=2),  # six a group
        nn.ConvTranspose2d(8, 6, 3, groups=2),
        nn.Linear(10, 4),
    )
    layers = acdc.ACDC(pattern=acdc.NM(2, 4), epochs=4).layers(model)
    assert [weight.name for weight in layers.weights] == ["1.weight", "3.weight", "5.weight"]
    assert layers.left_dense == {
        "0.weight": "3 input channels are not a multiple of 4",
        "2.weight": "1 input channels are not a multiple of 4",
        "4.weight": "6 input channels are not a multiple of 4",
        "6.weight": "10 input channels are not a multiple of 4",
    }


# Blocks


def tiles_of(tensor: Tensor, weight: Weight, rows: int, cols: int) -> dict[tuple, Tensor]:
    """Each tile by (kernel position, row of tiles, column of tiles)."""
    matrix = tensor.movedim((weight.out_dim, weight.in_dim), (-2, -1))
    *kernel, outputs, inputs = matrix.shape
    places = itertools.product(*(range(n) for n in kernel), range(outputs // rows), range(inputs // cols))
    return {
        at: matrix[(*at[:-2], slice(at[-2] * rows, (at[-2] + 1) * rows), slice(at[-1] * cols, (at[-1] + 1) * cols))]
        for at in places
    }


@pytest.mark.parametrize("block", [Block(2, 2), Block(4, 1), Block(1, 4), Block(2, 4), Block(1, 1)], ids=str)
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.75, 0.9])
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided"])
def test_blocks_equal_brute_force(block: Block, sparsity: float, layout: str) -> None:
    weights = layers_of(nn.Conv2d(4, 8, 3), nn.Linear(8, 12), nn.ConvTranspose1d(8, 4, 2))
    scores = scores_of(weights, 3, layout)
    generator = torch.Generator().manual_seed(0)
    for score in scores.values():  # so that no two tiles have one sum
        score *= 1 + torch.rand(score.shape, generator=generator) / 100
    masks = masks_of(block, weights, scores, sparsity)
    strength, alive = {}, set()
    for weight in weights:
        for at, tile in tiles_of(scores[weight.name], weight, block.rows, block.cols).items():
            strength[weight.name, at] = tile.double().abs().sum().item()
        for at, tile in tiles_of(masks[weight.name], weight, block.rows, block.cols).items():
            assert tile.all() or not tile.any(), "a tile was cut"
            if tile.all():
                alive.add((weight.name, at))
    area, (budget,) = block.rows * block.cols, budgets("global", weights, sparsity)
    count = math.floor(budget.keep / area + 0.5)
    assert len(alive) == count
    assert alive == set(sorted(strength, key=lambda tile: -strength[tile])[:count])


def test_blocks_of_equal_weights_are_spread() -> None:
    weights = layers_of(nn.Linear(8, 8), nn.Linear(8, 8))
    masks = masks_of(Block(2, 2), weights, {w.name: torch.ones(8, 8) for w in weights}, 0.75)
    assert [int(mask.sum()) for mask in masks.values()] == [16, 16]
    assert all(mask.any(0).all() or mask.any(1).all() for mask in masks.values())


def test_blocks_of_large_weights_do_not_overflow() -> None:
    """Every weight is finite, so there is nothing to refuse."""
    (weight,) = layers_of(nn.Linear(4, 4))
    score = torch.full((4, 4), 3e38)
    assert int(masks_of(Block(2, 2), [weight], {weight.name: score})[weight.name].sum()) == 8


def test_blocks_tell_apart_what_double_precision_does() -> None:
    (weight,) = layers_of(nn.Linear(2, 4).double())
    score = torch.ones(4, 2, dtype=torch.float64)
    score[0, 1] += 1e-12
    mask = masks_of(Block(2, 2), [weight], {weight.name: score})[weight.name]
    assert mask.tolist() == [[True] * 2] * 2 + [[False] * 2] * 2


def test_blocks_never_prune_everything() -> None:
    """A budget of less than half a tile rounds to none, and a layer of zeros is a dead run."""
    weights = layers_of(nn.Linear(64, 64), nn.Linear(4, 4))
    masks = masks_of(Block(4, 4), weights, scores_of(weights), 0.9, "uniform")
    assert all(mask.any() for mask in masks.values())


@pytest.mark.parametrize(
    ("layer", "block", "fits"),
    [
        (nn.Linear(8, 4), Block(4, 4), True),
        (nn.Linear(6, 4), Block(4, 4), False),
        (nn.Linear(4, 6), Block(4, 4), False),
        (nn.Conv2d(8, 4, 3), Block(4, 8), True),
        (nn.ConvTranspose2d(8, 4, 3), Block(4, 8), True),
        (nn.ConvTranspose2d(4, 8, 3), Block(4, 8), False),
        (nn.Conv2d(8, 8, 3, groups=2), Block(4, 4), True),
        (nn.Conv2d(8, 8, 3, groups=2), Block(8, 4), False),  # outputs 0-3 and 4-7 read different inputs
        (nn.ConvTranspose2d(8, 8, 3, groups=2), Block(4, 4), True),
        (nn.ConvTranspose2d(8, 8, 3, groups=2), Block(4, 8), False),  # inputs 0-3 and 4-7 write different outputs
    ],
    ids=str,
)
def test_blocks_fit_where_tiles_are_whole(layer: nn.Module, block: Block, fits: bool) -> None:
    (weight,) = layers_of(layer)
    assert (block.why_not(weight) is None) == fits


# Channels


def channels_of(tensor: Tensor, weight: Weight) -> Tensor:
    return tensor.movedim(weight.out_dim, 0).flatten(1)


@some
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=4), st.floats(0, 0.99))
def test_channels_are_whole_within_budget_and_in_every_layer(sizes: list[tuple[int, int]], sparsity: float) -> None:
    weights = layers_of(*[nn.Linear(i, o) if i % 2 else nn.ConvTranspose1d(i, o, 2) for i, o in sizes])
    total = sum(weight.param.numel() for weight in weights)
    assume(round(sparsity * total) < total)
    scores = scores_of(weights, seed=len(sizes))
    masks = masks_of(Channel(), weights, scores, sparsity)
    (budget,) = budgets("global", weights, sparsity)
    kept, dropped, size, best = [], [], {}, set()
    for weight in weights:
        rows = channels_of(masks[weight.name], weight)
        assert bool((rows.all(1) | ~rows.any(1)).all()), "a channel was cut"
        assert rows.any()
        strength = channels_of(scores[weight.name], weight).double().square().mean(1).sqrt().tolist()
        best.add((max(strength), weight.name))
        for channel, alive in zip(strength, rows.any(1).tolist(), strict=True):
            (kept if alive else dropped).append((channel, weight.name))
            size[channel, weight.name] = rows.shape[1]
    spent, floor = sum(size[channel] for channel in kept), sum(size[channel] for channel in best)
    assert best <= set(kept)
    assert spent <= max(budget.keep, floor)
    if dropped:  # the next best would not fit, and none of those kept beyond one a layer is weaker
        weakest = min((strength for strength, _ in set(kept) - best), default=math.inf)
        assert max(dropped)[0] <= weakest
        assert spent + min(size[c] for c in dropped if c[0] == max(dropped)[0]) > budget.keep or spent == floor


def test_channels_by_hand() -> None:
    """Root mean squares 3, 1 and 2 of size 2; 10 and 0.5 of size 4. Budget 8: 10, then 3, then 2."""
    weights = layers_of(nn.Linear(2, 3), nn.Linear(4, 2))
    scores = {
        "0.weight": torch.tensor([[3.0, -3.0], [1.0, 1.0], [-2.0, 2.0]]),
        "1.weight": torch.tensor([[10.0] * 4, [0.5] * 4]),
    }
    masks = masks_of(Channel(), weights, scores, 1 - 8 / 14)
    assert [mask.any(1).tolist() for mask in masks.values()] == [[True, False, True], [True, False]]


def test_channels_compare_by_root_mean_square_and_not_by_sum() -> None:
    weights = layers_of(nn.Linear(100, 2), nn.Linear(2, 2))
    scores = {"0.weight": torch.full((2, 100), 1.0), "1.weight": torch.full((2, 2), 2.0)}
    masks = masks_of(Channel(), weights, scores, 1 - 104 / 204)
    assert [mask.any(1).sum().item() for mask in masks.values()] == [1, 2]


def test_equal_channels_are_shared_among_layers() -> None:
    """Ties are spread, as among single weights: here half of each layer survives."""
    weights = layers_of(nn.Linear(4, 8), nn.Linear(4, 8))
    masks = masks_of(Channel(), weights, {w.name: torch.ones(8, 4) for w in weights}, 0.5)
    assert [int(mask.any(1).sum()) for mask in masks.values()] == [4, 4]


def test_every_layer_keeps_a_channel_even_beyond_the_budget() -> None:
    weights = layers_of(*[nn.Linear(10, 2) for _ in range(3)])
    masks = masks_of(Channel(), weights, scores_of(weights), 0.99)
    assert [int(mask.any(1).sum()) for mask in masks.values()] == [1, 1, 1]


# What all share


@by_name
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_scores_are_refused_by_name(pattern: Pattern, value: float) -> None:
    weights = layers_of(nn.Linear(4, 4), nn.Linear(8, 4))
    scores = scores_of(weights)
    scores["1.weight"][2, 3] = value
    with pytest.raises(ValueError, match=r"NaN or infinite scores in 1\.weight \(1 of \d+\): "):
        masks_of(pattern, weights, scores)


@by_name
def test_only_the_magnitude_counts(pattern: Pattern) -> None:
    weights = layers_of(nn.Conv2d(4, 8, 3), nn.Linear(8, 4))
    scores = scores_of(weights)
    masks = masks_of(pattern, weights, scores)
    positive = masks_of(pattern, weights, {name: score.abs() for name, score in scores.items()})
    assert all(torch.equal(masks[name], positive[name]) for name in masks)
    assert any(mask.any() and not mask.all() for mask in masks.values())


@by_name
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(pattern: Pattern, dtype: torch.dtype) -> None:
    weights = layers_of(nn.Conv2d(4, 4, 2), nn.Linear(8, 4))
    scores = scores_of(weights)  # whole numbers below 257: exact in every dtype
    expected = masks_of(pattern, weights, scores)
    got = masks_of(pattern, weights, {name: score.to(dtype) for name, score in scores.items()})
    assert all(torch.equal(got[name], expected[name]) for name in expected)


@by_name
def test_same_masks_every_time(pattern: Pattern) -> None:
    weights = layers_of(nn.Conv2d(4, 8, 3), nn.Linear(8, 4))
    scores = {name: score.fmod(3) for name, score in scores_of(weights).items()}
    first, second = masks_of(pattern, weights, scores), masks_of(pattern, weights, scores)
    assert all(torch.equal(first[name], second[name]) for name in first)


@by_name
@pytest.mark.parametrize("count", [2, 3, 5])
def test_shards_of_rows_get_the_masks_of_the_whole(pattern: Pattern, count: int) -> None:
    """With ties throughout, and with three or five workers the last ones have no rows of the second layer."""
    weights = layers_of(nn.Conv2d(4, 12 * count, 1), nn.Linear(8, 6 if count == 5 else 4))
    weights += [replace(layers_of(nn.Conv2d(4, 10, 3))[0], name="conv")] if not isinstance(pattern, Block) else []
    scores = {name: score.fmod(3) for name, score in scores_of(weights).items()}
    shares = budgets("global", weights, 0.5)

    def write(piece: dict[str, Tensor], shards: Shards) -> dict[str, Tensor]:
        out = {name: new_mask(score).fill_(77) for name, score in piece.items()}
        pattern.write_masks(weights, piece, shares, out, shards)
        return out

    rows = {name: score.tensor_split([-(-len(score) // count) * i for i in range(1, count)])
            for name, score in scores.items()}  # fmt: skip
    answers = on_workers([{name: parts[i] for name, parts in rows.items()} for i in range(count)], write)
    whole = masks_of(pattern, weights, scores)
    assert all(torch.equal(torch.cat([answer[name] for answer in answers]) != 0, whole[name]) for name in whole)


@pytest.mark.parametrize(
    ("pattern", "module", "reason"),
    [
        (NM(2, 4), nn.ConvTranspose2d(8, 4, 1), "its input channels, so groups of 4 would be in two shards"),
        (Block(4, 4), nn.Linear(8, 12), r"its output channels by 6, which divides tiles of 4 rows"),
        (Block(2, 2), nn.Conv2d(8, 8, 3), "its output channels, but its tiles are counted by kernel positions first"),
        (Block(2, 2), nn.ConvTranspose2d(8, 8, 1), "its input channels, and tiles are counted along the output"),
        (Channel(), nn.ConvTranspose2d(8, 4, 1), "its input channels, so every output channel would be in all"),
    ],
    ids=str,
)
def test_a_split_that_divides_what_belongs_together_is_refused(pattern: Pattern, module: nn.Module, reason: str):
    weights = layers_of(module)
    shards = Shards(index=0, count=2, sum=lambda counts: counts)
    with pytest.raises(
        ValueError, match=rf"^pattern=.*: 0\.weight of shape \(.*\) is sharded along {reason}.*exclude="
    ):
        pattern.check_shards(weights, shards)
    pattern.check_shards(weights, WHOLE)


@pytest.mark.parametrize("pattern", [NM(2, 4), Channel()], ids=str)
def test_every_worker_refuses_a_score_that_one_of_them_holds(pattern: Pattern) -> None:
    weights = layers_of(nn.Linear(4, 4))
    pieces = [{"0.weight": torch.ones(2, 4)}, {"0.weight": torch.full((2, 4), math.nan)}]
    answers = on_workers(pieces, lambda piece, shards: pattern.write_masks(
        weights, piece, [Budget(("0.weight",), 8)], {name: new_mask(s) for name, s in piece.items()}, shards
    ))  # fmt: skip
    assert [type(answer) for answer in answers] == [NotFiniteError] * 2


def test_unstructured_passes_shards_on() -> None:
    """Two equal halves, seen from the first: its share of the whole's budget."""
    weights = layers_of(nn.Linear(4, 4))
    out = {"0.weight": torch.full((4, 4), 77, dtype=torch.int8)}
    shards = Shards(index=0, count=2, sum=lambda counts: counts * 2)
    Unstructured().write_masks(weights, scores_of(weights), [Budget(("0.weight",), 10)], out, shards)
    assert int((out["0.weight"] == -1).sum()) == 5


@pytest.mark.parametrize("pattern", [NM(2, 4), Block(4, 4)], ids=str)
def test_a_pattern_that_fits_no_layer_is_refused(pattern: Pattern) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 5))
    with pytest.raises(ValueError, match=r"fits none of the model's 2 prunable layers \(0\.weight: .*choose another"):
        acdc.ACDC(pattern=pattern, epochs=4, sparsity=0.5).layers(model)


@pytest.mark.parametrize("arguments", [(4, 2), (0, 4), (4, 4), (-1, 4), (2.0, 4), ("2", 4), (2, None)])
def test_bad_nm(arguments: tuple) -> None:
    with pytest.raises(ValueError, match=r"^pattern=NM\(.*\): expected whole numbers 0 < N < M; write NM\(2, 4\)"):
        NM(*arguments)


@pytest.mark.parametrize("arguments", [(0, 4), (4, 0), (-1, 4), (4, 4.0), ("4", 4), (4, None)])
def test_bad_block(arguments: tuple) -> None:
    with pytest.raises(ValueError, match=r"^pattern=Block\(.*\): expected whole numbers above 0; write Block\(4, 4\)"):
        Block(*arguments)


def test_patterns_compare_by_value() -> None:
    assert (NM(2, 4), Block(4, 4), Channel(), Unstructured()) == (NM(2, 4), Block(4, 4), Channel(), Unstructured())
    assert NM(2, 4) != NM(1, 4)
    assert repr(NM(2, 4)) == "NM(n=2, m=4)"


# Layers of unknown type


def with_recurrence() -> nn.ModuleDict:
    return nn.ModuleDict({"rnn": nn.LSTM(4, 4), "fc": nn.Linear(4, 4)})


@pytest.mark.parametrize("pattern", [NM(2, 4), Block(2, 2), Channel()], ids=str)
def test_a_pattern_with_a_direction_refuses_a_weight_whose_axes_are_unknown(pattern: Pattern) -> None:
    """Not left dense in silence either: include asked for it."""
    method = acdc.ACDC(sparsity=0.5, pattern=pattern, epochs=10, include=["rnn.weight_hh_l0", "fc"])
    message = (
        rf"^pattern={re.escape(str(pattern))}: rnn\.weight_hh_l0 belongs to LSTM, .*axes are not known"
        r".*expected .*linear.*exclude=\['rnn\.weight_hh_l0'\].*pattern=acdc\.Unstructured\(\)"
    )
    with pytest.raises(ValueError, match=message):
        method.layers(with_recurrence())
    assert [w.name for w in replace(method, include=["fc"]).layers(with_recurrence()).weights] == ["fc.weight"]


def test_the_unstructured_pattern_needs_no_axes() -> None:
    method = acdc.ACDC(sparsity=0.5, epochs=10, include=["rnn.weight_hh_l0", "fc"])
    assert [w.name for w in method.layers(with_recurrence()).weights] == ["rnn.weight_hh_l0", "fc.weight"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (acdc.ACDC(sparsity=0.5, epochs=10, revive=True), r"^revive=True: rnn\.weight_hh_l0 .*; or omit revive"),
        (QuantisedACDC(epochs=10), r"^per='channel': rnn\.weight_hh_l0 belongs to LSTM.*; or write per='layer'"),
    ],
    ids=["revive", "grids of channels"],
)
def test_so_do_other_knobs_that_work_by_output_channels(method: Method, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(method, include=["rnn.weight_hh_l0"]).layers(with_recurrence())
    assert method.layers(with_recurrence()).size == 16


def test_a_grid_of_the_whole_layer_needs_no_axes() -> None:
    method = QuantisedACDC(epochs=10, per="layer", include=["rnn.weight_hh_l0"])
    assert method.layers(with_recurrence()).size == 64


def test_the_axes_of_an_unknown_layer_are_never_guessed() -> None:
    (weight,) = find_prunable(with_recurrence(), include=["rnn.weight_hh_l0"]).weights
    for axis in ("out_dim", "in_dim"):
        with pytest.raises(ValueError, match=r"out_dim and in_dim: rnn\.weight_hh_l0 belongs to LSTM"):
            getattr(weight, axis)
