"""States of sharded models as those of models that were never sharded: gathered to save, split to load.

They are what torch.save writes for a plain model, so a checkpoint resumes on any number of processes, also on one.
Tensors are gathered one at a time; no process but those that keep them holds more than one whole tensor.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.returning import SURVIVORS
from acdc.core.sharded_state import unflatten
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Weight, is_sharded, local_part
from acdc.sparsity.sharding import join, shard_like, split_like


def gather_nested(value: Any, keep: bool) -> Any:
    """Return nested dicts and lists with whole tensors on the CPU for DTensors, or None for those, one at a time.

    Every process must call this, those too that do not `keep` what is gathered.
    """
    if isinstance(value, Tensor) and is_sharded(value):
        whole = join(value)
        return whole if keep else None
    if isinstance(value, Mapping):
        return {key: gather_nested(item, keep) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(gather_nested(item, keep) for item in value)
    return value


def gather_state(flat: Mapping[str, Tensor], weights: Mapping[str, Weight], keep: bool) -> dict[str, Any]:
    """Return the state dict of a sparsifier on a model that is not sharded; nothing where it is not kept."""
    whole = gather_nested(flat, keep)
    return unflatten(whole, weights) if keep else {}


def split_state(
    state: Mapping[str, Any], weights: Mapping[str, Weight], model: nn.Module, optimizer: Optimizer
) -> dict[str, Any]:
    """Return this process's part of a state dict of a sparsifier on a model that was not sharded."""
    tensors, memory = model.state_dict(), dict(state["memory"])
    if SURVIVORS in memory:
        memory[SURVIVORS] = _split_masks(memory[SURVIVORS], weights)
    for key, value in memory.items():
        if key != SURVIVORS and isinstance(value, Mapping):
            memory[key] = {name: _own_part(item, weights.get(name)) for name, item in value.items()}
    twin, kept = state["twin"], state["kept_sparse"]
    if twin is not None:
        parts = {
            "model": split_tensors(twin["model"], tensors),
            "optimizer": split_optimizer(twin["optimizer"], optimizer),
        }
        twin = {**twin, **_to_cpu(parts)}
    if kept is not None:
        params = {name: weight.param for name, weight in weights.items()}
        kept = _to_cpu([split_tensors(kept[0], tensors), split_tensors(kept[1], params)])
    return {
        **state,
        "masks": _split_masks(state["masks"], weights),
        "memory": memory,
        "twin": twin,
        "kept_sparse": kept,
    }


def split_tensors(tensors: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return whole tensors as DTensors, each split like the one of its name, if that is one."""
    return {
        name: split_like(tensor, like[name]) if isinstance(like.get(name), Tensor) else tensor
        for name, tensor in tensors.items()
    }


def split_optimizer(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """Return an optimizer's state dict of whole tensors, with those of a parameter's shape split like it."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    by_number = dict(zip(numbers, params, strict=True))

    def split(value: Any, param: Tensor) -> Any:
        return split_like(value, param) if isinstance(value, Tensor) and value.shape == param.shape else value

    own = {
        number: {key: split(value, by_number[number]) for key, value in entry.items()}
        for number, entry in state["state"].items()
    }
    return {**state, "state": own}


def _split_masks(masks: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """Return packed masks of this process's parts of the weights, given those of whole weights."""
    return {name: split_bits(bits, weights[name].param) for name, bits in masks.items()}


def split_bits(bits: Tensor, param: Tensor) -> Tensor:
    """Return the packed mask of this process's part of a parameter, given that of the whole."""
    if not is_sharded(param):
        return bits
    whole = working.as_bool(working.unpack(bits.cpu(), torch.empty(param.shape, dtype=torch.int8)))
    return working.pack(working.from_bool(local_part(split_like(whole, param))))


def join_bits(bits: Tensor, param: Tensor) -> Tensor:
    """Return the packed mask of a whole parameter, given that of this process's part."""
    if not is_sharded(param):
        return bits
    part = working.as_bool(working.unpack(bits, local_part(param).detach()))
    return working.pack(working.from_bool(join(shard_like(part, param))))


def _own_part(value: Any, weight: Weight | None) -> Any:
    if weight is None or not isinstance(value, Tensor) or value.shape != weight.param.shape:
        return value
    return local_part(split_like(value, weight.param))


def _to_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.cpu()
    if isinstance(value, Mapping):
        return {key: _to_cpu(item) for key, item in value.items()}
    return [_to_cpu(item) for item in value] if isinstance(value, list) else value
