"""Five ways to mask all but the k largest magnitudes of a model: ours and the ones people use.

Each takes weights by name and returns masks of one byte per weight. The rivals use as little memory as they allow:
one buffer for the concatenated magnitudes, partitioned in place, no sorting. torch's pruning makes float masks of
its own, so the conversion to boolean is part of its time; it is the smallest part.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from acdc.sparsity.topk import top_k

Weights = Mapping[str, Tensor]
Masks = dict[str, Tensor]
Prepared = Callable[[], Masks]

LAYERS = 50
SPARSITY = 0.9
_COLUMNS = 64
_ALL_EQUAL = 0.5


def sizes_of_layers(size: int) -> list[int]:
    """Return 50 uneven layer sizes, the largest 82 times the smallest, that add up to `size` (a multiple of 64)."""
    parts = [1 + (layer % 10) ** 2 for layer in range(LAYERS)]
    rows, total = size // _COLUMNS, sum(parts)
    edges = [rows * sum(parts[:layer]) // total for layer in range(LAYERS + 1)]
    return [(after - before) * _COLUMNS for before, after in pairwise(edges)]


def round_size(size: int) -> int:
    return max(size // _COLUMNS * _COLUMNS, LAYERS * 32 * _COLUMNS)


def make_weights(size: int, device: torch.device, *, equal: bool = False) -> dict[str, Tensor]:
    """Draw random normal weights; with `equal` all are the same, so that every choice is a tie."""
    generator = torch.Generator(device).manual_seed(0)
    weights = {}
    for layer, count in enumerate(sizes_of_layers(size)):
        weight = torch.empty(count // _COLUMNS, _COLUMNS, device=device)
        weights[f"layer{layer}"] = weight.fill_(_ALL_EQUAL) if equal else weight.normal_(generator=generator)
    return weights


def kept_of(size: int) -> int:
    return size - round(SPARSITY * size)


def ours(weights: Weights, k: int) -> Prepared:
    return lambda: top_k(weights, k)


def torch_topk(weights: Weights, k: int) -> Prepared:
    def select() -> Masks:
        magnitudes = _concatenated(weights)
        chosen = magnitudes.topk(k, sorted=False).indices
        mask = torch.zeros_like(magnitudes, dtype=torch.bool)
        mask[chosen] = True
        parts = mask.split([w.numel() for w in weights.values()])
        return {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}

    return select


def torch_kthvalue(weights: Weights, k: int) -> Prepared:
    def select() -> Masks:
        magnitudes = _concatenated(weights)
        threshold = magnitudes.kthvalue(magnitudes.numel() - k + 1).values
        return {name: weight.abs() >= threshold for name, weight in weights.items()}

    return select


def numpy_partition(weights: Weights, k: int) -> Prepared:
    def select() -> Masks:
        arrays = {name: weight.numpy() for name, weight in weights.items()}
        magnitudes = np.empty(sum(array.size for array in arrays.values()), dtype=np.float32)
        end = 0
        for array in arrays.values():
            start, end = end, end + array.size
            np.abs(array.reshape(-1), out=magnitudes[start:end])
        magnitudes.partition(magnitudes.size - k)
        threshold = magnitudes[magnitudes.size - k]
        return {name: torch.from_numpy(np.abs(array) >= threshold) for name, array in arrays.items()}

    return select


def torch_prune(weights: Weights, k: int) -> Prepared:
    """Build new modules over the same weights, so that nothing is left of an earlier pruning."""
    modules = {name: _Holder(weight) for name, weight in weights.items()}
    pairs = [(module, "weight") for module in modules.values()]
    amount = sum(weight.numel() for weight in weights.values()) - k

    def select() -> Masks:
        prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=amount)
        return {name: module.get_buffer("weight_mask").bool() for name, module in modules.items()}

    return select


METHODS: dict[str, Callable[[Weights, int], Prepared]] = {
    "acdc top_k": ours,
    "torch.topk": torch_topk,
    "torch.kthvalue": torch_kthvalue,
    "numpy.partition": numpy_partition,
    "prune.global_unstructured": torch_prune,
}
OURS = "acdc top_k"


def methods_for(device: torch.device) -> list[str]:
    return [name for name in METHODS if device.type == "cpu" or not name.startswith("numpy")]


def count_kept(masks: Masks) -> int:
    return sum(int(mask.count_nonzero()) for mask in masks.values())


class _Holder(nn.Module):
    """A layer that consists of its weight only."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


def _concatenated(weights: Weights) -> Tensor:
    first = next(iter(weights.values()))
    magnitudes = torch.empty(sum(w.numel() for w in weights.values()), device=first.device)
    end = 0
    for weight in weights.values():
        start, end = end, end + weight.numel()
        torch.abs(weight.view(-1), out=magnitudes[start:end])
    return magnitudes
