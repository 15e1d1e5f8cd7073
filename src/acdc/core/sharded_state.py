"""The state of a sparsifier on a sharded model, for torch.distributed.checkpoint, and results gathered from shards.

torch.distributed.checkpoint can save tensors on n processes and load them on m, as long as they are DTensors. So all of
the state becomes one flat mapping to tensors: masks and other tensors by weight are sharded like their weights, and
what is no tensor is JSON in one tensor of bytes, with a reference in place of each tensor.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from acdc.core.returning import SURVIVORS
from acdc.errors import ArgumentError
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Weight, is_sharded, local_part
from acdc.sparsity.sharding import join, shard_like

Gather = Literal["nowhere", "rank0", "everywhere"]
PLAIN = "plain"  # the key of the tensor that holds what is no tensor


def flatten(state: Mapping[str, Any], weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """Return a state dict as tensors by dotted name, those of weights' parts sharded like their weights."""
    state = {**state, "masks": _unpacked(state["masks"], weights)}
    if SURVIVORS in state["memory"]:
        survivors = _unpacked(state["memory"][SURVIVORS], weights)
        state["memory"] = {**state["memory"], SURVIVORS: survivors}
    tensors: dict[str, Tensor] = {}
    plain = json.dumps(_encode(state, "", tensors, weights))
    return {PLAIN: torch.tensor(list(plain.encode()), dtype=torch.uint8), **tensors}


def unflatten(tensors: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> dict[str, Any]:
    """Return the state dict of which `flatten` made these tensors, with this process's parts of what is sharded."""
    if not isinstance(tensors, Mapping) or not isinstance(tensors.get(PLAIN), Tensor):
        raise ValueError(
            "this is not the state dict of a sparsifier on a sharded model: load what its state_dict() gave, through "
            "torch.distributed.checkpoint: sparsifier.load_checkpoint(folder)"
        )
    state = _decode(json.loads(bytes(tensors[PLAIN].tolist())), tensors)
    state["masks"] = _packed(state["masks"])
    if SURVIVORS in state["memory"]:
        state["memory"][SURVIVORS] = _packed(state["memory"][SURVIVORS])
    memory = state["memory"]
    state["memory"] = {
        key: {name: local_part(item) if isinstance(item, Tensor) and name in weights else item
              for name, item in value.items()} if isinstance(value, dict) else value
        for key, value in memory.items()
    }  # fmt: skip
    return state


def _unpacked(masks: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """Return packed masks as booleans of each weight's part: bits of two ranks may share a byte."""
    return {name: working.as_bool(working.unpack(bits, weights[name].local)).cpu() for name, bits in masks.items()}


def _packed(masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: working.pack(working.from_bool(local_part(mask))) for name, mask in masks.items()}


def _encode(value: Any, path: str, tensors: dict[str, Tensor], weights: Mapping[str, Weight]) -> Any:
    """Return plain data that JSON has, and put every tensor into `tensors` under its path."""
    if isinstance(value, Tensor):
        name = next((name for name in weights if path.startswith(("masks.", "memory.")) and path.endswith(name)), None)
        if name is not None and not is_sharded(value) and value.shape == weights[name].local.shape:
            value = shard_like(value, weights[name].param)
        tensors[path] = value
        return {"tensor": [path, is_sharded(value)]}
    if isinstance(value, Mapping):
        inner = [[key, _encode(item, f"{path}.{key}".lstrip("."), tensors, weights)] for key, item in value.items()]
        return {"mapping": inner}
    if isinstance(value, list | tuple):
        inner = [_encode(item, f"{path}.{index}", tensors, weights) for index, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": inner}
    return {"value": value}


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner[0]]
    if kind == "mapping":
        return {key: _decode(item, tensors) for key, item in inner}
    if kind in ("list", "tuple"):
        items = [_decode(item, tensors) for item in inner]
        return tuple(items) if kind == "tuple" else items
    return inner


def read_checkpoint(folder: Any, prefix: str, weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """Read the tensors under `prefix` of a checkpoint; what was sharded is sharded over this run's processes."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.tensor import empty

    reader = FileSystemReader(folder)
    entries: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
    found: dict[str, Any] = {
        key.removeprefix(f"{prefix}."): entry for key, entry in entries.items() if key.startswith(f"{prefix}.")
    }
    if PLAIN not in found:
        raise ValueError(
            f"{folder} holds no sparsifier under {prefix!r}; save one with dcp.save({{{prefix!r}: "
            f"sparsifier.state_dict(), ...}}, checkpoint_id=...)"
        )
    tensors: dict[str, Tensor] = {PLAIN: torch.empty(found[PLAIN].size, dtype=torch.uint8)}
    load({f"{prefix}.{PLAIN}": tensors[PLAIN]}, storage_reader=reader)
    like: Any = next(iter(weights.values())).param
    for key, sharded in _references(json.loads(bytes(tensors[PLAIN].tolist()))).items():
        size, dtype = found[key].size, found[key].properties.dtype
        split = {"device_mesh": like.device_mesh, "placements": like.placements}
        tensors[key] = empty(*size, dtype=dtype, **split) if sharded else torch.empty(size, dtype=dtype)
    rest = {f"{prefix}.{key}": tensor for key, tensor in tensors.items() if key != PLAIN}
    if rest:
        load(rest, storage_reader=reader)
    return tensors


def _references(value: Any) -> dict[str, bool]:
    """Return the names of all tensors in encoded data, and whether they were sharded."""
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return {inner[0]: inner[1]}
    items = [item for _, item in inner] if kind == "mapping" else inner if kind in ("list", "tuple") else []
    return {name: sharded for item in items for name, sharded in _references(item).items()}


def check_gather(where: str) -> None:
    """Raise unless this is a place to gather whole tensors."""
    if where not in get_args(Gather):
        allowed = f"expected one of {', '.join(map(repr, get_args(Gather)))}"
        raise ArgumentError("gather", where, allowed, 'write gather="rank0"')


def is_kept(where: Gather) -> bool:
    """Return True if this process keeps what is gathered there."""
    return where == "everywhere" or (where == "rank0" and torch.distributed.get_rank() == 0)


def gather_tensors(tensors: Mapping[str, Any], where: Gather) -> dict[str, Any]:
    """Return whole tensors on the CPU in every process, or on rank 0 and nothing elsewhere; one at a time."""
    if where == "nowhere" or not any(isinstance(value, Tensor) and is_sharded(value) for value in tensors.values()):
        return dict(tensors)
    kept = is_kept(where)
    gathered = {}
    for name, value in tensors.items():
        whole = join(value) if isinstance(value, Tensor) else value
        if kept:
            gathered[name] = whole
    return gathered
