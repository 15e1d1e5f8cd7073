"""The dynamics of the support over a run: what is zero when a phase ends, and how masks change from one to the next.

Besides the weights, only two bit-packed masks are kept: the last compressed phase's, and the union of all so far.

    mask change    100 · Hamming distance of consecutive compressed masks / prunable weights   (the published code's)
    regrown        weights kept now that the mask before pruned / weights kept now
    explored       weights kept by any compressed phase so far / prunable weights
    inactive       zeros in a dense phase, pruned before and never moved since / prunable weights
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from acdc.core.gathered_state import join_bits, split_bits
from acdc.flops.counting import weight_flops
from acdc.flops.uses import used_weights
from acdc.schedule import Kind
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Layers, Weight, is_sharded, local_part
from acdc.sparsity.prunable import find_prunable
from acdc.sparsity.sharding import count_nonzero, find_shards, join, shards_of
from acdc.sparsity.topk import Shards
from acdc.state_dicts import check_tensors
from acdc.typed_data import AtLeastOne, Count, DataError, Epoch, Percent, Share

BINS, LOWEST, HIGHEST = 340, -30.0, 4.0  # bins of log2 |w|: ten to a factor of two
_CHUNK = 1 << 24  # weights; histc counts in float32, exactly up to this many


@dataclass(frozen=True, kw_only=True)
class PhaseEnd:
    """The state of the weights at the end of a phase."""

    run: str
    index: Count
    phase: str
    kind: Kind
    epoch: Epoch  # the phase's last
    nonzero: dict[str, Count]  # by layer
    size: dict[str, AtLeastOne]
    dead_filters: dict[str, Count]  # output channels with no weight left
    filters: dict[str, AtLeastOne]
    flops: Count  # inference, per sample, by non-zero weights
    histogram: list[Count]  # of log2 |w| of the non-zero prunable weights, BINS from LOWEST to HIGHEST
    inactive: Share | None = None  # in dense phases
    mask_change: Percent | None = None  # in compressed phases, from the second on
    regrown: Share | None = None
    explored: Share | None = None  # in compressed phases

    def __post_init__(self) -> None:
        counts = (self.nonzero, self.dead_filters, self.filters)
        if not self.size or any(part.keys() != self.size.keys() for part in counts):
            raise DataError("size", "the same layers as in nonzero, dead_filters and filters, at least one")
        for part, whole in (("nonzero", self.size), ("dead_filters", self.filters)):
            if above := [name for name, count in getattr(self, part).items() if count > whole[name]]:
                raise DataError(f"{part}.{above[0]}", f"at most {whole[above[0]]:,}, all that the layer has")
        if len(self.histogram) != BINS:
            raise DataError("histogram", f"{BINS} counts, not {len(self.histogram):,}")
        if (self.mask_change is None) != (self.regrown is None):
            raise DataError("mask_change", "both it and regrown, or neither")


class Dynamics:
    """Measurements at the ends of phases. `layers` are all whose zeros count, `pruned` those with masks.

    `other_flops` are those of weights in use that are not among the layers. Of a sharded model every process reads its
    own parts, and all counts are summed.
    """

    def __init__(self, layers: Layers, pruned: Layers, uses: Mapping[str, float], other_flops: int = 0) -> None:
        self._layers, self._pruned, self._uses, self._other = layers, pruned, uses, other_flops
        self._shards = find_shards(layers.weights)
        self._last: dict[str, Tensor] = {}
        self._union: dict[str, Tensor] = {}

    @torch.no_grad()
    def phase_end(
        self, *, run: str, index: int, phase: str, kind: Kind, epoch: int, masks: Mapping[str, Tensor] | None = None
    ) -> PhaseEnd:
        """Return what is zero at the end of a phase, and how its mask differs from the previous one.

        `masks` are a compressed phase's, by name, non-zero where a weight is kept: a kept weight may be 0 itself.
        Without them the non-zero weights serve as the mask. Everything is read from the device at once.
        """
        weights, compared = self._layers.weights, bool(self._last)
        readings = [
            *(weight.local.count_nonzero() for weight in weights),
            *(_dead_filters(weight, self._shards) for weight in weights),
            _histogram(self._pruned),
            *([self._compare(masks or {})] if kind == "sparse" else []),
        ]
        answers, names = _read(readings, self._shards), [weight.name for weight in weights]
        (nonzero, dead), rest = (answers[: len(names)], answers[len(names) : 2 * len(names)]), answers[2 * len(names) :]
        counts, histogram = dict(zip(names, nonzero, strict=True)), rest[:BINS]
        return PhaseEnd(
            run=run,
            index=index,
            phase=phase,
            kind=kind,
            epoch=epoch,
            nonzero=counts,
            size={weight.name: weight.param.numel() for weight in weights},
            dead_filters=dict(zip(names, dead, strict=True)),
            filters={weight.name: _filters(weight) for weight in weights},
            flops=weight_flops(counts, self._uses) + self._other,
            histogram=histogram,
            inactive=1 - sum(histogram) / self._pruned.size if kind == "dense" else None,
            **(self._change(*rest[BINS:], compared=compared) if kind == "sparse" else {}),
        )

    def _compare(self, masks: Mapping[str, Tensor]) -> Tensor:
        """Compare the mask with the previous one: count weights that differ, are regrown, kept, and were ever kept."""
        totals: Tensor | None = None
        for weight in self._pruned.weights:
            mask = masks.get(weight.name)
            now = working.pack(weight.local if mask is None else local_part(mask))
            last, union = (packed.get(weight.name, now).to(now.device) for packed in (self._last, self._union))
            union = union | now
            sums = torch.stack([_ones(bits) for bits in (now ^ last, now & ~last, now, union)])
            totals = sums if totals is None else totals + sums.to(totals.device)
            self._last[weight.name], self._union[weight.name] = now, union
        assert totals is not None, "there is a prunable weight: find_prunable refuses models without any"
        return totals

    def _change(self, differ: int, regrown: int, kept: int, explored: int, *, compared: bool) -> dict[str, float]:
        """Return the measures of change; `compared` is True if there was an earlier mask."""
        size = self._pruned.size
        change = {"mask_change": 100 * differ / size, "regrown": regrown / max(1, kept)} if compared else {}
        return {**change, "explored": explored / size}

    def state_dict(self) -> dict[str, Any]:
        """Return packed masks of whole weights; of a sharded model, call this in every process."""
        params = {weight.name: weight.param for weight in self._pruned.weights}
        return {
            key: {name: join_bits(bits, params[name]).cpu() for name, bits in masks.items()}
            for key, masks in (("last", self._last), ("union", self._union))
        }

    def check_fit(self, state: Mapping[str, Any]) -> None:
        """Raise a DataError unless the packed masks in `state` belong to the layers that have masks."""
        bits = {weight.name: working.packed_like(weight.param) for weight in self._pruned.weights}
        for key in ("last", "union"):
            check_tensors(state[key], bits, f"dynamics.{key}", some=not state[key])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        params = {weight.name: weight.param for weight in self._pruned.weights}
        self._last, self._union = (
            {name: split_bits(bits, params[name]) for name, bits in state[key].items()} for key in ("last", "union")
        )


def nonzeros(layers: Layers) -> dict[str, int]:
    """Count the non-zero weights of each layer, over all shards, reading all counts from the device at once."""
    counts = _read([weight.local.count_nonzero() for weight in layers.weights], find_shards(layers.weights))
    return {weight.name: count for weight, count in zip(layers.weights, counts, strict=True)}


@dataclass(frozen=True)
class ModelCounts:
    """The current zeros of a model, and the theoretical cost of a forward pass."""

    size: int  # prunable weights
    zeros: int
    flops: int
    dense_flops: int

    @property
    def sparsity(self) -> float:
        """Return the fraction of zeros."""
        return self.zeros / self.size


def count_model(model: nn.Module, uses: Mapping[str, float], *, embeddings: bool = False) -> ModelCounts:
    """Count the zeros of a model, and the FLOPs of a forward pass, given how often it uses each weight.

    Zeros count in embeddings only if these were pruned.
    """
    layers = find_prunable(model, embeddings=embeddings)
    zeros = layers.size - sum(nonzeros(layers).values())
    used = Layers(tuple(used_weights(model, uses)), {})
    counts, whole = nonzeros(used), {weight.name: weight.param.numel() for weight in used.weights}
    return ModelCounts(layers.size, zeros, weight_flops(counts, uses), weight_flops(whole, uses))


def other_flops(model: nn.Module, layers: Layers, uses: Mapping[str, float]) -> int:
    """Return the FLOPs of weights in use that are not among these layers: an embedding that is also the output's."""
    listed = {weight.name for weight in layers.weights}
    others = [weight for weight in used_weights(model, uses) if weight.name not in listed]
    return weight_flops({weight.name: weight.param.numel() for weight in others}, uses)


def threshold(histogram: list[int], zeros: int, sparsity: float) -> float | None:
    """Return the magnitude below which a share `sparsity` of the weights lies, to a bin's width; None if those are 0.

    In a dense phase's histogram, this is where global magnitude will cut when the next phase begins.
    """
    remaining = sparsity * (sum(histogram) + zeros) - zeros
    if remaining <= 0:
        return None
    for index, count in enumerate(histogram):
        remaining -= count
        if remaining <= 1e-6 * max(1, count):  # sparsity is a rounded fraction
            return edge(index + 1)
    return edge(BINS)


def edge(index: int) -> float:
    """Return the magnitude at which bin `index` begins."""
    return 2.0 ** (LOWEST + (HIGHEST - LOWEST) * index / BINS)


def count_parameters(model: nn.Module) -> int:
    """Count the non-zero parameters of a model, tied ones once."""
    parameters = dict(model.named_parameters())
    return sum(count_nonzero(parameters, shards_of(parameters)).values())


def _read(counts: list[Tensor], shards: Shards) -> list[int]:
    """Return every number in these tensors, in order, summed over shards; all at once if they are on one device."""
    flat = [count.reshape(-1).to(torch.int64) for count in counts]
    if len({count.device for count in flat}) == 1:
        return shards.sum(torch.cat(flat)).tolist()
    return [number for count in flat for number in count.tolist()]


def _ones(bits: Tensor) -> Tensor:
    """Count the bits set in packed masks: neighbours are added in pairs, then fours, then eights, within each byte."""
    bits = bits - ((bits >> 1) & 0x55)
    bits = (bits & 0x33) + ((bits >> 2) & 0x33)
    return ((bits + (bits >> 4)) & 0x0F).sum(dtype=torch.int64)


def _groups(weight: Weight) -> int:
    """Return how many groups share an output axis: several in a transposed convolution's weight."""
    return getattr(weight.module, "groups", 1) if weight.kind == "conv_transpose" else 1


def _filters(weight: Weight) -> int:
    return weight.param.shape[weight.out_dim] * _groups(weight)


def _dead_filters(weight: Weight, shards: Shards) -> Tensor:
    """Count the output channels without a weight, for a sum over shards: those that are spread over all count once."""
    whole, groups = weight.out_dim != 0 and is_sharded(weight.param), _groups(weight)
    alive = (join(weight.param) if whole else weight.local) != 0
    if whole and shards.index:
        alive = torch.ones_like(alive)
    if groups > 1:
        alive = alive.unflatten(0, (groups, -1)).transpose(0, 1).flatten(1, 2)  # inputs x (outputs of all groups) x ...
    return (~alive.movedim(weight.out_dim, 0).flatten(1).any(1)).sum()


def _histogram(layers: Layers) -> Tensor:
    total: Tensor | None = None
    for weight in layers.weights:
        for part in working.in_memory_order(weight.local, _CHUNK):
            size = part.abs().to(torch.promote_types(part.dtype, torch.float32))
            logs = size.log2().clamp_(LOWEST, HIGHEST).masked_fill_(size == 0, -torch.inf)  # which histc leaves out
            counts = torch.histc(logs, BINS, LOWEST, HIGHEST).to(torch.int64)
            total = counts if total is None else total + counts.to(total.device)
    return torch.zeros(BINS, dtype=torch.int64) if total is None else total
