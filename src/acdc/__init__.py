"""Sparse training for PyTorch: train once, keep an accurate sparse model and its dense twin.

Names are imported on first use: importing torch takes seconds, and `acdc ls` does not need it.
"""

import typing

from acdc._version import __version__

if typing.TYPE_CHECKING:
    from acdc import criteria, data, export, flops, measure, methods, models, sparsity, theory
    from acdc.core.context import SparsityWarning
    from acdc.core.method import Method
    from acdc.core.result import Result, finetune_dense
    from acdc.core.running_statistics import recalibrate
    from acdc.core.sparsifier import Sparsifier, attach
    from acdc.methods.acdc import ACDC
    from acdc.methods.keep_masks import KeepMasks, keep_masks
    from acdc.schedule import Duration, Phase, Schedule
    from acdc.sparsity.packed import load
    from acdc.sparsity.patterns import NM, Block, Channel, Unstructured
    from acdc.sparsity.prunable import find_prunable
    from acdc.sparsity.published import PublishedCheckpoint, from_published
    from acdc.sparsity.torch_prune import from_torch_prune
    from acdc.train.optim import Lamb

__all__ = [
    "ACDC",
    "NM",
    "Block",
    "Channel",
    "Duration",
    "KeepMasks",
    "Lamb",
    "Method",
    "Phase",
    "PublishedCheckpoint",
    "Result",
    "Schedule",
    "Sparsifier",
    "SparsityWarning",
    "Unstructured",
    "__version__",
    "attach",
    "criteria",
    "data",
    "export",
    "find_prunable",
    "finetune_dense",
    "flops",
    "from_published",
    "from_torch_prune",
    "keep_masks",
    "load",
    "measure",
    "methods",
    "models",
    "recalibrate",
    "sparsity",
    "theory",
]

_MODULES = {
    "ACDC": "methods.acdc",
    "Duration": "schedule",
    "KeepMasks": "methods.keep_masks",
    "keep_masks": "methods.keep_masks",
    "Phase": "schedule",
    "Schedule": "schedule",
    "Sparsifier": "core.sparsifier",
    "SparsityWarning": "core.context",
    "attach": "core.sparsifier",
    "find_prunable": "sparsity.prunable",
    "from_published": "sparsity.published",
    "PublishedCheckpoint": "sparsity.published",
    "from_torch_prune": "sparsity.torch_prune",
    "load": "sparsity.packed",
    "NM": "sparsity.patterns",
    "Block": "sparsity.patterns",
    "Channel": "sparsity.patterns",
    "Unstructured": "sparsity.patterns",
    "recalibrate": "core.running_statistics",
    "Result": "core.result",
    "finetune_dense": "core.result",
    "Lamb": "train.optim",
    "Method": "core.method",
}
_PACKAGES = ("criteria", "data", "export", "flops", "measure", "methods", "models", "sparsity", "theory")

if not typing.TYPE_CHECKING:  # otherwise every misspelt name would be an Any

    def __getattr__(name: str) -> typing.Any:
        import importlib

        if name in _MODULES:
            value = getattr(importlib.import_module(f"acdc.{_MODULES[name]}"), name)
            globals()[name] = value
            return value
        if name in _PACKAGES:  # acdc.methods.build(...) after `import acdc` alone
            return importlib.import_module(f"acdc.{name}")
        raise AttributeError(f"module 'acdc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
