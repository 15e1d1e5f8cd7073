"""Removes dead filters and channels: those that are constant, or that no layer reads.

A channel can be removed if every layer that reads it has only zero weights for it, or if its value is the same for all
inputs and at all positions and each reader can absorb that value into its bias. Zero padding changes a constant at the
border, so before a padded convolution only channels that are 0 can be removed. Everything that shares the channel
(filters, batch norms, the other side of a residual addition) is removed with it. Removing channels can make others
dead, so this repeats until nothing is left to remove.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from acdc.export.channels import Grouped, Network, Reader
from acdc.export.resizing import find_holders, replace_tensor, tell_sizes
from acdc.export.trace import Example, Trace, check_module, outputs_of, trace

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
_LOW_PRECISION = 3e-2


def shrink(model: nn.Module, example: Example) -> nn.Module:
    """Return a copy of the model without its dead channels; it computes the same in evaluation mode.

    The copy is a plain module of the same class with smaller layers; the model is not changed. A layer without a bias
    gets one if it absorbs constants. The outputs of both on `example` are compared before this returns.
    `acdc.export.compare_sizes(model, small)` lists what was removed.
    """
    model = check_module(model)
    traced, expected = trace(model, example), outputs_of(model, example)
    problem = ""
    for sizes_are_fixed in (False, True):  # a reshape may have its sizes written as numbers: only a trial shows it
        small = copy.deepcopy(model)
        _shrink(small, traced, sizes_are_fixed=sizes_are_fixed)
        try:
            problem = _difference(expected, outputs_of(small, example))
        except (RuntimeError, ValueError, IndexError) as error:
            problem = str(error).splitlines()[0]
        if not problem:
            return small
    raise RuntimeError(
        f"{type(model).__name__} does not compute the same with smaller layers ({problem}): its forward pass depends "
        "on sizes that are not those of its layers"
    )


def _difference(expected: list[Tensor], got: list[Tensor]) -> str:
    """Describe how outputs differ by more than rounding; return "" if they do not."""
    for one, other in zip(expected, got, strict=True):
        if one.shape != other.shape:
            return f"an output of {tuple(one.shape)} became {tuple(other.shape)}"
        if not one.is_floating_point():
            continue
        tolerance = _TOLERANCES.get(one.dtype, _LOW_PRECISION) * max(
            1.0, float(one.abs().max()) if one.numel() else 0.0
        )
        if not torch.allclose(one, other, rtol=0, atol=tolerance, equal_nan=True):
            return f"an output differs by {float((one - other).abs().max()):.3g}"
    return ""


@torch.no_grad()
def _shrink(model: nn.Module, traced: Trace, *, sizes_are_fixed: bool) -> None:
    """Find what can be removed, round by round, and make the layers smaller at the end."""
    tensors, added = _named_tensors(model), dict[str, str]()
    removed: set[int] = set()
    while True:
        network = Network(traced, tensors, added, sizes_are_fixed=sizes_are_fixed)
        found = _removable(network, model, tensors)
        if found <= removed:
            break
        removed |= found
        for reader in network.readers:
            _absorb(reader, network, found, model, tensors, added)
        for (name, axis), units in network.axes.items():
            gone = [place for place, unit in enumerate(units) if network.units.root(unit) in found]
            tensors[name].index_fill_(axis, torch.tensor(gone, dtype=torch.long, device=tensors[name].device), 0)
    _slice(model, network, tensors, found)


# What can be removed


def _removable(network: Network, model: nn.Module, tensors: Mapping[str, Tensor]) -> set[int]:
    """Return the roots of all units to remove, so that every axis keeps a position and groups stay equal."""
    units = network.units
    for reader in network.readers:
        needed = _needed(reader, network, model, tensors)
        units.pin(unit for unit, need in zip(reader.channels.units, needed, strict=True) if need)
    for grouped in network.grouped:
        if not isinstance(_owner(grouped.weight, model), nn.modules.conv._ConvNd):
            units.pin((*grouped.inputs, *grouped.outputs))  # there is no attribute for the new number of groups
    rows = [*network.axes.values(), *(grouped.inputs for grouped in network.grouped)]
    while True:
        empty = [row[0] for row in rows if row and all(not units.pinned(unit) for unit in row)]
        uneven = [unit for grouped in network.grouped for unit in _uneven(grouped, network)]
        if not empty and not uneven:
            break
        units.pin(empty or uneven)
    return {units.root(unit) for row in rows for unit in row if not units.pinned(unit)}


def _needed(reader: Reader, network: Network, model: nn.Module, tensors: Mapping[str, Tensor]) -> list[bool]:
    """Return for each input whether the reader has weights for it and cannot absorb it into its bias."""
    weight, constant = tensors[reader.weight], reader.channels.constant
    blocks = weight.movedim(reader.out_axis, 0).unflatten(0, (reader.groups, -1))  # groups, outputs, inputs, kernel
    read = (blocks != 0).flatten(3).any(-1).any(1).flatten() if blocks.ndim > 3 else (blocks != 0).any(1).flatten()
    free = constant == 0
    if not reader.padded and _takes_constants(reader, network, model):
        free = constant.isfinite()
    return (read & ~free.to(read.device)).tolist()


def _takes_constants(reader: Reader, network: Network, model: nn.Module) -> bool:
    if any(network.uses[name] > 1 or network.is_frozen(name) for name in (reader.weight, reader.bias) if name):
        return False
    return reader.bias is not None or _layer_without_bias(reader.weight, model) is not None


def _layer_without_bias(weight: str, model: nn.Module) -> nn.Module | None:
    """Return the layer that owns this weight, if it has no bias and can be given one."""
    layer = _owner(weight, model)
    known = isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    return layer if known and layer.bias is None else None


def _owner(name: str, model: nn.Module) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _uneven(grouped: Grouped, network: Network) -> list[int]:
    """Return units that must stay so that all groups that are not removed whole lose equally many channels."""
    sides = [_split(grouped.inputs, grouped.groups), _split(grouped.outputs, grouped.groups)]
    free = [[[unit for unit in part if not network.units.pinned(unit)] for part in side] for side in sides]
    whole = {
        group
        for group in range(grouped.groups)
        if all(len(loose[group]) == len(side[group]) for loose, side in zip(free, sides, strict=True))
    }
    left = [group for group in range(grouped.groups) if group not in whole]
    if not left:
        return grouped.outputs[: len(sides[1][0])] + grouped.inputs[: len(sides[0][0])]
    keep = []
    for loose, side in zip(free, sides, strict=True):
        most = min(len(side[0]) - 1, *(len(loose[group]) for group in left))
        keep += [unit for group in left for unit in loose[group][most:]]
    return keep


def _split(units: list[int], groups: int) -> list[list[int]]:
    size = len(units) // groups
    return [units[first : first + size] for first in range(0, len(units), size)]


# Taking it out


def _absorb(
    reader: Reader,
    network: Network,
    gone: set[int],
    model: nn.Module,
    tensors: dict[str, Tensor],
    added: dict[str, str],
) -> None:
    """Add to the bias what constant channels give, and forget the weights that read them."""
    weight = tensors[reader.weight]
    places = [place for place, unit in enumerate(reader.channels.units) if network.units.root(unit) in gone]
    blocks = weight.movedim(reader.out_axis, 0).unflatten(0, (reader.groups, -1))  # views: groups, outputs, inputs, …
    per_group = blocks.shape[2]
    extra = torch.zeros(blocks.shape[:2], dtype=torch.float64, device=weight.device)
    for place in places:
        column = blocks[place // per_group, :, place % per_group]
        constant = reader.channels.constant[place]
        if constant != 0 and not constant.isnan():
            extra[place // per_group] += column.double().reshape(len(column), -1).sum(1) * float(constant)
        column.zero_()
    if not extra.any():
        return
    name = reader.bias or f"{reader.weight.removesuffix('weight')}bias"
    if reader.bias is None:
        layer = _owner(reader.weight, model)
        layer.bias = nn.Parameter(torch.zeros(extra.numel(), dtype=weight.dtype, device=weight.device))
        tensors[name] = layer.bias
        added[reader.weight] = name
    tensors[name] += extra.flatten().to(weight.dtype)


def _slice(model: nn.Module, network: Network, tensors: Mapping[str, Tensor], gone: set[int]) -> None:
    """Make parameters and buffers smaller in every module that holds them, and set the layers' sizes."""
    grouped = {one.weight: one for one in network.grouped}
    holders = find_holders(model)

    def kept(units: list[int], device: torch.device) -> Tensor:
        places = [place for place, unit in enumerate(units) if network.units.root(unit) not in gone]
        return torch.tensor(places, dtype=torch.long, device=device)

    for name in dict.fromkeys(name for name, _ in network.axes):
        old = new = tensors[name]
        if name in grouped:
            inputs = kept(grouped[name].inputs, new.device)
            new = _grouped_columns(new, grouped[name], inputs)
            size = len(grouped[name].inputs) // grouped[name].groups
            for module, _ in holders[id(old)]:
                setattr(module, "groups", len({place // size for place in inputs.tolist()}))  # noqa: B010  # of any class
        for axis in range(old.ndim):
            if (name, axis) in network.axes:
                new = new.index_select(axis, kept(network.axes[name, axis], new.device))
        if new.shape != old.shape:
            replace_tensor(old, new, holders)
    for module in model.modules():
        tell_sizes(module)


def _grouped_columns(weight: Tensor, grouped: Grouped, inputs: Tensor) -> Tensor:
    """Return the weight with the columns that each filter's group keeps; filters of removed groups keep any."""
    size, filters = weight.shape[1], weight.shape[0] // grouped.groups
    by_group = [inputs[inputs // size == group] % size for group in range(grouped.groups)]
    width = max(map(len, by_group))
    parts = []
    for group, columns in enumerate(by_group):
        columns = columns if len(columns) else torch.arange(width, device=weight.device)
        parts.append(weight[group * filters : (group + 1) * filters].index_select(1, columns))
    return torch.cat(parts)


def _named_tensors(model: nn.Module) -> dict[str, Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}
