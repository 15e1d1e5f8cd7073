"""How the support moves over a run: what is zero where a phase ends, and how masks differ from one to the next.

Streamed: beside the weights it keeps two bit-packed masks, the last compressed phase's and the union of all so far.

    mask change    100 · Hamming distance of consecutive compressed masks / prunable weights   (the published code's)
    regrown        weights kept now that the mask before pruned / weights kept now
    explored       weights kept by any compressed phase so far / prunable weights
    inactive       zeros in a dense phase: pruned before, and never moved since
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from acdc.sparsity import masks as working
from acdc.sparsity.layers import Layers, Weight

BINS, LOWEST, HIGHEST = 340, -30.0, 4.0  # of log2 |w|: ten bins to a factor of two


@dataclass(frozen=True, kw_only=True)
class PhaseEnd:
    """The weights as a phase leaves them."""

    run: str
    index: int
    phase: str
    kind: str
    epoch: int  # the phase's last
    nonzero: dict[str, int]  # by layer
    size: dict[str, int]
    dead_filters: dict[str, int]  # output channels with no weight left
    filters: dict[str, int]
    flops: int  # inference, per sample, by non-zero weights
    histogram: list[int]  # of log2 |w| of the non-zero prunable weights, BINS from LOWEST to HIGHEST
    mask_change: float | None = None  # in compressed phases, from the second on
    regrown: float | None = None
    explored: float | None = None


class Dynamics:
    """Looks at a model where its phases end. `layers` are all that count towards FLOPs, `pruned` those with masks."""

    def __init__(self, layers: Layers, pruned: Layers, uses: Mapping[str, float]) -> None:
        self._layers, self._pruned, self._uses = layers, pruned, uses
        self._last: dict[str, Tensor] = {}
        self._union: dict[str, Tensor] = {}

    @torch.no_grad()
    def phase_end(self, *, run: str, index: int, phase: str, kind: str, epoch: int) -> PhaseEnd:
        counts = nonzeros(self._layers)
        change = self._compare() if kind == "sparse" else {}
        dead = torch.stack([_dead_filters(weight) for weight in self._layers.weights]).tolist()
        names = [weight.name for weight in self._layers.weights]
        return PhaseEnd(
            run=run,
            index=index,
            phase=phase,
            kind=kind,
            epoch=epoch,
            nonzero=counts,
            size={weight.name: weight.param.numel() for weight in self._layers.weights},
            dead_filters=dict(zip(names, dead, strict=True)),
            filters={weight.name: weight.param.shape[weight.out_dim] for weight in self._layers.weights},
            flops=flops_of(counts, self._uses),
            histogram=_histogram(self._pruned),
            **change,
        )

    def _compare(self) -> dict[str, Any]:
        """This compressed phase's mask with the one before. Zeros inside the mask do not count as pruned before."""
        differ = regrown = kept = explored = 0
        first = not self._last
        for weight in self._pruned.weights:
            now = weight.param.detach() != 0
            bits = working.pack(now)
            union = bits.clone()
            if not first:
                before = working.as_bool(working.unpack(self._last[weight.name], weight.param))
                differ += int((now ^ before).sum())
                regrown += int((now & ~before).sum())
                union |= self._union[weight.name].to(union.device)
            kept += int(now.sum())
            explored += int(working.unpack(union, weight.param).count_nonzero())
            self._last[weight.name], self._union[weight.name] = bits.cpu(), union.cpu()
        size = self._pruned.size
        compared = {} if first else {"mask_change": 100 * differ / size, "regrown": regrown / max(1, kept)}
        return {**compared, "explored": explored / size}

    def state_dict(self) -> dict[str, Any]:
        return {"last": dict(self._last), "union": dict(self._union)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._last, self._union = dict(state["last"]), dict(state["union"])


def nonzeros(layers: Layers) -> dict[str, int]:
    """By layer; the device is asked once for all of them."""
    counts = torch.stack([weight.param.detach().count_nonzero() for weight in layers.weights]).tolist()
    return {weight.name: count for weight, count in zip(layers.weights, counts, strict=True)}


def flops_of(counts: Mapping[str, int], uses: Mapping[str, float]) -> int:
    """2 FLOPs for each use of a non-zero weight."""
    return round(sum(2 * uses[name] * count for name, count in counts.items()))


def threshold(histogram: list[int], zeros: int, sparsity: float) -> float | None:
    """The magnitude below which a share `sparsity` of the weights lies, to a bin's width; None if all that are zero."""
    wanted = sparsity * (sum(histogram) + zeros) - zeros
    for index, count in enumerate(histogram):
        if wanted <= 0:
            break
        wanted -= count
    else:
        index = BINS
    return 2.0 ** (LOWEST + (HIGHEST - LOWEST) * index / BINS) if index else None


def _dead_filters(weight: Weight) -> Tensor:
    param = weight.param.detach()
    alive = (param != 0).movedim(weight.out_dim, 0).flatten(1).any(1)
    return (~alive).sum()


def _histogram(layers: Layers) -> list[int]:
    total = None
    for weight in layers.weights:
        size = weight.param.detach().abs().float().flatten()
        size = size[size > 0].log2_().clamp_(LOWEST, HIGHEST)
        counts = torch.histc(size, BINS, LOWEST, HIGHEST)
        total = counts.double() if total is None else total + counts.double()
    return [round(count) for count in total.tolist()] if total is not None else []
