"""Codes the positions of the elements that are not 0 by the gaps between them: about half a bit per element at 90 %.

Each gap, the number of zeros before an element, is split (Rice's code) into its lowest `low` bits and the rest:

    byte 0          low, from 0 to 16
    bytes 1 – 8     count, the number of positions, little-endian
    then            the low bits of each gap, lowest first, without space between them
    then            the rest of each gap in unary: as many 0s as it says, then a 1

Both parts are filled with 0s to whole bytes. Bits are counted from the lowest of each byte, as in a packed mask. For
random positions this is within 2 % of the entropy; a bitmask takes one bit per element at any sparsity.
"""

import math

import torch
from torch import Tensor

from acdc.sparsity.masks import pack

HEAD = 9  # bytes before the low bits
_MOST_LOW = 16


def expected_bytes(size: int, kept: int) -> int:
    """Return about how many bytes the positions of `kept` of `size` elements take: their entropy if random."""
    share = kept / size if size else 0.0
    bits = -sum(part * math.log2(part) for part in (share, 1 - share) if part > 0)
    return math.ceil(bits * size / 8)


class GapError(ValueError):
    """A code that no positions have; the text says why."""


def choose(positions: Tensor) -> tuple[int, int]:
    """Return the number of low bits that gives the shortest code of these sorted positions, and its bytes."""
    gaps, lengths = _gaps(positions), list[tuple[int, int]]()
    for low in range(_MOST_LOW + 1):
        rest = int((gaps >> low).sum())
        lengths.append((HEAD + -(-len(gaps) * low // 8) + -(-(rest + len(gaps)) // 8), low))
        if rest < len(gaps):  # another low bit for each would take more than it saves
            break
    length, low = min(lengths)
    return low, length


def encode(positions: Tensor, low: int) -> Tensor:
    """Return the code of sorted positions as bytes."""
    gaps = _gaps(positions)
    lows = torch.zeros(len(gaps) * low, dtype=torch.int8)
    for place in range(low):
        lows[place::low] = (gaps >> place) & 1
    ends = torch.cumsum((gaps >> low) + 1, 0) - 1
    unary = torch.zeros(int(ends[-1]) + 1 if len(ends) else 0, dtype=torch.int8)
    unary[ends] = 1
    head = bytes([low]) + len(gaps).to_bytes(8, "little")
    return torch.cat([torch.frombuffer(bytearray(head), dtype=torch.uint8), pack(lows), pack(unary)])


def decode(code: Tensor, size: int) -> Tensor:
    """Return the positions, which are below `size`, or raise a GapError. Memory is proportional to the code's bytes."""
    head = bytes(code[:HEAD].tolist())
    if len(head) < HEAD or head[0] > _MOST_LOW:
        raise GapError("its gaps do not begin with their number of low bits and their count")
    low, count = head[0], int.from_bytes(head[1:], "little")
    middle = HEAD + -(-count * low // 8)
    if count > size or middle + -(-count // 8) > len(code):
        raise GapError(f"its {len(code):,} bytes of gaps cannot hold {count:,} of them in {size:,} elements")
    lows, unary = _bits(code[HEAD:middle]), _bits(code[middle:])
    ends = unary.nonzero().flatten()
    if len(ends) != count:
        raise GapError(f"it has {len(ends):,} gaps where {count:,} are announced")
    last = int(ends[-1]) // 8 + 1 if count else 0
    if lows[count * low :].any() or last != len(code) - middle:
        raise GapError("its gaps have bits after the last one")
    steps = (torch.diff(ends, prepend=ends.new_tensor([-1])) - 1) << low
    for place in range(low):
        steps += lows[place : count * low : low].long() << place
    positions = torch.cumsum(steps + 1, 0) - 1
    if count and int(positions[-1]) >= size:
        raise GapError(f"its gaps lead to element {int(positions[-1]):,} of {size:,}")
    return positions


def _gaps(positions: Tensor) -> Tensor:
    return torch.diff(positions, prepend=positions.new_tensor([-1])) - 1


def _bits(packed: Tensor) -> Tensor:
    """Return the bits of these bytes, one to an element."""
    bits = torch.empty(len(packed) * 8, dtype=torch.int8)
    for bit in range(8):
        bits[bit::8] = (packed >> bit) & 1
    return bits
