"""Sharded parameters (DTensors of FSDP2 or tensor parallelism): the part this process holds, and sums over all parts.

Every process holds some rows of each parameter, split as torch.chunk splits its first axis: the last ones may hold
fewer, or none. All work on weights is done on these parts, in place; processes exchange only counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from acdc.errors import ArgumentError
from acdc.sparsity.layers import Weight, is_sharded, local_part
from acdc.sparsity.topk import WHOLE, Shards


def find_shards(weights: Sequence[Weight]) -> Shards:
    """Return how these weights are split, or raise unless all of them are split in the same way, by rows."""
    sharded = [weight for weight in weights if is_sharded(weight.param)]
    if not sharded:
        return WHOLE
    first: Any = sharded[0].param
    for weight in weights:
        param: Any = weight.param
        if not is_sharded(param):
            raise _unlike(weight, f"is whole in every process, while {sharded[0].name} is sharded")
        if _sharded_axis(weight) is None:
            raise _unlike(weight, f"has placements {param.placements}; expected one Shard(dim=0), others Replicate()")
        if (param.device_mesh, param.placements) != (first.device_mesh, first.placements):
            raise _unlike(weight, f"is on another device mesh than {sharded[0].name}, or placed differently there")
    axis = _sharded_axis(sharded[0])
    assert axis is not None
    return _over(first.device_mesh, axis)


def shards_of(tensors: Mapping[str, Tensor]) -> Shards:
    """Return how tensors are split that are sharded like the weights of a model."""
    sharded: Any = next((tensor for tensor in tensors.values() if is_sharded(tensor)), None)
    if sharded is None:
        return WHOLE
    axis = next(axis for axis, placement in enumerate(sharded.placements) if placement.is_shard())
    return _over(sharded.device_mesh, axis)


def _over(mesh: Any, axis: int) -> Shards:
    """Return shards over one axis of a mesh."""
    group = mesh.get_group(axis)

    def add(counts: Tensor) -> Tensor:
        total = counts.to(mesh.device_type, copy=True)  # the group's backend may not reach the host
        torch.distributed.all_reduce(total, group=group)
        return total.to(counts.device)

    return Shards(index=mesh.get_local_rank(axis), count=mesh.size(axis), sum=add)


def _sharded_axis(weight: Weight) -> int | None:
    """Return the axis of the mesh over which the rows of this weight are split, if that is all that is split."""
    param: Any = weight.param
    split = [axis for axis, placement in enumerate(param.placements) if not placement.is_replicate()]
    if len(split) != 1:
        return None
    placement = param.placements[split[0]]
    plain = type(placement).__name__ == "Shard"  # others may interleave rows
    return split[0] if plain and placement.dim == 0 else None


def _unlike(weight: Weight, why: str) -> ArgumentError:
    return ArgumentError(
        "model",
        allowed=f"{weight.name} {why}; the prunable weights of a sharded model must all be split by rows over one mesh",
        instead=f"leave it dense with exclude=[{weight.name!r}], or shard all layers by fully_shard(model)",
    )


def shard_like(part: Tensor, param: Tensor) -> Tensor:
    """Return a tensor that is sharded like a parameter, given this process's part of it."""
    if not is_sharded(param):
        return part
    from torch.distributed.tensor import DTensor  # takes long to import, and is there already if a DTensor is

    like: Any = param
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=param.shape, stride=param.stride()
    )


def split_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a whole tensor as a DTensor, split like another one; unsplit if that is whole."""
    if not is_sharded(like):
        return whole
    from torch.distributed.tensor import distribute_tensor

    target: Any = like
    with torch.no_grad():
        return distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)


def join(tensor: Tensor) -> Tensor:
    """Return all parts of a DTensor as one tensor on the CPU, in every process; of other tensors, themselves."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor.detach()
    return sharded.to(sharded.device_mesh.device_type).full_tensor().cpu()


def count_nonzero(tensors: Mapping[str, Tensor], shards: Shards) -> dict[str, int]:
    """Count what is not 0 in each tensor, over all shards; waits for the device once."""
    if not tensors:
        return {}
    counts = [local_part(tensor).detach().count_nonzero() for tensor in tensors.values()]
    home = counts[0].device
    total = shards.sum(torch.stack([count.to(home) for count in counts]))
    return dict(zip(tensors, total.tolist(), strict=True))


def any_shard(flags: Iterable[bool], shards: Shards) -> list[bool]:
    """Return which flags are set in any shard."""
    own = torch.tensor([int(flag) for flag in flags], dtype=torch.int64)
    return [bool(count) for count in (shards.sum(own) if own.numel() else own).tolist()]


def fsdp_roots(model: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that fully_shard was called on."""
    if _is_fsdp(model):
        return [model]
    return [root for child in model.children() for root in fsdp_roots(child)]


def fsdp_modules(model: nn.Module) -> list[nn.Module]:
    """Return all modules that fully_shard was called on."""
    return [module for module in model.modules() if _is_fsdp(module)]


def reshard(model: nn.Module) -> None:
    """Put sharded parameters back where a forward pass has left gathered copies of them, as after an evaluation."""
    for module in fsdp_modules(model):
        module.reshard()  # pyright: ignore[reportCallIssue]


def _is_fsdp(module: nn.Module) -> bool:
    """Return True for FSDPModules, recognised by their methods: importing torch.distributed.fsdp takes long."""
    return callable(getattr(module, "reshard", None)) and callable(getattr(module, "unshard", None))
