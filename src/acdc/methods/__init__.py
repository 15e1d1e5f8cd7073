"""Sparse-training methods, one file each, all behind the same small interface.

    method = acdc.methods.RigL(sparsity=0.9, epochs=100)
    method = acdc.methods.build("rigl", sparsity=0.9, epochs=100)   the same, by name

A method's module is imported when it is first asked for; its docstring is its card.
"""

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from acdc.errors import did_you_mean

if TYPE_CHECKING:
    from acdc.core.method import Method

# Where each method is.
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
    return tuple(_METHODS)


def find(name: str) -> "type[Method]":
    """The method's class."""
    if name not in _METHODS:
        expected = f"expected one of {', '.join(_METHODS)}{did_you_mean(name, _METHODS)}"
        raise ValueError(f"method={name!r}: {expected}")
    module, kind = _METHODS[name].split(".")
    return getattr(import_module(f"{__name__}.{module}"), kind)


def build(name: str, **knobs: Any) -> "Method":
    """The method of that name. Knobs it does not have are refused."""
    kind = find(name)
    known = [f.name for f in fields(kind)]
    for knob, value in knobs.items():
        if knob not in known:
            allowed = f"{name} has the knobs {', '.join(known)}{did_you_mean(knob, known)}"
            raise ValueError(f"{knob}={value!r}: {allowed}")
    return kind(**knobs)


def __getattr__(kind: str) -> Any:
    """Classes by their names: acdc.methods.GMP."""
    for name, place in _METHODS.items():
        if place.endswith(f".{kind}"):
            return find(name)
    raise AttributeError(f"acdc.methods has no {kind!r}; its methods are {', '.join(_classes())}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_classes()})


def _classes() -> list[str]:
    return [place.rpartition(".")[2] for place in _METHODS.values()]


def card(name: str) -> str:
    """Idea, equation, knobs, cost and reference of a method."""
    return (import_module(find(name).__module__).__doc__ or "").strip()
