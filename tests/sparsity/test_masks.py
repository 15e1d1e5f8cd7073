"""Masks: masking is exact whatever the bits, packing loses nothing, and the walks over a tensor miss nothing."""

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from acdc.sparsity import masks
from acdc.sparsity.masks import (
    apply_,
    as_bool,
    count_kept,
    from_bool,
    in_index_order,
    in_memory_order,
    new_mask,
    pack,
    unpack,
)
from tests.sparsity.tensors import BITS, DTYPES, LAYOUTS, lay_out

some = settings(deadline=None, max_examples=80)
shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)
layouts = st.sampled_from(LAYOUTS)
chunks = st.integers(1, 40)
seeds = st.integers(0, 2**32)


def any_bits(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Every bit pattern may come up: NaNs with their payloads, infinities, both zeros, denormals."""
    generator, limits = torch.Generator().manual_seed(seed), torch.iinfo(BITS[dtype])
    bits = torch.randint(limits.min, limits.max, shape, generator=generator, dtype=BITS[dtype])
    special = torch.tensor([math.nan, math.inf, -math.inf, -0.0], dtype=dtype).view(BITS[dtype])
    where = torch.randint(0, 8, shape, generator=generator)
    return torch.where(where < 4, special[where % 4], bits).view(dtype)


def any_mask(shape: tuple[int, ...], seed: int, layout: str = "contiguous") -> Tensor:
    keep = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    holed = lay_out(torch.where(keep, -1.0, 0.0), layout)
    base = holed.storage_offset(), holed.untyped_storage().nbytes() // 4
    flat = holed.as_strided((base[1],), (1,), 0).nan_to_num(77).to(torch.int8)
    return flat.as_strided(holed.shape, holed.stride(), base[0])


def bits_of(tensor: Tensor) -> Tensor:
    return tensor.detach().view(BITS[tensor.dtype])


def check_apply(tensor: Tensor, mask: Tensor) -> None:
    expected = torch.where(mask != 0, bits_of(tensor), 0)
    mask_before = mask.clone()
    apply_(tensor, mask)
    assert torch.equal(bits_of(tensor), expected)
    assert torch.equal(mask, mask_before)


# Applying


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1.0])
def test_pruned_places_become_plus_zero(dtype: torch.dtype, value: float) -> None:
    """A product would leave NaN for NaN and infinity, and −0 for negative values."""
    tensor = torch.full((9,), value, dtype=dtype)
    mask = from_bool(torch.arange(9) % 2 == 0)
    apply_(tensor, mask)
    assert bits_of(tensor)[1::2].tolist() == [0] * 4
    assert bits_of(tensor)[::2].tolist() == bits_of(torch.full((5,), value, dtype=dtype)).tolist()


@some
@given(shapes, st.sampled_from(DTYPES), layouts, layouts, seeds, st.sampled_from([1, 5, 16, 1 << 18]))
def test_kept_places_keep_every_bit(
    shape: tuple[int, ...], dtype: torch.dtype, layout: str, mask_layout: str, seed: int, chunk: int
) -> None:
    """For any pair of layouts, the same or different, in one piece and in many."""
    tensor = lay_out(any_bits(shape, dtype, seed), layout)
    with patch.object(masks, "_CPU_CHUNK", chunk):
        check_apply(tensor, any_mask(shape, seed, mask_layout))


def test_what_lies_between_the_elements_is_not_touched() -> None:
    base = torch.ones(4, 10)
    with patch.object(masks, "_CPU_CHUNK", 3):
        apply_(base[1:3, ::2], torch.zeros(2, 5, dtype=torch.int8))
    assert base.sum() == 30
    assert base[1:3, ::2].count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels_last"])
def test_tensors_beyond_one_chunk(dtype: torch.dtype, layout: str) -> None:
    """No patch: more elements than one pass takes, and not a multiple."""
    shape = (3, 7, 113, 113)
    assert math.prod(shape) > masks._CPU_CHUNK
    tensor = lay_out(any_bits(shape, dtype, 0), layout)
    mask = new_mask(tensor).copy_(any_mask(shape, 1))
    assert mask.stride() == tensor.stride()
    check_apply(tensor, mask)


def test_parameters_and_gradients_are_masked_in_place() -> None:
    weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    (weight * torch.tensor([1.0, math.inf, math.nan])).sum().backward()
    address = weight.data_ptr()
    mask = from_bool(torch.tensor([True, False, False]))
    apply_(weight, mask)
    assert weight.grad is not None
    apply_(weight.grad, mask)
    assert weight.tolist() == [1.0, 0.0, 0.0]
    assert weight.grad.tolist() == [1.0, 0.0, 0.0]
    assert weight.data_ptr() == address
    assert weight.requires_grad
    assert weight.is_leaf


# Making


@some
@given(shapes, layouts, st.sampled_from(DTYPES))
def test_new_mask_lies_as_its_parameter_does(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> None:
    like = lay_out(torch.zeros(shape, dtype=dtype), layout).requires_grad_()
    mask = new_mask(like)
    assert mask.dtype == torch.int8
    assert mask.shape == like.shape
    assert not mask.requires_grad
    if layout == "strided" and like.numel() > 1 and not like.is_contiguous():
        assert mask.is_contiguous()
    elif like.numel():
        assert all(m == s for m, s, n in zip(mask.stride(), like.stride(), shape, strict=True) if n > 1)


@some
@given(shapes, layouts, seeds)
def test_booleans_and_back(shape: tuple[int, ...], layout: str, seed: int) -> None:
    mask = any_mask(shape, seed, layout)
    keep = as_bool(mask)
    assert keep.dtype == torch.bool
    assert torch.equal(keep, mask == -1)
    assert torch.equal(from_bool(keep), mask)
    assert count_kept(mask) == sum(keep.flatten().tolist())


# Packing


@some
@given(shapes, layouts, layouts, seeds)
def test_packing_loses_nothing(shape: tuple[int, ...], layout: str, like_layout: str, seed: int) -> None:
    mask = any_mask(shape, seed, layout)
    packed = pack(mask)
    assert packed.dtype == torch.uint8
    assert packed.numel() == math.ceil(mask.numel() / 8)
    like = lay_out(torch.zeros(shape), like_layout)
    restored = unpack(packed, like)
    assert torch.equal(restored, mask)
    assert restored.stride() == new_mask(like).stride()


@some
@given(shapes, layouts, seeds)
def test_packed_bits_are_in_index_order_lowest_first(shape: tuple[int, ...], layout: str, seed: int) -> None:
    """The format of a checkpoint, so it may not depend on the layout; the bits past the end are 0."""
    mask = any_mask(shape, seed, layout)
    number = sum(1 << i for i, value in enumerate(mask.flatten().tolist()) if value)
    assert bytes(pack(mask).tolist()) == number.to_bytes(math.ceil(mask.numel() / 8), "little")


# Walking


@some
@given(shapes, st.lists(layouts, min_size=1, max_size=3), chunks)
def test_in_index_order_visits_each_element_once_in_order(
    shape: tuple[int, ...], layouts: list[str], chunk: int
) -> None:
    plain = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
    tensors = [lay_out(plain, layout) for layout in layouts]
    seen: list[list[float]] = [[] for _ in tensors]
    for parts in in_index_order(chunk, *tensors):
        assert len(parts) == len(tensors)
        assert len({part.shape for part in parts}) == 1
        assert parts[0].numel() <= chunk
        for values, part in zip(seen, parts, strict=True):
            values += part.flatten().tolist()
    assert seen == [plain.flatten().tolist()] * len(tensors)


@some
@given(shapes, layouts, chunks)
def test_in_memory_order_visits_each_element_once(shape: tuple[int, ...], layout: str, chunk: int) -> None:
    plain = torch.arange(math.prod(shape), dtype=torch.float32).view(shape)
    tensor = lay_out(plain, layout)
    parts = list(in_memory_order(tensor, chunk))
    assert all(part.numel() <= chunk for part in parts)
    values = [value for part in parts for value in part.flatten().tolist()]
    assert sorted(values) == plain.flatten().tolist()
    if layout != "strided" and tensor.numel():
        assert values == tensor.as_strided((tensor.numel(),), (1,)).tolist()


@some
@given(shapes, layouts, chunks)
def test_in_memory_order_of_one_stride_gives_matching_pieces(shape: tuple[int, ...], layout: str, chunk: int) -> None:
    first = lay_out(torch.arange(math.prod(shape), dtype=torch.float32).view(shape), layout)
    second = lay_out(torch.arange(math.prod(shape), dtype=torch.float32).view(shape) + 0.5, layout)
    for one, other in zip(in_memory_order(first, chunk), in_memory_order(second, chunk), strict=True):
        assert torch.equal(one + 0.5, other)


def test_the_stride_of_an_axis_of_one_does_not_matter() -> None:
    """Channels last and 1 x 1 kernels give such strides; memory without holes is walked in flat pieces."""
    tensor = torch.zeros(200).as_strided((6, 1, 1), (1, 50, 3))
    assert [part.shape for part in in_memory_order(tensor, 4)] == [(4,), (2,)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("walk", [in_memory_order, lambda t, chunk: (part for (part,) in in_index_order(chunk, t))])
def test_pieces_are_views(layout: str, walk) -> None:
    tensor = lay_out(torch.zeros(5, 3, 2, 4), layout)
    for part in walk(tensor, 7):
        part += 1
    assert torch.equal(tensor, torch.ones(5, 3, 2, 4))


@pytest.mark.parametrize("shape", [(1, 100), (100, 1), (1, 1, 50, 2), (2, 50), (7,)])
def test_pieces_are_as_large_as_the_chunk_allows(shape: tuple[int, ...]) -> None:
    """One element at a time would be correct too, and useless."""
    parts = [part for (part,) in in_index_order(16, torch.zeros(shape))]
    assert len(parts) <= math.ceil(math.prod(shape) / 8)
