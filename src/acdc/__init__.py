"""Sparse training for PyTorch: train once, keep an accurate sparse model and its dense twin.

Names are imported when they are asked for: torch takes seconds, and `acdc ls` needs none of it.
"""

import importlib
import typing

from acdc._version import __version__

if typing.TYPE_CHECKING:
    from acdc.core.context import SparsityWarning
    from acdc.core.result import Result, finetune_dense
    from acdc.core.sparsifier import Sparsifier, attach
    from acdc.methods.acdc import ACDC
    from acdc.schedule import Duration, Phase, Schedule
    from acdc.sparsity.layers import find_prunable
    from acdc.sparsity.patterns import NM, Block, Channel, Unstructured

__all__ = [
    "ACDC",
    "NM",
    "Block",
    "Channel",
    "Duration",
    "Phase",
    "Result",
    "Schedule",
    "Sparsifier",
    "SparsityWarning",
    "Unstructured",
    "__version__",
    "attach",
    "find_prunable",
    "finetune_dense",
]

# Where each name is.
_PLACES = {
    "ACDC": "methods.acdc",
    "Duration": "schedule",
    "Phase": "schedule",
    "Schedule": "schedule",
    "Sparsifier": "core.sparsifier",
    "SparsityWarning": "core.context",
    "attach": "core.sparsifier",
    "find_prunable": "sparsity.layers",
    "NM": "sparsity.patterns",
    "Block": "sparsity.patterns",
    "Channel": "sparsity.patterns",
    "Unstructured": "sparsity.patterns",
    "Result": "core.result",
    "finetune_dense": "core.result",
}
_PARTS = (
    "core",
    "criteria",
    "data",
    "flops",
    "measure",
    "methods",
    "models",
    "recipes",
    "schedule",
    "sparsity",
    "train",
)


def __getattr__(name: str) -> typing.Any:
    if name in _PLACES:
        value = getattr(importlib.import_module(f"acdc.{_PLACES[name]}"), name)
        globals()[name] = value
        return value
    if name in _PARTS:  # acdc.methods.build(...) after `import acdc` alone
        return importlib.import_module(f"acdc.{name}")
    raise AttributeError(f"module 'acdc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
