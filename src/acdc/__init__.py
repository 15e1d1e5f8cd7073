"""Sparse training for PyTorch: train once, keep an accurate sparse model and its dense twin."""

from acdc._version import __version__
from acdc.methods.acdc import ACDC
from acdc.schedule import Duration, Phase, Schedule
from acdc.sparsifier import Sparsifier, attach
from acdc.sparsity.layers import find_prunable
from acdc.sparsity.patterns import NM, Block, Channel, Unstructured
from acdc.twin import Result, finetune_dense

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
    "Unstructured",
    "__version__",
    "attach",
    "find_prunable",
    "finetune_dense",
]
