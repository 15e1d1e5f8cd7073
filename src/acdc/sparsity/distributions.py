"""Distributions of sparsity over layers.

A distribution turns one target sparsity into budgets: groups of layers and how many weights each group keeps. The
budgets of "global", "uniform" and "erk" add up to exactly the same total.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from acdc.errors import ArgumentError
from acdc.sparsity.layers import Weight
from acdc.sparsity.prunable import matches

NAMES = ("global", "uniform", "erk")
Distribution = str | Mapping[str, float]
"""One of NAMES, or a mapping from name patterns to sparsities; layers it does not match get the method's sparsity."""


@dataclass(frozen=True)
class Budget:
    """The number of weights that survive in a group of layers."""

    names: tuple[str, ...]
    keep: int


def check_sparsity(argument: str, value: object) -> float:
    """Return the sparsity as a float, or raise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        allowed, instead = "sparsity is the fraction of zeros, at least 0 and below 1", f"write {argument}=0.9"
        if isinstance(value, int | float) and 1 < value < 100:
            instead = f"for {value:g} % write {argument}={value / 100:g}"
        raise ArgumentError(argument, value, allowed, instead)
    return float(value)


def check_distribution(distribution: object) -> None:
    """Raise unless this is the name of a distribution or a mapping to sparsities."""
    if isinstance(distribution, Mapping):
        for name, value in distribution.items():
            check_sparsity(f"distribution[{name!r}]", value)
    elif distribution not in NAMES:
        names = ", ".join(map(repr, NAMES))
        allowed = f"expected one of {names}, or a mapping from layer names to sparsities such as"
        raise ArgumentError("distribution", distribution, f"{allowed} {{'layer1.*': 0.8, 'fc': 0.5}}")


def budgets(distribution: Distribution, weights: Sequence[Weight], sparsity: float | None) -> list[Budget]:
    """Return the budgets that bring `weights` to `sparsity`."""
    if isinstance(distribution, Mapping):
        return [
            Budget((w.name,), max(_kept(w.param.numel(), s), min(1, w.param.numel())))
            for w, s in zip(weights, _per_layer(distribution, weights, sparsity), strict=True)
        ]
    assert sparsity is not None
    sizes = [w.param.numel() for w in weights]
    keep = _kept(sum(sizes), sparsity)
    if keep == 0:
        allowed = f"it would prune all of the {sum(sizes)} prunable weights"
        raise ArgumentError("sparsity", sparsity, allowed, "choose a lower sparsity")
    if distribution == "global":
        return [Budget(tuple(w.name for w in weights), keep)]
    densities = (
        [Fraction(keep, sum(sizes))] * len(sizes)
        if distribution == "uniform"
        else erk_densities([tuple(w.param.shape) for w in weights], keep)
    )
    shares = [density * size for density, size in zip(densities, sizes, strict=True)]
    counts = _none_empty(round_to_total(shares, keep), shares)
    return [Budget((w.name,), count) for w, count in zip(weights, counts, strict=True)]


def erk_densities(shapes: Sequence[tuple[int, ...]], keep: int) -> list[Fraction]:
    """Return Erdős–Rényi–Kernel densities: ∝ sum of a layer's dimensions / their product, none above 1, `keep` in all.

    Evci et al. 2020, §3. A layer whose share exceeds its size stays dense, and the others share what remains.
    """
    sizes = [math.prod(shape) for shape in shapes]
    raw = [Fraction(sum(shape), size) for shape, size in zip(shapes, sizes, strict=True)]
    dense: set[int] = set()
    while True:
        free = [i for i in range(len(shapes)) if i not in dense]
        remaining = keep - sum(sizes[i] for i in dense)
        scale = Fraction(remaining) / sum((raw[i] * sizes[i] for i in free), start=Fraction(0)) if free else Fraction(0)
        full = [i for i in free if raw[i] * scale > 1]
        if not full:
            return [Fraction(1) if i in dense else raw[i] * scale for i in range(len(shapes))]
        dense.update(full)


def _per_layer(rules: Mapping[str, float], weights: Sequence[Weight], default: float | None) -> list[float]:
    for rule in rules:
        if not any(matches(rule, w) for w in weights):
            names = ", ".join(w.name for w in weights)
            raise ArgumentError(
                f"distribution[{rule!r}]", rules[rule], f"it matches no prunable layer; the layers are {names}"
            )
    values = [next((s for rule, s in rules.items() if matches(rule, w)), default) for w in weights]
    missing = [w.name for w, value in zip(weights, values, strict=True) if value is None]
    if missing:
        raise ArgumentError(
            "distribution",
            dict(rules),
            f"it has no sparsity for {', '.join(missing)}",
            "add them, exclude them, or set sparsity= as the value for all other layers",
        )
    return [value for value in values if value is not None]


def _kept(size: int, sparsity: float) -> int:
    return size - round(sparsity * size)


def round_to_total(shares: Sequence[Fraction], total: int) -> list[int]:
    """Round shares of `total` to whole numbers with that sum, by largest remainders, earlier shares first."""
    whole = [math.floor(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (whole[i] - shares[i], i))
    for i in by_remainder[: total - sum(whole)]:
        whole[i] += 1
    return whole


def _none_empty(counts: Sequence[int], shares: Sequence[Fraction]) -> list[int]:
    """Give each layer that was rounded down to 0 a weight from the largest, as long as it has one to spare."""
    counts = list(counts)
    for i, share in enumerate(shares):
        richest = max(range(len(counts)), key=counts.__getitem__)
        if share and not counts[i] and counts[richest] > 1:
            counts[richest] -= 1
            counts[i] = 1
    return counts
