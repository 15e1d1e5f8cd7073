"""Distributions of sparsity over layers.

A distribution turns one target sparsity into budgets: groups of layers and how many weights each group keeps. The
budgets of "global", "uniform" and "erk" add up to exactly the same total. A mapping sets sparsities by name patterns:

    {"layer1.*": 0.8, "fc": 0.5}              each layer that a pattern matches keeps its own share of weights
    {"embedding.*": {"global": 0.5}}          the layers that it matches are a group, with a distribution of their own

Beside groups, all layers that no pattern matches are one more group, at the method's sparsity.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from acdc.errors import ArgumentError
from acdc.sparsity.layers import Weight
from acdc.sparsity.prunable import matches

NAMES = ("global", "uniform", "erk")
Distribution = str | Mapping[str, float] | Mapping[str, float | Mapping[str, float]]
"""One of NAMES, or a mapping from name patterns to sparsities or groups; the other layers get the method's sparsity."""


@dataclass(frozen=True)
class Budget:
    """The number of weights that survive in a group of layers, and in each of them at least; see floors.py."""

    names: tuple[str, ...]
    keep: int
    floors: tuple[int, ...] = ()  # one for each layer, or none


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
            argument = f"distribution[{name!r}]"
            if not isinstance(value, Mapping):
                check_sparsity(argument, value)
                continue
            if len(value) != 1 or not set(value) <= set(NAMES):
                allowed = f"a group has one of {', '.join(map(repr, NAMES))}, and its sparsity"
                instead = "write {'global': 0.5}, in a recipe { global = 0.5 }"
                raise ArgumentError(argument, dict(value), allowed, instead)
            ((kind, sparsity),) = value.items()
            check_sparsity(f"{argument}[{kind!r}]", sparsity)
    elif distribution not in NAMES:
        names = ", ".join(map(repr, NAMES))
        allowed = f"expected one of {names}, or a mapping from layer names to sparsities such as"
        groups = "or to groups such as {'embedding.*': {'global': 0.5}}"
        raise ArgumentError("distribution", distribution, f"{allowed} {{'layer1.*': 0.8, 'fc': 0.5}}, {groups}")


def groups_of(distribution: Distribution) -> dict[str, tuple[str, float]]:
    """Return the distribution and sparsity of each group in a mapping, by name pattern."""
    values = distribution.items() if isinstance(distribution, Mapping) else ()
    return {rule: next(iter(group.items())) for rule, group in values if isinstance(group, Mapping)}


def describe(distribution: Distribution) -> str:
    """Return a distribution in a word or two."""
    if isinstance(distribution, str):
        return distribution
    return "by group" if groups_of(distribution) else "by layer"


def ranks_layers(distribution: Distribution) -> bool:
    """Return True if it ranks weights of different layers together: "global", of all layers or of a group."""
    if isinstance(distribution, str):
        return distribution == "global"
    groups = groups_of(distribution)
    return bool(groups)  # the layers that are in none are ranked together, too


def along(distribution: Distribution, path: Callable[[float], float]) -> Distribution:
    """Return the distribution with `path` applied to every sparsity in it."""
    if isinstance(distribution, str):
        return distribution
    return {
        rule: {kind: path(sparsity) for kind, sparsity in value.items()} if isinstance(value, Mapping) else path(value)
        for rule, value in distribution.items()
    }


def budgets(
    distribution: Distribution, weights: Sequence[Weight], sparsity: float | None, *, rest: str = "global"
) -> list[Budget]:
    """Return the budgets that bring `weights` to `sparsity`; beside groups, by `rest` for the layers in none."""
    if isinstance(distribution, Mapping):
        if groups_of(distribution):
            return _grouped(distribution, weights, sparsity, rest)
        return _each(weights, _per_layer({rule: _number(s) for rule, s in distribution.items()}, weights, sparsity))
    assert sparsity is not None
    sizes = [w.param.numel() for w in weights]
    keep = _kept(sum(sizes), sparsity)
    if keep == 0:
        allowed = f"it would prune all of the {sum(sizes)} prunable weights"
        raise ArgumentError("sparsity", sparsity, allowed, "choose a lower sparsity")
    if distribution == "global":
        return [Budget(tuple(w.name for w in weights), keep)]
    if distribution == "uniform":
        shares = [Fraction(keep * size, sum(sizes)) for size in sizes]
        counts = _none_empty(round_to_total(shares, keep), shares)
    else:
        counts = erk_counts([tuple(w.param.shape) for w in weights], keep)
    return [Budget((w.name,), count) for w, count in zip(weights, counts, strict=True)]


def erk_counts(shapes: Sequence[tuple[int, ...]], keep: int) -> list[int]:
    """Return how many weights layers of these shapes keep at their ERK densities, `keep` in all, none of them empty."""
    shares = [d * math.prod(shape) for d, shape in zip(erk_densities(shapes, keep), shapes, strict=True)]
    return _none_empty(round_to_total(shares, keep), shares)


def erk_densities(shapes: Sequence[tuple[int, ...]], keep: int) -> list[Fraction]:
    """Return Erdős–Rényi–Kernel densities: ∝ sum of a layer's dimensions / their product, none above 1, `keep` in all.

    Evci et al. 2020, §3. A layer whose share exceeds its size stays dense, and the others share what remains.
    """
    sizes = [math.prod(shape) for shape in shapes]
    raw = [Fraction(sum(shape), max(1, size)) for shape, size in zip(shapes, sizes, strict=True)]
    dense = {i for i, size in enumerate(sizes) if not size}
    while True:
        free = [i for i in range(len(shapes)) if i not in dense]
        remaining = keep - sum(sizes[i] for i in dense)
        scale = Fraction(remaining) / sum((raw[i] * sizes[i] for i in free), start=Fraction(0)) if free else Fraction(0)
        full = [i for i in free if raw[i] * scale > 1]
        if not full:
            return [Fraction(1) if i in dense else raw[i] * scale for i in range(len(shapes))]
        dense.update(full)


def spread_evenly(shares: Sequence[Budget], weights: Sequence[Weight]) -> dict[str, int]:
    """Return how many weights each layer keeps if all layers of a budget lose the same share."""
    sizes = {w.name: w.param.numel() for w in weights}
    kept: dict[str, int] = {}
    for budget in shares:
        total = sum(sizes[name] for name in budget.names)
        exact = [Fraction(budget.keep * sizes[name], total) for name in budget.names]
        kept |= zip(budget.names, _none_empty(round_to_total(exact, budget.keep), exact), strict=True)
    return kept


def _grouped(
    rules: Mapping[str, float] | Mapping[str, float | Mapping[str, float]],
    weights: Sequence[Weight],
    sparsity: float | None,
    rest: str,
) -> list[Budget]:
    """Return the budgets of groups, of layers with their own sparsity, and of the rest, in the order of the weights."""
    groups, owner, shares = groups_of(rules), dict[str, str](), list[Budget]()
    for rule, value in rules.items():
        chosen = _matched(rule, value, weights)
        if twice := [w.name for w in chosen if w.name in owner]:
            raise ArgumentError(
                f"distribution[{rule!r}]",
                value,
                f"it matches {twice[0]}, which {owner[twice[0]]!r} matches too; beside groups, a layer has one place",
                "make the patterns differ, or remove this one and set sparsity= for all layers that no pattern matches",
            )
        owner |= dict.fromkeys((w.name for w in chosen), rule)
        if rule not in groups:
            shares += _each(chosen, [_number(value)] * len(chosen))
            continue
        kind, own = groups[rule]
        try:
            shares += budgets(kind, chosen, own)
        except ArgumentError as error:
            raise error.about(f"distribution[{rule!r}][{kind!r}]") from None
    others = [w for w in weights if w.name not in owner]
    if others and sparsity is None:
        raise _no_sparsity(rules, others)
    if others:
        shares += budgets(rest, others, sparsity)
    position = {w.name: index for index, w in enumerate(weights)}
    return sorted(shares, key=lambda budget: position[budget.names[0]])


def _each(weights: Sequence[Weight], sparsities: Sequence[float]) -> list[Budget]:
    """Return a budget for each layer, of one weight at least."""
    return [
        Budget((w.name,), max(_kept(w.param.numel(), s), min(1, w.param.numel())))
        for w, s in zip(weights, sparsities, strict=True)
    ]


def _per_layer(rules: Mapping[str, float], weights: Sequence[Weight], default: float | None) -> list[float]:
    for rule, value in rules.items():
        _matched(rule, value, weights)
    values = [next((s for rule, s in rules.items() if matches(rule, w)), default) for w in weights]
    missing = [w for w, value in zip(weights, values, strict=True) if value is None]
    if missing:
        raise _no_sparsity(rules, missing)
    return [value for value in values if value is not None]


def _matched(rule: str, value: object, weights: Sequence[Weight]) -> list[Weight]:
    chosen = [w for w in weights if matches(rule, w)]
    if not chosen:
        names = ", ".join(w.name for w in weights)
        allowed = f"it matches no prunable layer; the layers are {names}"
        instead = "to prune embeddings, write embeddings=True (in a recipe method.embeddings = true)"
        raise ArgumentError(f"distribution[{rule!r}]", value, allowed, instead)
    return chosen


def _no_sparsity(rules: Mapping[str, object], missing: Sequence[Weight]) -> ArgumentError:
    return ArgumentError(
        "distribution",
        dict(rules),
        f"it has no sparsity for {', '.join(w.name for w in missing)}",
        "add them, exclude them, or set sparsity= as the value for all other layers",
    )


def _number(value: float | Mapping[str, float]) -> float:
    assert not isinstance(value, Mapping), "groups have been dealt with"
    return value


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
