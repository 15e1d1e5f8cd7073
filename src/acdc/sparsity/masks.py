"""Masks: one byte per weight while in use, one bit per weight when stored.

A working mask is int8, 0 where the weight is pruned and −1 (all bits set) where it is kept, so that masking is one
bitwise AND over the raw bits. Unlike a product, it gives exactly +0 even where the gradient is infinite or NaN.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

# The AND widens the mask to the gradient's type; on a CPU torch does so in a temporary, which must stay in cache.
_CPU_CHUNK = 1 << 18
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def new_mask(like: Tensor) -> Tensor:
    """Return an uninitialised working mask with the layout of `like`, or contiguous if that has holes or overlaps."""
    layout = torch.preserve_format if _is_dense(like) else torch.contiguous_format
    return torch.empty_like(like, dtype=torch.int8, requires_grad=False, memory_format=layout)


def as_bool(mask: Tensor) -> Tensor:
    """Return the mask as booleans, True where a weight is kept."""
    return mask != 0


def from_bool(keep: Tensor) -> Tensor:
    """Return the working mask that keeps weights where `keep` is True."""
    return keep.to(torch.int8).neg_()


def bits_of(tensor: Tensor) -> Tensor:
    """Return the same memory as integers."""
    return tensor.detach().view(_BITS[tensor.element_size()])


def widen(mask: Tensor, like: Tensor) -> Tensor:
    """Return a mask for repeated use: on a CPU as wide as its tensor, or an AND would widen it each time."""
    return mask if mask.device.type != "cpu" else mask.to(_BITS[like.element_size()])


def write_masked(tensor: Tensor, mask: Tensor, out: Tensor) -> None:
    """Write the tensor into `out`, with exact zeros wherever the mask is 0."""
    torch.bitwise_and(bits_of(tensor), mask, out=bits_of(out))


def apply_(tensor: Tensor, mask: Tensor) -> None:
    """Zero `tensor` in place wherever the mask is 0, in one pass that allocates only a small chunk."""
    bits = bits_of(tensor)
    if bits.device.type != "cpu" or bits.numel() <= _CPU_CHUNK or bits.stride() != mask.stride():
        bits.bitwise_and_(mask)
        return
    for part, part_mask in zip(in_memory_order(bits, _CPU_CHUNK), in_memory_order(mask, _CPU_CHUNK), strict=True):
        part.bitwise_and_(part_mask)


def in_memory_order(tensor: Tensor, chunk: int) -> Iterator[Tensor]:
    """Yield pieces of at most `chunk` elements in memory order, for passes to which the order does not matter.

    Two tensors of one shape and stride give matching pieces. The pieces are views.
    """
    if _is_dense(tensor):
        yield from tensor.as_strided((tensor.numel(),), (1,)).split(chunk)
    else:
        for (part,) in in_index_order(chunk, tensor):
            yield part


def in_index_order(chunk: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield matching slices of tensors of one shape, at most `chunk` elements each, in index order, for any layout."""
    size, rows = tensors[0].numel(), (tensors[0].shape or [0])[0]
    if size <= chunk:
        yield tensors
    elif size // rows > chunk:
        for parts in zip(*tensors, strict=True):
            yield from in_index_order(chunk, *parts)
    else:
        yield from zip(*(tensor.split(chunk * rows // size) for tensor in tensors), strict=True)


def _is_dense(tensor: Tensor) -> bool:
    """Return True if there are no holes and no overlaps: the strides are a permutation of contiguous ones."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def pack(mask: Tensor) -> Tensor:
    """Return a working mask as bits in index order, eight to a byte, lowest bit first."""
    keep = mask.ne(0).reshape(-1)
    padded = torch.zeros(-(-keep.numel() // 8) * 8, dtype=torch.uint8, device=keep.device)
    padded[: keep.numel()] = keep
    packed = torch.zeros(padded.numel() // 8, dtype=torch.uint8, device=keep.device)
    for bit in range(8):
        packed |= padded[bit::8] << bit
    return packed


def packed_like(weight: Tensor) -> Tensor:
    """Return a tensor without memory that has the shape and type of the weight's packed mask."""
    return torch.empty(-(-weight.numel() // 8), dtype=torch.uint8, device="meta")


def unpack(packed: Tensor, like: Tensor) -> Tensor:
    """Return the working mask that `pack` packed, with the shape, layout and device of `like`."""
    packed = packed.to(like.device)
    keep = torch.empty(packed.numel() * 8, dtype=torch.int8, device=like.device)
    for bit in range(8):
        keep[bit::8] = (packed >> bit) & 1
    mask = new_mask(like)
    mask.copy_(keep[: like.numel()].view(like.shape))
    return mask.neg_()


def count_kept(mask: Tensor) -> int:
    """Return how many weights the mask keeps."""
    return int(mask.count_nonzero())
