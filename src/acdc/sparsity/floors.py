"""Floors: how much each layer keeps at least, however small its weights are beside those of other layers.

Weights begin as large as their layer's initialisation makes them, and a short training moves them little. Ranked over
the whole network they then say more of the initialisation than of what the layer does, and a layer can lose almost all
of them. A floor is a share of what the layer would keep at its Erdős–Rényi–Kernel density; what the floors leave over
is ranked over the network as before. Gupta et al. (Global Magnitude Pruning With Minimum Threshold Is All We Need,
2022) keep a fixed number of weights in each layer, for the same reason.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from torch import Tensor

from acdc.sparsity.distributions import Budget, erk_counts
from acdc.sparsity.layers import Weight
from acdc.sparsity.patterns import Pattern
from acdc.sparsity.sharding import count_nonzero
from acdc.sparsity.topk import WHOLE, Scores, Shards


def with_floors(budgets: Sequence[Budget], weights: Sequence[Weight], share: float) -> list[Budget]:
    """Return the budgets with a floor for each layer of a group: this share of what it would keep at its ERK density.

    It is rounded down, but to no less than a weight. The floors of a group never add up to more than it keeps. A layer
    with a budget of its own needs none.
    """
    shapes = {weight.name: tuple(weight.param.shape) for weight in weights}
    return [_floored(budget, [shapes[name] for name in budget.names], Fraction(share)) for budget in budgets]


def _floored(budget: Budget, shapes: Sequence[tuple[int, ...]], share: Fraction) -> Budget:
    if not share or len(shapes) == 1:
        return budget
    counts = erk_counts(shapes, budget.keep)
    return replace(budget, floors=tuple(max(math.floor(share * count), min(1, count)) for count in counts))


def write_masks(
    pattern: Pattern,
    weights: Sequence[Weight],
    scores: Scores,
    budgets: Sequence[Budget],
    out: Mapping[str, Tensor],
    shards: Shards = WHOLE,
) -> None:
    """Write the pattern's masks of the largest scores into `out`, with no layer below its floor.

    Layers that would be keep their floor, by their own largest scores, and the rest of the group shares what is left.
    That can put others below theirs, so it is repeated; with every round fewer layers share.
    """
    split: dict[str, Any] = {} if shards.count == 1 else {"shards": shards}  # a user's pattern may not take any

    def write(some: Sequence[Budget]) -> None:
        names = {name for budget in some for name in budget.names}
        if chosen := [weight for weight in weights if weight.name in names]:
            pattern.write_masks(chosen, scores, some, out=out, **split)

    def count(some: Sequence[Budget]) -> dict[str, int]:
        return count_nonzero({name: out[name] for budget in some for name in budget.names}, shards)

    pattern.write_masks(weights, scores, budgets, out=out, **split)
    groups = [budget for budget in budgets if any(budget.floors)]
    while groups:
        kept = count(groups)
        low = [_low(budget, kept) for budget in groups]
        alone = [budget for some in low for budget in some]
        write(alone)
        taken = count(alone)  # by whole tiles or channels less than the floors
        rest = [_rest(budget, taken) for budget, some in zip(groups, low, strict=True) if some]
        write(rest)
        groups = [budget for budget in rest if any(budget.floors)]


def _low(budget: Budget, kept: Mapping[str, int]) -> list[Budget]:
    """Return a budget for each layer below its floor."""
    floors = zip(budget.names, budget.floors, strict=True)
    low = [Budget((name,), floor) for name, floor in floors if kept[name] < floor]
    return low if len(low) < len(budget.names) else []  # a pattern of whole channels may leave all of a small group


def _rest(budget: Budget, taken: Mapping[str, int]) -> Budget:
    """Return what is left to the layers of a group that have not taken theirs."""
    floors = {name: floor for name, floor in zip(budget.names, budget.floors, strict=True) if name not in taken}
    left = budget.keep - sum(taken.get(name, 0) for name in budget.names)
    return Budget(tuple(floors), left, floors=tuple(floors.values()) if len(floors) > 1 else ())
