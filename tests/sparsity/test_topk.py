"""Exact global top-k: the streaming version against the slow one, over dtypes, layouts, ties, chunks and shards."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from acdc.errors import NotFiniteError
from acdc.sparsity import topk
from acdc.sparsity.masks import new_mask
from acdc.sparsity.topk import Shards, share_ties, top_k, top_k_reference
from tests.sparsity.tensors import BITS, DTYPES, KINDS, LAYOUTS, MANTISSA, lay_out, make
from tests.sparsity.workers import on_workers

many = settings(deadline=None, max_examples=120)
some = settings(deadline=None, max_examples=40)


# Models to choose from


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)
seeds = st.integers(0, 2**32)
layer = st.builds(
    lambda shape, dtype, kind, seed, layout: lay_out(make(shape, dtype, kind, seed), layout),
    shapes,
    st.sampled_from(DTYPES),
    st.sampled_from(KINDS),
    seeds,
    st.sampled_from(LAYOUTS),
)
models = st.lists(layer, min_size=1, max_size=4).map(lambda layers: {f"layer{i}": t for i, t in enumerate(layers)})
chunks = st.sampled_from([1, 2, 3, 7, 64, 1 << 18])


@st.composite
def models_and_k(draw: st.DrawFn) -> tuple[dict[str, Tensor], int]:
    scores = draw(models)
    return scores, draw(st.integers(0, size(scores)))


# What masks are compared by


def size(scores: dict[str, Tensor]) -> int:
    return sum(score.numel() for score in scores.values())


def kept(masks: dict[str, Tensor]) -> int:
    return sum(int((mask == -1).sum()) for mask in masks.values())


def positions(mask: Tensor) -> list[int]:
    return mask.flatten().nonzero().flatten().tolist()


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(got) == list(expected)
    for name, mask in got.items():
        assert mask.dtype == torch.int8
        assert mask.shape == expected[name].shape
        assert torch.equal(mask, expected[name]), name


# Ways to run it


cpu_digits = topk._digits


def gpu_digits(scores: dict[str, Tensor]) -> list[topk._Digit]:
    device = SimpleNamespace(type="cuda")
    there: Any = {name: SimpleNamespace(dtype=s.dtype, device=device) for name, s in scores.items()}
    return cpu_digits(there)


@contextmanager
def small(chunk: int = 1 << 18, digits: Callable = gpu_digits) -> Iterator[None]:
    """Chunks of this size, so that a small tensor has many of them, and a GPU's digits, which have fewer bins."""
    with patch.object(topk, "_chunk", lambda scores: chunk), patch.object(topk, "_digits", digits):
        yield


# The answer


@many
@given(models_and_k(), chunks)
def test_agrees_with_the_reference(case: tuple[dict[str, Tensor], int], chunk: int) -> None:
    check_against_reference(*case, chunk, gpu_digits)


@settings(deadline=None, max_examples=30)
@given(models_and_k(), st.sampled_from([32, 1 << 18]))
def test_agrees_with_the_reference_in_the_digits_of_a_cpu(case: tuple[dict[str, Tensor], int], chunk: int) -> None:
    check_against_reference(*case, chunk, cpu_digits)


def check_against_reference(scores: dict[str, Tensor], k: int, chunk: int, digits: Callable) -> None:
    before = {name: score.clone() for name, score in scores.items()}
    with small(chunk, digits):
        masks = top_k(scores, k)
    assert kept(masks) == k
    assert_same(masks, top_k_reference(scores, k))
    for name, score in scores.items():
        assert score.view(BITS[score.dtype]).equal(before[name].view(BITS[score.dtype])), "the scores were changed"


@some
@given(models_and_k())
def test_no_pruned_weight_is_larger_than_a_kept_one(case: tuple[dict[str, Tensor], int]) -> None:
    """Says what is meant without the reference's help."""
    scores, k = case
    with small():
        masks = top_k(scores, k)
    magnitudes = torch.cat([score.double().abs().flatten() for score in scores.values()])
    keep = torch.cat([mask.flatten() for mask in masks.values()]) != 0
    assert int(keep.sum()) == k
    if 0 < k < len(magnitudes):
        assert magnitudes[keep].min() >= magnitudes[~keep].max()


@some
@given(shapes, st.sampled_from(DTYPES), st.sampled_from(KINDS), seeds, st.floats(0, 1), chunks)
def test_layout_does_not_change_the_mask(
    shape: tuple[int, ...], dtype: torch.dtype, kind: str, seed: int, share: float, chunk: int
) -> None:
    plain = make(shape, dtype, kind, seed)
    k = int(share * plain.numel())
    with small():
        expected = top_k({"w": plain}, k)
    with small(chunk):
        for layout in LAYOUTS:
            assert_same(top_k({"w": lay_out(plain, layout)}, k), expected)


def test_mask_has_the_layout_of_a_dense_parameter() -> None:
    for layout in ("contiguous", "transposed", "channels_last", "offset"):
        score = lay_out(torch.randn(4, 3, 2, 5), layout)
        assert top_k({"w": score}, 7)["w"].stride() == score.stride(), layout
    assert top_k({"w": lay_out(torch.randn(4, 3, 2, 5), "strided")}, 7)["w"].is_contiguous()


def test_many_chunks_of_the_real_size() -> None:
    """No patch: several chunks of the size in use, in memory order and, among ties, in index order."""
    score = torch.randint(-3, 4, (5, 1 << 17, 1, 1), generator=torch.Generator().manual_seed(0)).float()
    expected = top_k_by_sorting(score, 300_001)
    for layout in ("contiguous", "transposed", "strided"):
        assert torch.equal(top_k({"w": lay_out(score, layout)}, 300_001)["w"] != 0, expected), layout


def top_k_by_sorting(score: Tensor, k: int) -> Tensor:
    """One tensor's top k by torch.sort, ties by the rule of even spacing."""
    magnitudes = score.abs().flatten()
    threshold = magnitudes.sort(descending=True).values[k - 1]
    tied = (magnitudes == threshold).nonzero().flatten()
    share = k - int((magnitudes > threshold).sum())
    rank = torch.arange(1, len(tied) + 1)
    keep = magnitudes > threshold
    keep[tied[rank * share // len(tied) > (rank - 1) * share // len(tied)]] = True
    return keep.view(score.shape)


def test_parameters_that_require_grad_are_only_read() -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, -3.0], [2.0, 0.5]]))
    mask = top_k({"w": weight}, 2)["w"]
    assert mask.tolist() == [[0, -1], [-1, 0]]
    assert not mask.requires_grad
    assert weight.grad_fn is None
    assert weight._version == 0


def test_a_scalar_is_one_weight() -> None:
    scores = {"scale": torch.tensor(-2.0), "w": torch.tensor([1.0, 3.0])}
    assert [mask.tolist() for mask in top_k(scores, 2).values()] == [-1, [0, -1]]


def test_no_scores_at_all() -> None:
    assert top_k({}, 0) == {}
    empty = {"a": torch.zeros(0), "b": torch.zeros(3, 0, 2)}
    assert [mask.shape for mask in top_k(empty, 0).values()] == [(0,), (3, 0, 2)]


def test_same_bits_on_every_call_and_thread_count() -> None:
    scores = {f"layer{i}": make((97, 31), torch.float32, "few", i) for i in range(3)}
    threads = torch.get_num_threads()
    try:
        answers = []
        for count in (1, 2, 1, 4):
            torch.set_num_threads(count)
            answers.append(top_k(scores, 3210))
    finally:
        torch.set_num_threads(threads)
    for answer in answers[1:]:
        assert_same(answer, answers[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_cut_the_magnitude_without_gap_or_overlap(dtype: torch.dtype) -> None:
    scores = {"half": torch.zeros(1, dtype=torch.float16), "w": torch.zeros(1, dtype=dtype)}
    bits = 63 if dtype == torch.float64 else 31
    for digits, widest in ((topk._digits(scores), 16), (gpu_digits(scores), 11)):
        left = bits
        for digit in digits:
            left -= digit.width
            assert digit.below == left
            assert 0 < digit.width <= widest
        assert left == 0


# Traps of the published code: it keeps k - 1, and drops every weight that ties with the threshold


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, 1e-45])
@pytest.mark.parametrize("k", [0, 1, 2, 499, 500, 999, 1000])
def test_all_equal_weights_keep_exactly_k(value: float, k: int) -> None:
    scores = {"a": torch.full((20, 30), value), "b": torch.full((400,), -value)}
    assert kept(top_k(scores, k)) == k


@pytest.mark.parametrize("k", range(0, 11))
def test_distinct_weights_keep_k_and_not_k_minus_one(k: int) -> None:
    weights = torch.tensor([3.0, -10.0, 1.0, 7.0, -2.0, 9.0, 4.0, -8.0, 6.0, 5.0])
    mask = top_k({"w": weights}, k)["w"]
    assert sorted(weights[mask != 0].abs().tolist()) == sorted(range(11 - k, 11))


def test_more_survivors_than_weights_away_from_zero() -> None:
    """After a decompression most weights are exactly 0; a larger budget than the rest must still be filled."""
    scores = {"a": torch.zeros(50), "b": torch.zeros(50)}
    scores["a"][:5] = 1.0
    masks = top_k(scores, 55)
    assert kept(masks) == 55
    assert masks["a"][:5].tolist() == [-1] * 5


def test_a_threshold_shared_by_every_weight_of_a_layer_does_not_kill_it() -> None:
    scores = {"wide": torch.full((1000,), 0.5), "narrow": torch.full((3,), 0.5), "strong": torch.ones(7)}
    masks = top_k(scores, 10)
    assert kept(masks) == 10
    assert masks["narrow"].any()
    assert masks["wide"].any()
    assert masks["strong"].all()


# Values


def test_signs_do_not_matter() -> None:
    """−0 equals 0, and −2 counts as 2."""
    scores = {"w": torch.tensor([-0.0, 0.0, -2.0, 1.0, -0.0, 0.0])}
    assert top_k(scores, 1)["w"].tolist() == [0, 0, -1, 0, 0, 0]
    assert_same(top_k(scores, 4), top_k({"w": scores["w"].abs()}, 4))


@pytest.mark.parametrize("dtype", DTYPES)
def test_neighbouring_values_are_told_apart(dtype: torch.dtype) -> None:
    """The smallest step at both ends of the range, around 1 and across the border of the denormals."""
    integer = BITS[dtype]
    last = torch.tensor(torch.finfo(dtype).max, dtype=dtype).view(integer).item()
    one = torch.tensor(1.0, dtype=dtype).view(integer).item()
    border = 1 << MANTISSA[dtype]
    for first in (0, border - 2, one - 2, last - 3):
        steps = torch.arange(first, first + 4, dtype=integer).view(dtype)
        for k, expected in ((1, [0, 0, 0, -1]), (2, [0, 0, -1, -1]), (3, [0, -1, -1, -1])):
            assert top_k({"w": steps}, k)["w"].tolist() == expected
            assert top_k({"w": -steps.flip(0)}, k)["w"].tolist() == expected[::-1]


def test_dtypes_compare_by_value_in_one_call() -> None:
    """1/3 rounds up in half precision and bfloat16 and down towards 1/3 in the wider ones."""
    third = {str(dtype): torch.tensor([1 / 3], dtype=dtype) for dtype in DTYPES}
    order = sorted(third, key=lambda name: -third[name].double().item())
    for k in range(5):
        masks = top_k(third, k)
        assert {name for name in third if masks[name].item()} == set(order[:k])


@pytest.fixture
def flush_denormals() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.usefixtures("flush_denormals")
def test_denormals_count_where_the_processor_flushes_them(dtype: torch.dtype) -> None:
    denormals = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6], dtype=BITS[dtype]).view(dtype)
    assert top_k({"w": denormals}, 3)["w"].tolist() == [0, 0, 0, 0, -1, -1, 0, -1]


# Ties


@some
@given(st.integers(1, 300), st.floats(0, 1), chunks)
def test_ties_of_a_layer_are_spread_evenly(n: int, share: float, chunk: int) -> None:
    with small(chunk):
        at = positions(top_k({"w": torch.ones(n)}, int(share * n))["w"])
    gaps = [after - before for before, after in pairwise([-1, *at])]
    assert len(at) == int(share * n)
    assert not at or (at[-1] == n - 1 and max(gaps) - min(gaps) <= 1)


def test_ties_are_spread_among_the_tied_only() -> None:
    """Even among the ties, however the other weights lie between them."""
    weights = torch.tensor([1.0, 9, 1, 0, 1, 0, 0, 1, 9, 1, 1])
    assert positions(top_k({"w": weights}, 5)["w"]) == [1, 2, 7, 8, 10]


def test_ties_of_several_layers_are_shared_in_proportion() -> None:
    scores = {"a": torch.ones(100), "b": torch.ones(20, 10), "c": torch.ones(700), "d": torch.zeros(50)}
    assert [kept({"": mask}) for mask in top_k(scores, 100).values()] == [10, 20, 70, 0]


def test_a_layer_that_lives_without_its_ties_takes_none_from_others() -> None:
    scores = {"a": torch.tensor([9.0, 1.0]), "b": torch.ones(60), "c": torch.ones(30)}
    assert [kept({"": mask}) for mask in top_k(scores, 10).values()] == [1, 6, 3]


tied_layers = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3)), min_size=1, max_size=12).filter(
    lambda layers: any(ties for ties, _ in layers)
)


@many
@given(tied_layers, st.data())
def test_share_ties(layers: list[tuple[int, int]], data: st.DataObject) -> None:
    ties, strict = [list(column) for column in zip(*layers, strict=True)]
    places = data.draw(st.integers(0, sum(ties)))
    shares = share_ties(ties, strict, places)
    assert sum(shares) == places
    assert all(0 <= share <= count for share, count in zip(shares, ties, strict=True))
    # Layers that live or die by their ties: all live, or as many as there are places.
    needy = [i for i, count in enumerate(ties) if count and not strict[i]]
    assert sum(shares[i] > 0 for i in needy) == min(places, len(needy))
    # In proportion, to the rounding, unless one was helped.
    exact = [count * places / sum(ties) for count in ties]
    if all(exact[i] >= 1 for i in needy):
        assert all(abs(share - wanted) < 1 for share, wanted in zip(shares, exact, strict=True))


@pytest.mark.parametrize(
    ("ties", "strict", "places", "shares"),
    [
        ([3, 1, 6], [0, 0, 0], 5, [1, 1, 3]),  # in proportion
        ([1, 60, 30], [0, 0, 0], 9, [1, 5, 3]),  # the layer with the most places gives one up
        ([1, 30, 60], [0, 0, 0], 9, [1, 3, 5]),
        ([1, 60, 30], [1, 0, 0], 9, [0, 6, 3]),  # none is given to a layer that lives without
        ([2, 2, 2], [0, 5, 5], 1, [1, 0, 0]),  # the only place goes to the only layer in need
        ([1, 1, 1], [0, 0, 0], 2, None),  # one must die
    ],
)
def test_share_ties_by_hand(ties: list[int], strict: list[int], places: int, shares: list[int] | None) -> None:
    got = share_ties(ties, strict, places)
    assert got == shares if shares else sorted(got) == [0, 1, 1]


# Refusals


@pytest.mark.parametrize("k", [-1, 7, 10**12])
def test_k_out_of_range_is_refused(k: int) -> None:
    scores = {"a": torch.ones(4), "b": torch.ones(2)}
    out = {name: torch.full_like(score, 77, dtype=torch.int8) for name, score in scores.items()}
    with pytest.raises(ValueError, match=rf"k={k}: expected .* from 0 to 6"):
        top_k(scores, k, out=out)
    assert all(bool((mask == 77).all()) for mask in out.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("k", [0, 3, 14])
@pytest.mark.parametrize("digits", [cpu_digits, gpu_digits], ids=["cpu", "gpu"])
def test_non_finite_scores_are_refused_by_name(dtype: torch.dtype, value: float, k: int, digits: Callable) -> None:
    scores = {
        "fine": torch.ones(4, dtype=torch.float16),
        "largest": torch.full((4,), torch.finfo(dtype).max, dtype=dtype),
        "conv1.weight": torch.ones(2, 3, dtype=dtype),
    }
    scores["conv1.weight"][1, ::2] = value
    out = {name: torch.full_like(score, 77, dtype=torch.int8) for name, score in scores.items()}
    with (
        patch.object(topk, "_digits", digits),
        pytest.raises(ValueError, match=r"NaN or infinite scores in conv1\.weight \(2 of 6\): "),
    ):
        top_k(scores, k, out=out)
    assert all(bool((mask == 77).all()) for mask in out.values())


def test_all_bad_layers_are_named() -> None:
    scores = {name: torch.tensor([1.0, math.nan]) for name in ("a", "b")} | {"c": torch.ones(2)}
    with pytest.raises(ValueError, match=r"a \(1 of 2\), b \(1 of 2\): "):
        top_k(scores, 1)


# Writing into given masks


@some
@given(models_and_k(), st.sampled_from(LAYOUTS), chunks)
def test_out_is_written_whatever_it_held(case: tuple[dict[str, Tensor], int], layout: str, chunk: int) -> None:
    """Also where the mask's strides differ from the score's, and where it has holes of its own."""
    scores, k = case
    out = {
        name: lay_out(torch.full(score.shape, 77.0), layout).nan_to_num().to(torch.int8)
        for name, score in scores.items()
    }
    out["other"] = torch.full((3,), 77, dtype=torch.int8)
    with small(chunk):
        masks = top_k(scores, k, out=out)
    assert list(masks) == list(scores)
    assert all(masks[name] is out[name] for name in masks)
    assert_same(masks, top_k_reference(scores, k))
    assert out["other"].tolist() == [77] * 3


def test_out_is_reused_call_after_call() -> None:
    score = torch.randn(300, generator=torch.Generator().manual_seed(1))
    out = {"w": new_mask(score)}
    for k in (150, 0, 300, 7, 299):
        top_k({"w": score}, k, out=out)
        assert torch.equal(out["w"], top_k({"w": score}, k)["w"])


# Shards


@st.composite
def sharded(draw: st.DrawFn) -> tuple[dict[str, Tensor], int, list[dict[str, Tensor]]]:
    """A model, k, and the model cut in pieces along the first axis of each layer, some of them empty."""
    count = draw(st.integers(1, 4))
    names = [f"layer{i}" for i in range(draw(st.integers(1, 3)))]
    shape = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
    kinds = st.sampled_from(KINDS)
    scores = {name: make(draw(shape), draw(st.sampled_from(DTYPES)), draw(kinds), draw(seeds)) for name in names}
    pieces: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for name, score in scores.items():
        rows = score.shape[0]
        cuts = sorted(draw(st.lists(st.integers(0, rows), min_size=count - 1, max_size=count - 1)))
        for piece, start, end in zip(pieces, [0, *cuts], [*cuts, rows], strict=True):
            piece[name] = score[start:end]
    return scores, draw(st.integers(0, size(scores))), pieces


@many
@given(sharded(), st.sampled_from([2, 5, 1 << 18]))
def test_sharded_equals_whole(case: tuple[dict[str, Tensor], int, list[dict[str, Tensor]]], chunk: int) -> None:
    scores, k, pieces = case
    with small(chunk):
        answers = on_workers(pieces, lambda piece, shards: top_k(piece, k, shards=shards))
    joined = {name: torch.cat([answer[name] for answer in answers]) for name in scores}
    assert kept(joined) == k
    with small():
        assert_same(joined, top_k(scores, k))


def test_sharded_by_flat_runs_of_all_equal_weights() -> None:
    """Four workers, one with nothing of the first layer and one with nothing at all."""
    scores = {"a": torch.ones(101), "b": torch.ones(7), "c": torch.zeros(5)}
    cuts = {"a": (0, 0, 13, 13, 101), "b": (0, 3, 4, 4, 7), "c": (0, 1, 5, 5, 5)}
    pieces = [{n: s[cuts[n][w] : cuts[n][w + 1]] for n, s in scores.items()} for w in range(4)]
    assert not size(pieces[2])
    for k in (1, 2, 50, 107, 108, 110):
        answers = on_workers(pieces, lambda piece, shards, k=k: top_k(piece, k, shards=shards))
        assert_same({n: torch.cat([answer[n] for answer in answers]) for n in scores}, top_k(scores, k))


def test_every_worker_refuses_what_one_of_them_holds() -> None:
    """None may go on alone into the next reduction: the others would wait for it for ever."""
    pieces = [{"w": torch.ones(3)}, {"w": torch.tensor([1.0, math.inf])}, {"w": torch.ones(0)}]
    answers = on_workers(pieces, lambda piece, shards: top_k(piece, 2, shards=shards))
    assert [type(answer) for answer in answers] == [NotFiniteError] * 3
    assert "w (1 of 2)" in str(answers[1])
    assert "a shard held by another process" in str(answers[0])
    assert "a shard held by another process" in str(answers[2])


def test_every_worker_refuses_a_k_beyond_the_whole() -> None:
    pieces = [{"w": torch.ones(3)}, {"w": torch.ones(2)}]
    answers = on_workers(pieces, lambda piece, shards: top_k(piece, 6, shards=shards))
    assert all(isinstance(answer, ValueError) and "from 0 to 5" in str(answer) for answer in answers)


@pytest.mark.parametrize(("digits", "expected"), [(gpu_digits, 5), (topk._digits, 4)], ids=["gpu", "cpu"])
def test_a_sharded_selection_sums_a_few_small_counts(digits: Callable, expected: int) -> None:
    """With ties to share out, which takes the most: digits, totals by layer, and the ties of earlier shards."""
    pieces = [{f"layer{i}": torch.ones(4, 4) for i in range(8)} for _ in range(4)]
    sizes: list[list[int]] = []

    def count(piece: dict[str, Tensor], shards: Shards) -> None:
        sent: list[int] = []
        sizes.append(sent)

        def add(counts: Tensor) -> Tensor:
            sent.append(counts.numel() * counts.element_size())
            return shards.sum(counts)

        top_k(piece, 100, shards=Shards(shards.index, shards.count, add))

    with small(digits=digits):
        assert on_workers(pieces, count) == [None] * 4
    assert all(len(sent) == expected and max(sent) <= 1 << 20 for sent in sizes)
    assert all(sent[-2:] == [2 * 8 * 8, 4 * 8 * 8] for sent in sizes), "layers twice; shards by layers"
