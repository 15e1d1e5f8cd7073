"""Exact global top-k: the k weights of a whole model with the largest magnitude.

T_k of the paper (§3, eq. 1) without sorting and without concatenating the weights. The bits of |x|, read as an integer,
order floats as their values do, so the k-th largest magnitude is found digit by digit: a histogram of the highest bits,
then one of the next bits among the values that share the chosen prefix, until one bit pattern, the threshold, is left.
Each pass streams over the weights in small chunks; the mask is the only large allocation.

Exactly k survive. When more values equal the threshold than there are places, the places are shared among layers in
proportion to their ties, no layer is left empty that a tie could keep alive, and within a layer the survivors are
spread evenly over positions. The rule uses only integers: it gives the same mask on every device and rank.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from acdc.errors import ArgumentError, NotFiniteError
from acdc.sparsity.masks import in_index_order, in_memory_order, new_mask

Scores = Mapping[str, Tensor]


@dataclass(frozen=True)
class Shards:
    """A split of scores over several processes: piece `index` of `count`, a contiguous run of every flattened tensor.

    `sum` adds an int64 tensor elementwise over all pieces (an all-reduce).
    """

    index: int
    count: int
    sum: Callable[[Tensor], Tensor]

    def first_row(self, rows: int) -> int:
        """Return the first of `rows` rows that this piece holds, where they are split as torch.chunk does."""
        return min(self.index * -(-rows // self.count), rows)


WHOLE = Shards(index=0, count=1, sum=lambda counts: counts)


@torch.no_grad()
def top_k(
    scores: Scores, k: int, *, out: Mapping[str, Tensor] | None = None, shards: Shards = WHOLE
) -> dict[str, Tensor]:
    """Return working masks (see masks.py) of the k largest |score|; k counts over all tensors and shards together.

    `out` are masks to write into, one for each score. They stay untouched if the scores are refused.
    """
    digits, keys = _digits(scores), _Keys(scores, _chunk(scores))
    histogram = shards.sum(_histogram(keys, None, digits[0])).cpu()
    total = int(histogram.sum())
    if not 0 <= k <= total:
        raise ArgumentError("k", k, f"expected a number of survivors from 0 to {total}, the number of scores")
    _refuse_non_finite(scores, histogram, digits[0])

    masks = {name: new_mask(score) if out is None else out[name] for name, score in scores.items()}
    if k in (0, total):
        for mask in masks.values():
            mask.fill_(0 if k == 0 else -1)
        return masks

    threshold, above = _pick(histogram, k)
    for digit in digits[1:]:
        histogram = shards.sum(_histogram(keys, threshold, digit)).cpu()
        low, skipped = _pick(histogram, k - above)
        threshold, above = threshold << digit.width | low, above + skipped
    places, ties = k - above, int(histogram[threshold & digits[-1].mask])

    for name, mask in masks.items():
        for part, kept in keys.with_mask(name, mask.view(torch.bool)):
            torch.ge(part, threshold if places == ties else threshold + 1, out=kept)
    if places < ties:
        _keep_ties(keys, masks, threshold, places, shards)
    for mask in masks.values():
        mask.neg_()
    return masks


def top_k_reference(scores: Scores, k: int) -> dict[str, Tensor]:
    """Return the same answer, slowly and obviously."""
    magnitudes = {name: score.detach().abs().double().flatten().tolist() for name, score in scores.items()}
    if k == 0:
        return {name: new_mask(score).fill_(0) for name, score in scores.items()}
    threshold = sorted((m for values in magnitudes.values() for m in values), reverse=True)[k - 1]
    tied = [values.count(threshold) for values in magnitudes.values()]
    strict = [sum(m > threshold for m in values) for values in magnitudes.values()]
    places = share_ties(tied, strict, k - sum(strict))
    masks = {}
    for (name, values), ties, share in zip(magnitudes.items(), tied, places, strict=True):
        keep, passed = [], 0
        for m in values:
            keep.append(m > threshold or (m == threshold and (passed + 1) * share // ties > passed * share // ties))
            passed += m == threshold
        masks[name] = new_mask(scores[name]).copy_(-torch.tensor(keep, dtype=torch.int8).view(scores[name].shape))
    return masks


def share_ties(ties: Sequence[int], strict: Sequence[int], places: int) -> list[int]:
    """Return how many of its ties each layer keeps: in proportion, `places` in all, leaving no layer empty.

    `strict` counts the survivors that each layer has anyway.
    """
    total, before, shares = sum(ties), 0, []
    for count in ties:
        shares.append((before + count) * places // total - before * places // total)
        before += count
    for layer, count in enumerate(ties):
        if count and shares[layer] + strict[layer] == 0:
            donors = [i for i, share in enumerate(shares) if share and share + strict[i] > 1]
            if donors:
                shares[max(donors, key=shares.__getitem__)] -= 1
                shares[layer] = 1
    return shares


@dataclass(frozen=True)
class _Digit:
    width: int  # bits in this digit
    below: int  # bits under it, still to come

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1


def _digits(scores: Scores) -> list[_Digit]:
    """Split the magnitude's bits into digits. A few wide ones suit a CPU's cache; GPU shared memory holds 2048 bins."""
    on_gpu = any(score.device.type != "cpu" for score in scores.values())
    widest, left, digits = (11 if on_gpu else 16), _bits(scores), []
    while left:
        width = min(widest, left)
        left -= width
        digits.append(_Digit(width, left))
    return digits


def _bits(scores: Scores) -> int:
    """Return the number of bits in a magnitude: narrower floats are read as float32, which holds all their values."""
    return 63 if any(score.dtype == torch.float64 for score in scores.values()) else 31


def _chunk(scores: Scores) -> int:
    """Return how many elements to read at once: what fits a CPU's cache, or on a GPU half a byte per weight."""
    if all(score.device.type == "cpu" for score in scores.values()):
        return 1 << 20
    return min(max(sum(s.numel() for s in scores.values()) // 8, 1 << 20), 1 << 26)


class _Keys:
    """A reader of scores as integers in the order of their magnitudes: the bits of |x|, without a sign, so −0 equals 0.

    It returns scratch memory, overwritten when the next piece is read.
    """

    def __init__(self, scores: Scores, chunk: int) -> None:
        self.scores, self.chunk = scores, chunk
        self.dtype = torch.int64 if _bits(scores) == 63 else torch.int32
        self.home = next((score.device for score in scores.values()), torch.device("cpu"))
        self._scratch: dict[torch.device, Tensor] = {}

    def read(self, part: Tensor, start: int = 0) -> Tensor:
        if part.device not in self._scratch:
            self._scratch[part.device] = torch.empty(self.chunk, dtype=self.dtype, device=part.device)
        keys = self._scratch[part.device][start : start + part.numel()].view(part.shape)
        bits = 0x7FFF_FFFF_FFFF_FFFF if self.dtype == torch.int64 else 0x7FFF_FFFF
        if part.element_size() == keys.element_size():
            return torch.bitwise_and(part.view(self.dtype), bits, out=keys)
        keys.view(torch.float64 if self.dtype == torch.int64 else torch.float32).copy_(part)
        return keys.bitwise_and_(bits)

    def everything(self) -> Iterator[Tensor]:
        """Yield all keys, flat and in no particular order, a chunk at a time; small layers share a chunk."""
        filled, device = 0, self.home
        for score in self.scores.values():
            for part in in_memory_order(score, self.chunk):
                if filled + part.numel() > self.chunk or part.device != device:
                    yield self._scratch[device][:filled]
                    filled, device = 0, part.device
                self.read(part, filled)
                filled += part.numel()
        if filled:
            yield self._scratch[device][:filled]

    def with_mask(self, name: str, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield pieces of one layer's keys and of its mask."""
        score = self.scores[name]
        if score.stride() == mask.stride():
            pieces = zip(in_memory_order(score, self.chunk), in_memory_order(mask, self.chunk), strict=True)
        else:
            pieces = in_index_order(self.chunk, score, mask)
        for part, kept in pieces:
            yield self.read(part), kept


def _histogram(keys: _Keys, prefix: int | None, digit: _Digit) -> Tensor:
    """Count each value of `digit` among the keys whose higher digits are `prefix`; None for the highest digit."""
    counts = torch.zeros(1 << digit.width, dtype=torch.int64, device=keys.home)
    for part in keys.everything():
        if digit.below:
            part.bitwise_right_shift_(digit.below)
        if prefix is not None:
            part.sub_(prefix << digit.width)  # keys of another prefix now lie outside the digit's range
        counts += _count(part, digit.width, all_inside=prefix is None).to(keys.home)
    return counts


def _count(values: Tensor, width: int, *, all_inside: bool) -> Tensor:
    """Count how often each number from 0 to below 2^width occurs; others are not counted."""
    bins = 1 << width
    if values.is_cuda and not torch.are_deterministic_algorithms_enabled():  # counting is deterministic all the same
        return torch.histc(values, bins, 0, bins - 1)
    return torch.bincount(values if all_inside else values[values >> width == 0], minlength=bins)


def _pick(histogram: Tensor, rank: int) -> tuple[int, int]:
    """Return the value that holds the rank-th largest entry, and how many entries lie above that value."""
    reached = histogram.flip(0).cumsum(0)  # entries at or above each value, from the highest down
    place = int(torch.searchsorted(reached, rank))
    assert place < len(histogram), "rank exceeds the number of entries"
    value = len(histogram) - 1 - place
    return value, int(reached[place] - histogram[value])


def _keep_ties(keys: _Keys, masks: dict[str, Tensor], threshold: int, places: int, shards: Shards) -> None:
    """Add `places` of the keys equal to the threshold to masks (of 0 and 1) that hold those above it."""
    chunk = max(1, keys.chunk // 8)  # torch counts with 8 bytes per element, and ties may be many
    counts = torch.zeros(2, len(masks), dtype=torch.int64, device=keys.home)
    for layer, (name, mask) in enumerate(masks.items()):
        for part, kept in in_index_order(chunk, keys.scores[name], mask):
            counts[0, layer] += (keys.read(part) == threshold).count_nonzero().to(keys.home)
            counts[1, layer] += kept.count_nonzero().to(keys.home)
    own = counts[0].tolist()
    tied, strict = shards.sum(counts).tolist() if shards.count > 1 else counts.tolist()
    shares = share_ties(tied, strict, places)
    before = _ties_before(own, [0 < share < ties for share, ties in zip(shares, tied, strict=True)], keys.home, shards)

    for layer, (name, mask) in enumerate(masks.items()):
        ties, share, passed = tied[layer], shares[layer], before[layer]
        if not share or not own[layer]:
            continue
        for part, kept in in_index_order(chunk, keys.scores[name], mask):
            at = (keys.read(part) == threshold).flatten().nonzero().flatten()
            rank = torch.arange(passed, passed + len(at), device=at.device)  # among the layer's ties
            chosen = torch.zeros(part.numel(), dtype=torch.bool, device=at.device)
            chosen[at[(rank + 1) * share // ties > rank * share // ties]] = True
            kept |= chosen.view(kept.shape)
            passed += len(at)


def _ties_before(own: list[int], shared: list[bool], home: torch.device, shards: Shards) -> list[int]:
    """Return how many of each layer's ties earlier shards hold, given this one's. Where none or all stay, 0 will do."""
    layers = [layer for layer, asked in enumerate(shared) if asked]
    before = [0] * len(own)
    if shards.count == 1 or not layers:
        return before
    table = torch.zeros(shards.count, len(layers), dtype=torch.int64)
    table[shards.index] = torch.tensor([own[layer] for layer in layers])
    for layer, count in zip(layers, shards.sum(table.to(home))[: shards.index].sum(0).tolist(), strict=True):
        before[layer] = count
    return before


def _refuse_non_finite(scores: Scores, histogram: Tensor, digit: _Digit) -> None:
    infinity = (0x7FF0 << 48 if _bits(scores) == 63 else 0x7F80 << 16) >> digit.below
    if not int(histogram[infinity:].sum()):
        return
    bad = {name: int((~score.isfinite()).sum()) for name, score in scores.items()}
    named = ", ".join(f"{name} ({count} of {scores[name].numel()})" for name, count in bad.items() if count)
    raise NotFiniteError(named or "a shard held by another process")
