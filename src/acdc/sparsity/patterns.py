"""The shapes that zeros may take: single weights, N of M, tiles, whole channels.

A pattern says which layers it fits and writes the masks of the largest scores within the budgets it is given. Scores
are magnitudes: only their absolute value counts.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

import torch
from torch import Tensor

from acdc.errors import ArgumentError, Shown
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Weight, check_axes
from acdc.sparsity.masks import in_index_order
from acdc.sparsity.topk import WHOLE, Scores, Shards, top_k

_CHUNK = 1 << 20
_PIECE = 1 << 16  # small enough to stay in a CPU's cache through the many operations of an N:M choice


class Pattern(Protocol):
    """The shape of the zeros: which layers it fits, and the masks of the largest scores in that shape."""

    @property
    def sparsity(self) -> float | None:
        """Return the sparsity that the pattern itself fixes, or None if the budget decides."""
        ...

    def why_not(self, weight: Weight) -> str | None:
        """Return why this layer cannot have the pattern and stays dense, or None if it can.

        A pattern that needs a layer's axes refuses layers whose axes are not known.
        """
        ...

    def write_masks(
        self,
        weights: Sequence[Weight],
        scores: Scores,
        budgets: Sequence[Budget],
        out: Mapping[str, Tensor],
        shards: Shards = WHOLE,
    ) -> None:
        """Write the working masks (masks.py) of all `weights` into `out`.

        Of sharded weights, scores and masks are this process's rows (their first axis, split as torch.chunk does).
        """
        ...

    def check_shards(self, weights: Sequence[Weight], shards: Shards) -> None:
        """Raise if this split of the weights' first axis divides what the pattern keeps or prunes together."""
        ...


@dataclass(frozen=True)
class Unstructured:
    """Single weights: any of them may be zero, and exactly the budget survives."""

    @property
    def sparsity(self) -> None:
        return None

    def why_not(self, weight: Weight) -> str | None:
        return None

    def check_shards(self, weights: Sequence[Weight], shards: Shards) -> None:
        return

    def write_masks(self, weights, scores, budgets, out, shards=WHOLE) -> None:
        for budget in budgets:
            top_k({name: scores[name] for name in budget.names}, budget.keep, out=out, shards=shards)


@dataclass(frozen=True)
class NM:
    """N of every M consecutive input channels at one kernel position: the format of sparse tensor cores.

    Layers whose number of input channels is not a multiple of M stay dense. All others have sparsity 1 − N/M.
    """

    n: int
    m: int

    def __post_init__(self) -> None:
        if not (isinstance(self.n, int) and isinstance(self.m, int) and 0 < self.n < self.m):
            received = Shown(f"NM({self.n!r}, {self.m!r})")
            raise ArgumentError("pattern", received, "expected whole numbers 0 < N < M", "write NM(2, 4)")

    @property
    def sparsity(self) -> float:
        return 1 - self.n / self.m

    def why_not(self, weight: Weight) -> str | None:
        _check_axes(self, weight)
        channels = _in_channels(weight)
        return f"{channels} input channels are not a multiple of {self.m}" if channels % self.m else None

    def check_shards(self, weights: Sequence[Weight], shards: Shards) -> None:
        for weight in weights if shards.count > 1 else ():
            if weight.in_dim == 0:
                raise _split(self, weight, f"its input channels, so groups of {self.m} would be in two shards")

    def write_masks(self, weights, scores, budgets, out, shards=WHOLE) -> None:
        self.check_shards(weights, shards)
        _refuse_non_finite({weight.name: scores[weight.name] for weight in weights}, shards)
        for weight in weights:
            rows, size = weight.param.shape[0], weight.param.numel()
            first = shards.first_row(rows) * (size // max(1, rows)) // self.m
            self.write_mask(weight, scores[weight.name], out[weight.name], first)

    def write_mask(self, weight: Weight, score: Tensor, mask: Tensor, group: int = 0) -> None:
        """Write the mask of one layer, whose scores are known to be finite, without waiting for a device.

        `group` is the number of its first group; only where shards of earlier rows are elsewhere is it not 0.
        """
        score, mask = _channels_last(score, weight), _channels_last(mask, weight)
        for part, kept in in_index_order(max(_CHUNK // self.m, 1) * self.m, score, mask):
            groups = part.reshape(-1, self.m)
            kept.copy_(_keep_n(groups, self.n, group).neg_().view(kept.shape))
            group += groups.shape[0]

    def keep_(self, weights: Sequence[Weight], tensors: Sequence[Tensor]) -> None:
        """Zero all but the N largest of every M in layers known to be finite, many at once; no device has to wait."""
        last = [_channels_last(tensor, weight) for weight, tensor in zip(weights, tensors, strict=True)]
        sizes = [tensor.numel() // self.m for tensor in last]
        if len(sizes) > 1 and any(size % self.m for size in sizes):  # ties are broken by position in the layer
            for weight, tensor in zip(weights, tensors, strict=True):
                self.keep_([weight], [tensor])
            return
        flat = [tensor.reshape(-1, self.m) for tensor in last]
        groups = torch.cat(flat) if len(flat) > 1 else flat[0]
        step = len(groups) if groups.is_cuda else max(_PIECE // self.m**2, 1) * self.m
        for first in range(0, len(groups), step):
            part = groups[first : first + step]
            part.mul_(_keep_n(part, self.n, first))
        for tensor, kept in zip(last, groups.split(sizes), strict=True):
            tensor.copy_(kept.view(tensor.shape))


@dataclass(frozen=True)
class Block:
    """Tiles of `rows` output by `cols` input channels at one kernel position, kept or pruned as a whole.

    A tile's score is the sum of its magnitudes. Layers that do not divide into whole tiles stay dense.
    """

    rows: int
    cols: int

    def __post_init__(self) -> None:
        if not (isinstance(self.rows, int) and isinstance(self.cols, int) and min(self.rows, self.cols) > 0):
            received = Shown(f"Block({self.rows!r}, {self.cols!r})")
            raise ArgumentError("pattern", received, "expected whole numbers above 0", "write Block(4, 4)")

    @property
    def sparsity(self) -> None:
        return None

    def why_not(self, weight: Weight) -> str | None:
        _check_axes(self, weight)
        out_channels, in_channels = _out_channels(weight), _in_channels(weight)
        if out_channels % self.rows or in_channels % self.cols:
            return f"{out_channels} x {in_channels} channels do not divide into {self.rows} x {self.cols} tiles"
        return None

    def check_shards(self, weights: Sequence[Weight], shards: Shards) -> None:
        for weight in weights if shards.count > 1 else ():
            rows = -(-weight.param.shape[0] // shards.count)  # of each shard but the last ones
            if weight.out_dim != 0:
                raise _split(self, weight, "its input channels, and tiles are counted along the output channels")
            if math.prod(weight.param.shape[2:]) > 1:
                raise _split(self, weight, "its output channels, but its tiles are counted by kernel positions first")
            if rows % self.rows:
                raise _split(self, weight, f"its output channels by {rows}, which divides tiles of {self.rows} rows")

    def write_masks(self, weights, scores, budgets, out, shards=WHOLE) -> None:
        self.check_shards(weights, shards)
        by_name = {w.name: w for w in weights}
        for budget in budgets:
            tiles = {name: self._tile_scores(scores[name], by_name[name]) for name in budget.names}
            chosen = top_k(tiles, _whole(budget.keep, self.rows * self.cols), shards=shards)
            for name in budget.names:
                mask = _out_in_last(out[name], by_name[name])
                *_, rows, cols = mask.shape
                grown = chosen[name].repeat_interleave(self.rows, -2).repeat_interleave(self.cols, -1)
                mask.copy_(grown.view(*mask.shape[:-2], rows, cols))

    def _tile_scores(self, score: Tensor, weight: Weight) -> Tensor:
        matrix = _out_in_last(score, weight)
        *positions, rows, cols = matrix.shape
        tiled = matrix.abs().reshape(*positions, rows // self.rows, self.rows, cols // self.cols, self.cols)
        return tiled.sum(dim=(-3, -1), dtype=torch.float64)


@dataclass(frozen=True)
class Channel:
    """Whole output channels, kept or pruned; a channel's score is its root mean square.

    Channels of different layers differ in size, so the best ones are kept as long as they fit the budget. Every layer
    keeps at least one.
    """

    @property
    def sparsity(self) -> None:
        return None

    def why_not(self, weight: Weight) -> str | None:
        _check_axes(self, weight)
        return None

    def check_shards(self, weights: Sequence[Weight], shards: Shards) -> None:
        for weight in weights if shards.count > 1 else ():
            if weight.out_dim != 0:
                raise _split(self, weight, "its input channels, so every output channel would be in all shards")

    def write_masks(self, weights, scores, budgets, out, shards=WHOLE) -> None:
        self.check_shards(weights, shards)
        by_name = {w.name: w for w in weights}
        for budget in budgets:
            _refuse_non_finite({name: scores[name] for name in budget.names}, shards)
            rms, size, layer = [], [], []
            for index, name in enumerate(budget.names):
                weight, channels = by_name[name], _channels(by_name[name])
                rows = scores[name].movedim(weight.out_dim, 0).flatten(1).double()
                rms += _gather(rows.square().mean(1).sqrt(), channels, shards).tolist()
                size += [weight.param.numel() // max(1, channels)] * channels
                layer += [index] * channels
            kept = _fill(rms, size, layer, budget.keep)
            start = 0
            for name in budget.names:
                mask, channels = out[name].movedim(by_name[name].out_dim, 0), _channels(by_name[name])
                first = start + shards.first_row(channels)
                keep = torch.tensor(kept[first : first + mask.shape[0]], dtype=torch.int8, device=mask.device)
                mask.copy_(-keep.view(-1, *[1] * (mask.ndim - 1)))
                start += channels


def _channels(weight: Weight) -> int:
    return weight.param.shape[weight.out_dim]


def _gather(own: Tensor, size: int, shards: Shards) -> Tensor:
    """Return a vector of float64 of which each shard holds a run. A sum of bits with zeros is exact."""
    if shards.count == 1:
        return own
    whole = torch.zeros(size, dtype=torch.float64, device=own.device)
    first = shards.first_row(size)
    whole[first : first + len(own)] = own
    return shards.sum(whole.view(torch.int64)).view(torch.float64)


def _fill(score: list[float], size: list[int], layer: list[int], budget: int) -> list[bool]:
    """Keep channels in order of falling score, the best of each layer first, until the next would exceed the budget."""
    places = Counter(layer)
    used: Counter = Counter()
    share = []
    for at in layer:
        used[at] += 1
        share.append(Fraction(used[at], places[at]))
    order = sorted(range(len(score)), key=lambda c: (-score[c], share[c]))
    first = {layer[c]: c for c in reversed(order)}
    kept = [False] * len(score)
    for channel in first.values():
        kept[channel] = True
        budget -= size[channel]
    for channel in order:
        if kept[channel]:
            continue
        if size[channel] > budget:
            break
        kept[channel] = True
        budget -= size[channel]
    return kept


def _keep_n(groups: Tensor, n: int, first_group: int) -> Tensor:
    """Return 1 at the n largest magnitudes of each row, 0 elsewhere. Among equals, the starting position moves on by
    one with every row.

    Whatever is not below the n-th largest is kept; the few rows in which that is more than n are redone pairwise. To
    know whether there are any, a GPU would have to wait.
    """
    if groups.is_cuda:
        return _keep_n_by_keys(groups, n, first_group)
    kept = groups.abs().contiguous()
    kept.ge_(_nth_largest([column.abs() for column in groups.unbind(1)], n)[:, None])
    if kept.sum(dtype=torch.float32) != n * len(kept):
        tied = kept.sum(1, dtype=torch.float32).ne(n).nonzero().squeeze(1)
        kept[tied] = _keep_n_by_pairs(groups[tied].abs(), n, tied + first_group).to(kept.dtype)
    return kept


def _keep_n_by_keys(groups: Tensor, n: int, first_group: int) -> Tensor:
    """Return the same, by keys. Magnitudes are ordered like their bits; times m plus a position in the row, no two are
    equal, and a double still holds them exactly.
    """
    rows, m = groups.shape
    if groups.element_size() > 4:
        turns = torch.arange(first_group, first_group + rows, device=groups.device)
        return _keep_n_by_pairs(groups.abs(), n, turns).to(groups.dtype).contiguous()
    keys = torch.empty(m, rows, dtype=torch.float64, device=groups.device)
    keys.copy_(groups.float().abs().view(torch.int32).t())
    turn = torch.arange(m, device=groups.device)
    place = (m - 1 - (turn[:, None] + turn + first_group) % m).double()  # of each column, in a row of each turn
    whole = rows - rows % m
    keys.mul_(m)[:, :whole].unflatten(1, (-1, m)).add_(place[:, None])
    keys[:, whole:] += place[:, : rows - whole]
    smallest = _nth_largest(list(keys), n)
    kept = torch.empty(rows, m, dtype=groups.dtype, device=groups.device)
    for column, key in enumerate(keys):
        kept[:, column] = key.ge_(smallest)
    return kept


def _nth_largest(columns: list[Tensor], n: int) -> Tensor:
    """Return the n-th largest value of each row."""
    for place in range(n):  # the largest comes to place 0, the next to place 1, …
        for other in range(place + 1, len(columns)):
            one, two = columns[place], columns[other]
            columns[place] = torch.maximum(one, two)
            if place < n - 1:
                columns[other] = torch.minimum(one, two)
    return columns[n - 1]


def _keep_n_by_pairs(groups: Tensor, n: int, turns: Tensor) -> Tensor:
    """Return the same for any magnitudes, comparing all pairs in a row. A row's turn is its number."""
    rows, m = groups.shape
    turn = (turns % m).to(torch.int16)
    columns = groups.t().contiguous()
    beaten_by = torch.zeros(m, rows, dtype=torch.int16, device=groups.device)
    for one in range(m):
        for other in range(one + 1, m):  # `one` comes first among equals unless the turn lies between the two
            first = (turn < m - other) | (turn >= m - one)
            wins = (columns[one] > columns[other]) | ((columns[one] == columns[other]) & first)
            beaten_by[other] += wins
            beaten_by[one] += ~wins
    return (beaten_by < n).t()


def _split(pattern: Pattern, weight: Weight, along: str) -> ArgumentError:
    return ArgumentError(
        "pattern",
        pattern,
        f"{weight.name} of shape {tuple(weight.param.shape)} is sharded along {along}",
        f"leave it dense with exclude=[{weight.name!r}], or write pattern=acdc.Unstructured()",
    )


def _check_axes(pattern: Pattern, weight: Weight) -> None:
    check_axes(weight, "pattern", pattern, "write pattern=acdc.Unstructured()")


def _in_channels(weight: Weight) -> int:
    channels = weight.param.shape[weight.in_dim]
    groups = getattr(weight.module, "groups", 1) if weight.kind == "conv_transpose" else 1
    return channels // groups


def _out_channels(weight: Weight) -> int:
    """Return how many output channels read the same inputs: those of one group."""
    channels = weight.param.shape[weight.out_dim]
    return channels // getattr(weight.module, "groups", 1) if weight.kind == "conv" else channels


def _channels_last(tensor: Tensor, weight: Weight) -> Tensor:
    """Return a view with the input channels as the last axis: consecutive elements are at one kernel position."""
    return tensor.movedim(weight.in_dim, -1)


def _out_in_last(tensor: Tensor, weight: Weight) -> Tensor:
    """Return a view with axes (kernel positions…, output channels, input channels)."""
    return tensor.movedim((weight.out_dim, weight.in_dim), (-2, -1))


def _whole(keep: int, area: int) -> int:
    return max((keep + area // 2) // area, min(keep, 1))


def _refuse_non_finite(scores: Scores, shards: Shards) -> None:
    """Raise if a score is not finite, in all processes if it is in one."""
    home = next((score.device for score in scores.values()), torch.device("cpu"))
    bad = torch.stack([(~score.isfinite()).any().to(home) for score in scores.values()]).long()
    for (name, score), count in zip(scores.items(), shards.sum(bad).tolist(), strict=True):
        if count:
            top_k({name: score}, 0, shards=shards)  # raises the error that explains it
