"""Predictions of what a recipe costs before it is trained: FLOPs by the paper's rule (§4).

    inference   F per image for the dense model, F_C for the compressed one: 2 for each use of a weight that is kept
    training    3 · F_C per image in compressed epochs, 2 · F_D + F in dense ones, summed over epochs and images;
                for methods with denser gradients, the rule on their card

F_D leaves out weights that stay zero in dense phases. Only training shows which, so F replaces it here, as an upper
bound. Only training shows which weights global magnitude keeps, too. There are then two estimates of F_C, one as if
every layer lost the same share and one as if the initial weights were pruned, and neither is a bound: the paper's
figures lie between them, but on the digits the narrow first and last layers end with more weights than their initial
magnitudes suggest, and the model up to 6 % above both. So a tenth is added on either side (`Inference.spread`). Where
whole channels are pruned, weights that read them end at 0 although masks keep them, which no estimate here accounts
for. Methods that learn their sparsity (STR, SparseVD) are only known to cost no more than dense training. Where the
sparsity rises during training (GMP, DPF, lottery tickets, gradual AC/DC), FLOPs fall in proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from acdc.core.method import Method
from acdc.data.image_sizes import ImageSizes, scaled
from acdc.flops.counting import weight_flops
from acdc.flops.training import epoch_flops
from acdc.flops.uses import forward_uses, used_weights
from acdc.sparsity import masks as working
from acdc.sparsity.distributions import Budget, spread_evenly
from acdc.sparsity.floors import write_masks
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import NM, Channel, Unstructured

Kept = dict[str, int]
_BEYOND = 0.1  # recorded runs ended at most .06 outside the two estimates; this adds a margin


@dataclass(frozen=True)
class Compressed:
    """The weights kept in each pruned layer, by one or two estimates, and how they were made."""

    kept: tuple[Kept, ...]
    how: str

    bound: bool = False  # an upper bound: training decides the sparsity

    @property
    def exact(self) -> bool:
        """Return True if training does not change these counts."""
        return self.how == "exact"


def compressed(method: Method, layers: Layers) -> Compressed:
    """Estimate how many weights the method keeps in `layers`, those it prunes, with initial weights."""
    if not method.needs_sparsity and method.sparsity is None:
        every = {weight.name: weight.param.numel() for weight in layers.weights}
        how = f"an upper bound, with every weight kept: how many become 0 depends on {method.decided_by}"
        return Compressed((every,), how, bound=True)
    pattern, shares = method.pattern, method.budgets(layers)
    if isinstance(pattern, NM):
        return Compressed(({w.name: w.param.numel() * pattern.n // pattern.m for w in layers.weights},), "exact")
    if isinstance(pattern, Unstructured) and all(len(budget.names) == 1 for budget in shares):
        return Compressed(({budget.names[0]: budget.keep for budget in shares},), "exact")
    initial = _from_weights(method, layers, shares)
    less = "; weights that read a pruned channel may also end at 0, which costs less" * isinstance(pattern, Channel)
    if all(len(budget.names) == 1 for budget in shares):
        return Compressed((initial,), f"as if the initial weights were pruned: only whole tiles and channels{less}")
    even = spread_evenly(shares, layers.weights)
    how = (
        "between every layer as sparse as the whole and the initial weights pruned by global magnitude, and a tenth "
        f"beyond either, since training decides which layers keep more{less}"
    )
    return Compressed((even, initial), how)


@dataclass(frozen=True)
class Inference:
    """The FLOPs of a forward pass of one image."""

    dense: int
    compressed: tuple[int, ...]  # one or two, from low to high; none for dense training

    def spread(self) -> "Inference":
        """Return the range to expect: neither of two estimates is a bound."""
        if len(self.compressed) < 2:
            return self
        low, high = self.compressed
        wider = (round((1 - _BEYOND) * low), min(self.dense, round((1 + _BEYOND) * high)))
        return replace(self, compressed=wider)


def inference(model: nn.Module, uses: Mapping[str, float], sparse: Compressed | None) -> Inference:
    """Estimate the FLOPs for one image: of the dense model, and of the sparse one if `sparse` says what is kept."""
    whole = {weight.name: weight.param.numel() for weight in used_weights(model, uses)}
    ways = sparse.kept if sparse else ()
    return Inference(weight_flops(whole, uses), tuple(sorted(weight_flops({**whole, **kept}, uses) for kept in ways)))


def size_shares(
    model: nn.Module, uses: Mapping[str, float], sizes: ImageSizes, shape: tuple[int, int, int]
) -> dict[int, float]:
    """Return the FLOPs of a forward pass on images of each size that they grow through, relative to the full size.

    `uses` are those of the full size, `shape`. Counted with all weights; those of linear layers do not shrink.
    """
    whole = {weight.name: weight.param.numel() for weight in used_weights(model, uses)}
    full, device = weight_flops(whole, uses), next(model.parameters()).device
    each = {
        side: forward_uses(model, torch.zeros(1, *scaled(shape, side), device=device))
        for side in {*sizes.changes().values()} - {sizes.full}
    }
    return {sizes.full: 1.0, **{side: weight_flops(whole, smaller) / full for side, smaller in each.items()}}


def training(
    kinds: Sequence[str],
    flops: Inference,
    samples: int,
    method: Method | None = None,
    shares: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """Estimate the FLOPs of a stage whose epochs are of these kinds, "dense" or "sparse", from low to high.

    `method` knows how sparse each sparse epoch is and what it costs; without it all are at the target, at 3 · F_C.
    `shares` are the factors of epochs with smaller images, one for each.
    """

    def epoch(at: int, kind: str, each: int) -> int:
        share = 0.0 if kind == "dense" else method.sparsity_fraction(at) if method else 1.0
        now = round(flops.dense - share * (flops.dense - each))
        each = epoch_flops(kind, now, flops.dense, sparse=method.sparse_flops if method else None)
        return each if shares is None else round(shares[at] * each)

    ways = flops.compressed if "sparse" in kinds else (flops.dense,)
    return tuple(samples * sum(epoch(at, kind, each) for at, kind in enumerate(kinds)) for each in ways)


def _from_weights(method: Method, layers: Layers, shares: list[Budget]) -> Kept:
    scores = {weight.name: weight.param.detach() for weight in layers.weights}
    masks = {name: working.new_mask(score) for name, score in scores.items()}
    write_masks(method.pattern, layers.weights, scores, shares, masks)
    return {name: int(mask.count_nonzero()) for name, mask in masks.items()}
