"""Sharded training (train.parallel = "fsdp"): every process holds a part of each parameter and its optimizer state.

The model is built whole, then split by torch's fully_shard. Its blocks are units, whose parameters are gathered when
they are needed and dropped again: the items of the ModuleLists and Sequentials that are the model's own children (the
blocks of a GPT, the layers of Transformer-XL, the stages or blocks of a ResNet). What is left is one more unit.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from acdc.sparsity.sharding import fsdp_modules, fsdp_roots


def shard_model(model: nn.Module, device: torch.device, processes: int) -> None:
    """Split the parameters of a model over all processes, in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (processes,))
    for unit in find_units(model):
        fully_shard(unit, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)


def find_units(model: nn.Module) -> list[nn.Module]:
    """Return the modules that are gathered one after another. Those that share a parameter with others are left out."""
    children = [child for child in model.children() if isinstance(child, nn.ModuleList | nn.Sequential)]
    items = [item for child in children for item in child if any(True for _ in item.parameters())]
    owners: dict[int, int] = {}
    for module in model.modules():
        for param in module.parameters(recurse=False):
            owners[id(param)] = owners.get(id(param), 0) + 1
    return [item for item in items if all(owners[id(param)] == 1 for param in item.parameters())]


@contextmanager
def whole_weights(model: nn.Module) -> Iterator[None]:
    """Gather all parameters of a sharded model once, for forward passes that ranks do not take in step.

    Without this every forward pass gathers, and ranks with different numbers of batches would wait for one another.
    """
    modules: list[Any] = fsdp_modules(model)
    for module in modules:
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()
    try:
        yield
    finally:
        roots = fsdp_roots(model)
        for module in modules:
            module.set_reshard_after_forward(module not in roots, recurse=False)
            module.reshard()


def without_exchange(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context whose backward passes add to gradients without exchanging them, as DDP's no_sync does."""
    roots: list[Any] = fsdp_roots(model)
    return _without_exchange(roots) if roots else nullcontext()


@contextmanager
def _without_exchange(roots: list[Any]) -> Iterator[None]:
    for root in roots:
        root.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        for root in roots:
            root.set_requires_gradient_sync(True)
