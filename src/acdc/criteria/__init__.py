"""Criteria: scores other than magnitude for what a compression keeps.

A criterion gives every prunable weight a score, and the method keeps the largest scores within its budgets. Some
criteria look at the gradients of the last steps before a compression, others compute gradients of their own.

    acdc.ACDC(sparsity=0.9, epochs=100, criterion="saliency")
    acdc.ACDC(sparsity=0.9, epochs=100, criterion=acdc.criteria.WoodFisher(steps=200))
    criterion = { name = "woodfisher", steps = 200 }        in a recipe
"""

from collections.abc import Mapping
from dataclasses import fields
from inspect import cleandoc
from typing import Any

from acdc.criteria.criterion import Criterion
from acdc.criteria.first_order import Magnitude, Movement, Preconditioned, Saliency, Snip
from acdc.criteria.synflow import SynFlow
from acdc.criteria.woodfisher import WoodFisher
from acdc.errors import ArgumentError, did_you_mean

__all__ = [
    "Criterion",
    "Magnitude",
    "Movement",
    "Preconditioned",
    "Saliency",
    "Snip",
    "SynFlow",
    "WoodFisher",
    "build",
    "card",
    "names",
]

_KINDS: tuple[type[Criterion], ...] = (Magnitude, Preconditioned, Saliency, Movement, WoodFisher, Snip, SynFlow)
_CRITERIA = {kind.name: kind for kind in _KINDS}


def names() -> tuple[str, ...]:
    return tuple(_CRITERIA)


def build(criterion: str | Mapping[str, Any] | Criterion) -> Criterion:
    """Return the criterion for a name, for a table with a name and knobs, or the criterion passed in."""
    if isinstance(criterion, Criterion):
        return criterion
    knobs: dict[str, Any] = dict(criterion) if isinstance(criterion, Mapping) else {"name": criterion}
    name = knobs.pop("name", criterion)
    kind = _kind(name)
    known = [f.name for f in fields(kind)]
    for knob, value in knobs.items():
        if knob not in known:
            allowed = f"{name} has the knobs {', '.join(known) or 'none'}{did_you_mean(knob, known)}"
            raise ArgumentError(knob, received=value, allowed=allowed).under("criterion")
    try:
        return kind(**knobs)
    except ArgumentError as error:
        raise error.under("criterion") from None


def card(name: str) -> str:
    """Return a criterion's formula, cost, reference and knobs."""
    kind = _kind(name)
    knobs = [f"{f.name} = {getattr(f.default, '__name__', repr(f.default))}" for f in fields(kind)]
    return f"{cleandoc(kind.__doc__ or '')}\n\nKnobs: {', '.join(knobs) or 'none'}"


def _kind(name: object) -> type[Criterion]:
    if not isinstance(name, str) or name not in _CRITERIA:
        allowed = f"expected one of {', '.join(map(repr, _CRITERIA))}{did_you_mean(name, _CRITERIA)}"
        raise ArgumentError("criterion", received=name, allowed=allowed)
    return _CRITERIA[name]
