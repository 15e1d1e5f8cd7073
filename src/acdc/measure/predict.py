"""Predicts what a recipe costs, before it is trained: FLOPs by the paper's rule (§4).

    inference   F for an image of the dense model, F_C of the compressed one: 2 for each use of a weight that is kept
    training    3 · F_C for an image in compressed epochs, 2 · F_D + F in dense ones, summed over epochs and images;
                methods whose gradients are denser than that by the rule of their card

F_D leaves out weights that stay zero in dense phases. That is seen only by training, so F stands in for it here: an
upper bound. Which weights global magnitude keeps is seen only by training too. There are two estimates of F_C then, as
if every layer lost the same share, and as if the initial weights were pruned, and neither is a bound: the paper's
figures lie between them, but on the digits the narrow first and last layers end with more weights than their initial
magnitudes say, and the model up to 6 % above both. So a tenth is added on either side (`Inference.spread`). Where whole
channels are pruned, weights that read them end at 0 though masks keep them, which no estimate here knows. Of methods
that learn their sparsity (STR, SparseVD) nothing is known but that they cost no more than dense training. Where the
sparsity rises on its way (GMP, DPF, lottery tickets, gradual AC/DC), FLOPs fall in proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from acdc.core.method import Method
from acdc.flops.counting import weight_flops
from acdc.flops.training import epoch_flops
from acdc.sparsity import masks as working
from acdc.sparsity.distributions import Budget, budgets
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import NM, Channel, Unstructured
from acdc.sparsity.prunable import find_prunable

Kept = dict[str, int]
_BEYOND = 0.1  # what kept runs have ended outside of two estimates, .06 at most, and some more


@dataclass(frozen=True)
class Compressed:
    """Weights kept in each pruned layer, by one or two ways of counting, and how."""

    kept: tuple[Kept, ...]
    how: str

    bound: bool = False  # no more than this: training decides the sparsity

    @property
    def exact(self) -> bool:
        """Return True if no training changes these counts."""
        return self.how == "exact"


def compressed(method: Method, layers: Layers) -> Compressed:
    """Estimate what the method keeps of `layers`, those it prunes, with initial weights."""
    if not method.needs_sparsity and method.sparsity is None:
        every = {weight.name: weight.param.numel() for weight in layers.weights}
        how = f"an upper bound, every weight kept: how many become 0 is decided by {method.decided_by}"
        return Compressed((every,), how, bound=True)
    pattern, shares = method.pattern, method.budgets(layers)
    if isinstance(pattern, NM):
        return Compressed(({w.name: w.param.numel() * pattern.n // pattern.m for w in layers.weights},), "exact")
    if isinstance(pattern, Unstructured) and all(len(budget.names) == 1 for budget in shares):
        return Compressed(({budget.names[0]: budget.keep for budget in shares},), "exact")
    initial = _from_weights(method, layers, shares)
    less = "; weights that read a pruned channel may end at 0 as well, and it costs less" * isinstance(pattern, Channel)
    if method.distribution != "global":
        return Compressed((initial,), f"as the initial weights would be pruned: whole tiles and channels only{less}")
    even = {budget.names[0]: budget.keep for budget in budgets("uniform", layers.weights, method.sparsity)}
    how = (
        "between every layer as sparse as the whole and the initial weights pruned by global magnitude, and a tenth "
        f"beyond either, as training decides which layers keep more{less}"
    )
    return Compressed((even, initial), how)


@dataclass(frozen=True)
class Inference:
    """FLOPs of a forward pass of one image."""

    dense: int
    compressed: tuple[int, ...]  # from low to high, one or two; none of dense training

    def spread(self) -> "Inference":
        """Return a range to expect: of two estimates neither is a bound."""
        if len(self.compressed) < 2:
            return self
        low, high = self.compressed
        wider = (round((1 - _BEYOND) * low), min(self.dense, round((1 + _BEYOND) * high)))
        return replace(self, compressed=wider)


def inference(model: nn.Module, uses: Mapping[str, float], sparse: Compressed | None) -> Inference:
    """Estimate the FLOPs for one image, of the dense model and where `sparse` says what is kept."""
    whole = {weight.name: weight.param.numel() for weight in find_prunable(model).weights}
    ways = sparse.kept if sparse else ()
    return Inference(weight_flops(whole, uses), tuple(sorted(weight_flops({**whole, **kept}, uses) for kept in ways)))


def training(kinds: Sequence[str], flops: Inference, samples: int, method: Method | None = None) -> tuple[int, ...]:
    """Estimate the FLOPs of a stage whose epochs are of these kinds, "dense" or "sparse": from low to high.

    `method` says how sparse each sparse epoch is and what it costs; without it all are at the target, at 3 · F_C.
    """

    def epoch(at: int, kind: str, each: int) -> int:
        share = 0.0 if kind == "dense" else method.sparsity_fraction(at) if method else 1.0
        now = round(flops.dense - share * (flops.dense - each))
        return epoch_flops(kind, now, flops.dense, sparse=method.sparse_flops if method else None)

    ways = flops.compressed if "sparse" in kinds else (flops.dense,)
    return tuple(samples * sum(epoch(at, kind, each) for at, kind in enumerate(kinds)) for each in ways)


def _from_weights(method: Method, layers: Layers, shares: list[Budget]) -> Kept:
    scores = {weight.name: weight.param.detach() for weight in layers.weights}
    masks = {name: working.new_mask(score) for name, score in scores.items()}
    method.pattern.write_masks(layers.weights, scores, shares, out=masks)
    return {name: int(mask.count_nonzero()) for name, mask in masks.items()}
