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

from acdc.sparsity.distributions import Budget, erk_densities
from acdc.sparsity.layers import Weight
from acdc.sparsity.patterns import Pattern
from acdc.sparsity.sharding import count_nonzero
from acdc.sparsity.topk import WHOLE, Scores, Shards


def with_floors(budgets: Sequence[Budget], weights: Sequence[Weight], share: float) -> list[Budget]:
    """Return the budgets with a floor for each layer of a group: this share of what it would keep at its ERK density.

    The floors of a group never add up to more than it keeps. A layer with a budget of its own needs none.
    """
    shapes = {weight.name: tuple(weight.param.shape) for weight in weights}
    return [_floored(budget, [shapes[name] for name in budget.names], Fraction(share)) for budget in budgets]


def _floored(budget: Budget, shapes: Sequence[tuple[int, ...]], share: Fraction) -> Budget:
    if not share or len(shapes) == 1:
        return budget
    densities = erk_densities(shapes, budget.keep)
    floors = (math.floor(share * density * math.prod(shape)) for density, shape in zip(densities, shapes, strict=True))
    return replace(budget, floors=tuple(floors))


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
    pattern.write_masks(weights, scores, budgets, out=out, **split)
    groups = [budget for budget in budgets if any(budget.floors)]
    while groups:
        masks = {name: out[name] for budget in groups for name in budget.names}
        kept = count_nonzero(masks, shards)
        again = [part for budget in groups for part in _divided(budget, kept)]
        if again:
            pattern.write_masks(weights, scores, again, out=out, **split)
        groups = [budget for budget in again if any(budget.floors)]


def _divided(budget: Budget, kept: Mapping[str, int]) -> list[Budget]:
    """Return a budget for each layer below its floor and one for the others; none if no layer is."""
    floors = dict(zip(budget.names, budget.floors, strict=True))
    low = [name for name in budget.names if kept[name] < floors[name]]
    rest = tuple(name for name in budget.names if name not in low)
    if not low or not rest:  # a pattern of whole channels may leave all of a small group below
        return []
    left = budget.keep - sum(floors[name] for name in low)
    return [
        *(Budget((name,), floors[name]) for name in low),
        Budget(rest, left, floors=tuple(floors[name] for name in rest) if len(rest) > 1 else ()),
    ]
