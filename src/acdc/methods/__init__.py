"""Sparse-training methods, one file each, all behind the same small interface.

    method = acdc.methods.RigL(sparsity=0.9, epochs=100)
    method = acdc.methods.build("rigl", sparsity=0.9, epochs=100)   the same, by name

A method's module is imported on first use; its docstring is its card.
"""

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from acdc.errors import ArgumentError, did_you_mean

if TYPE_CHECKING:
    from acdc.core.method import Method
    from acdc.methods.acdc import ACDC
    from acdc.methods.deepr import DeepR
    from acdc.methods.dpf import DPF
    from acdc.methods.dsd import DSD
    from acdc.methods.gmp import GMP
    from acdc.methods.jin import Jin
    from acdc.methods.lottery import LotteryTicket
    from acdc.methods.one_shot import OneShot
    from acdc.methods.quantised import QuantisedACDC
    from acdc.methods.rigl import RigL
    from acdc.methods.set import SET
    from acdc.methods.snfs import SNFS
    from acdc.methods.soft_threshold import STR
    from acdc.methods.sparse_vd import SparseVD
    from acdc.methods.sr_ste import SRSTE
    from acdc.methods.static import Static
    from acdc.methods.top_kast import TopKAST

__all__ = [
    "ACDC",
    "DPF",
    "DSD",
    "GMP",
    "SET",
    "SNFS",
    "SRSTE",
    "STR",
    "DeepR",
    "Jin",
    "LotteryTicket",
    "OneShot",
    "QuantisedACDC",
    "RigL",
    "SparseVD",
    "Static",
    "TopKAST",
    "build",
    "card",
    "find",
    "names",
]

# The class of each method.
_METHODS = {
    "acdc": "acdc.ACDC",
    "one_shot": "one_shot.OneShot",
    "gmp": "gmp.GMP",
    "dsd": "dsd.DSD",
    "jin": "jin.Jin",
    "lottery": "lottery.LotteryTicket",
    "static": "static.Static",
    "set": "set.SET",
    "deepr": "deepr.DeepR",
    "snfs": "snfs.SNFS",
    "rigl": "rigl.RigL",
    "top_kast": "top_kast.TopKAST",
    "str": "soft_threshold.STR",
    "dpf": "dpf.DPF",
    "sr_ste": "sr_ste.SRSTE",
    "sparse_vd": "sparse_vd.SparseVD",
    "quantised": "quantised.QuantisedACDC",
}


def names() -> tuple[str, ...]:
    """Return the names that `build` accepts."""
    return tuple(_METHODS)


def find(name: str) -> "type[Method]":
    """Return the method's class."""
    if name not in _METHODS:
        allowed = f"expected one of {', '.join(_METHODS)}{did_you_mean(name, _METHODS)}"
        raise ArgumentError("method", name, allowed)
    module, kind = _METHODS[name].split(".")
    return getattr(import_module(f"{__name__}.{module}"), kind)


def build(name: str, **knobs: Any) -> "Method":
    """Build the method of that name. Unknown knobs raise an ArgumentError."""
    kind = find(name)
    known = [field.name for field in fields(kind)]
    for knob, value in knobs.items():
        if knob not in known:
            allowed = f"{name} has the knobs {', '.join(known)}{did_you_mean(knob, known)}"
            raise ArgumentError(knob, value, allowed)
    return kind(**knobs)


def card(name: str) -> str:
    """Return a method's card: idea, equation, knobs, cost and reference."""
    return (import_module(find(name).__module__).__doc__ or "").strip()


if not TYPE_CHECKING:  # otherwise every misspelt name would be an Any

    def __getattr__(kind: str) -> Any:
        for name, place in _METHODS.items():
            if place.endswith(f".{kind}"):
                return find(name)
        classes = ", ".join(place.rpartition(".")[2] for place in _METHODS.values())
        raise AttributeError(f"acdc.methods has no {kind!r}; its methods are {classes}")


def __dir__() -> list[str]:
    return sorted(__all__)
