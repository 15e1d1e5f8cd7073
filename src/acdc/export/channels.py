"""Follows channels through the operations of a network: which belong together, which are constant, who reads them.

For each operation this records the units along the channel axis of its output, the value of every channel that is the
same for all inputs and at all positions (a filter of zeros outputs its bias; batch norm, activations and additions then
change that value), and what the operation reads of its input. An unknown operation pins everything it touches.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from acdc.export.constant_channels import evaluate, product_constants, uniform, zero_or_unknown
from acdc.export.trace import Trace, arguments, shape_of
from acdc.export.units import Channels, Units, moved, positions

_SAME = ("clone", "contiguous", "detach", "alias", "to", "_to_copy", "lift_fresh_copy", "type_as")
_DROPOUT = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
_POOLS = ("max_pool", "avg_pool", "adaptive_avg_pool")
_RESHAPES = ("flatten", "view", "reshape", "permute", "transpose", "t", "squeeze", "unsqueeze", "movedim")


@dataclass(frozen=True)
class Reader:
    """Describes a convolution or a linear layer, which reads channels with its weights."""

    weight: str
    bias: str | None
    out_axis: int  # of the weight
    groups: int
    channels: Channels  # of its input
    padded: bool  # with zeros, so that a constant is not one at the border


@dataclass(frozen=True)
class Grouped:
    """Describes a grouped convolution, whose groups must stay equally large. Depthwise groups have a single input."""

    weight: str
    groups: int
    inputs: list[int]
    outputs: list[int]


class Network:
    """Follows channels in one pass over the operations, with the current values of the parameters."""

    def __init__(
        self, trace: Trace, parameters: Mapping[str, Tensor], added: Mapping[str, str], *, sizes_are_fixed: bool
    ) -> None:
        """Visit every operation.

        `added` maps weights to the biases that their layers were given after tracing. With `sizes_are_fixed`, the sizes
        of a reshape are taken as written in the model's code, so the channels they count must stay.
        """
        self.units = Units()
        self.axes: dict[tuple[str, int], list[int]] = {}
        self.readers: list[Reader] = []
        self.grouped: list[Grouped] = []
        self.uses: dict[str, int] = {}
        self._trace, self._parameters, self._added = trace, parameters, added
        self._sizes_are_fixed = sizes_are_fixed
        self._frozen: set[str] = set()
        self._channels: dict[Node, Channels] = {}
        self._order = {node: place for place, node in enumerate(trace.nodes)}
        for node in trace.nodes:
            if node.op not in ("placeholder", "get_attr"):
                self._visit(node)

    def is_frozen(self, name: str) -> bool:
        """Return True if an unknown operation reads this parameter, so that it must not change."""
        return name in self._frozen

    # One operation

    def _visit(self, node: Node) -> None:
        result = None
        if isinstance(node.target, torch._ops.OpOverload) and not self._aliased(node):
            result = self._follow(node)
        if result is None:
            self._pin(node)
        else:
            self._channels[node] = result

    def _follow(self, node: Node) -> Channels | None:
        """Return the channels of an operation's output, or None if the operation or this form of it is unknown."""
        target: Any = node.target
        name, given = target.overloadpacket.__name__.removesuffix("_"), arguments(node)
        special: Mapping[str, Callable[[Node, dict[str, Any]], Channels | None]] = {
            "conv1d": self._conv, "conv2d": self._conv, "conv3d": self._conv, "linear": self._linear,
            "addmm": self._addmm, "batch_norm": self._batch_norm, "mean": self._mean, "cat": self._cat,
            "pad": self._pad, "constant_pad_nd": self._pad,
        }  # fmt: skip
        if name in special:
            return special[name](node, given)
        source = next((arg for arg in node.args if isinstance(arg, Node)), None)
        channels = self._channels.get(source) if source else None
        if name in _SAME or (name in _DROPOUT and not given["train"]):
            return channels
        if channels and source and name.startswith(_POOLS) and name[-2:] in ("1d", "2d", "3d"):
            return self._pool(name, given, channels, len(shape_of(source)))
        if channels and name.startswith("upsample_") and channels.axis == 1:
            return channels
        if channels and source and name in _RESHAPES:
            return self._reshape(node, given, channels, source)
        if torch.Tag.pointwise in target.tags and torch.Tag.nondeterministic_seeded not in target.tags:
            return self._pointwise(node, name)
        return None

    def _aliased(self, node: Node) -> bool:
        """Return True if a tensor that is changed in place here is read later under another name."""
        target: Any = node.target
        if not target._schema.is_mutable:
            return False
        family, new = set[Node](), list(node.all_input_nodes)
        while new:
            member = new.pop()
            if member in family or member in self._trace.names:
                continue
            family.add(member)
            new += [user for user in member.users if user is not node and _shares_memory(user)]
            new += member.all_input_nodes if _shares_memory(member) else []
        if all(self._order[user] <= self._order[node] for member in family for user in member.users):
            return False
        for member in family & self._channels.keys():
            self.units.pin(self._channels[member].units)
            self._channels[member].constant.fill_(torch.nan)
        return True

    def _pin(self, node: Node) -> None:
        """Keep everything that an operation touches."""
        for source in node.all_input_nodes:
            if source in self._channels:
                self.units.pin(self._channels[source].units)
            if name := self._trace.name(source):
                self._frozen.add(name)
                for (other, _), units in self.axes.items():
                    if other == name:
                        self.units.pin(units)

    def _label(self, name: str | None, axis: int, units: list[int]) -> None:
        """Record that the positions along a parameter's axis belong to these units."""
        if name is None:
            return
        if (name, axis) in self.axes:
            self.units.join(self.axes[name, axis], units)
        else:
            self.axes[name, axis] = units
        if name in self._frozen:
            self.units.pin(units)

    def _values(self, name: str) -> Tensor:
        return self._parameters[name].detach().cpu().double()

    # Layers

    def _conv(self, node: Node, given: dict[str, Any]) -> Channels | None:
        if len(shape_of(node)) != len(shape_of(given["weight"])):
            return None  # without a batch
        padding = given["padding"]
        padded = padding != "valid" if isinstance(padding, str) else any(_as_list(padding))
        return self._product(given["input"], given["weight"], given["bias"], 1, given["groups"], padded=padded)

    def _linear(self, node: Node, given: dict[str, Any]) -> Channels | None:
        return self._product(given["input"], given["weight"], given["bias"], len(shape_of(node)) - 1)

    def _addmm(self, node: Node, given: dict[str, Any]) -> Channels | None:
        """Follow x · W + b with the weight of Hugging Face's Conv1D, whose first axis is the input's."""
        if (given["alpha"], given["beta"]) != (1, 1) or self._trace.name(given["self"]) is None:
            return None
        if len(shape_of(given["self"])) != 1:
            return None
        return self._product(given["mat1"], given["mat2"], given["self"], 1, out_axis=1)

    def _product(
        self,
        source: Node,
        weight: Any,
        bias: Any,
        axis: int,
        groups: int = 1,
        *,
        padded: bool = False,
        out_axis: int = 0,
    ) -> Channels | None:
        name, bias_name = self._trace.name(weight), self._trace.name(bias)
        if name is None or (bias is not None and bias_name is None):
            return None
        bias_name = bias_name or self._added.get(name)
        values = self._values(name)
        size, per_group = values.shape[out_axis], values.shape[1 - out_axis]
        for used in filter(None, (name, bias_name)):
            self.uses[used] = self.uses.get(used, 0) + 1
        channels = self._channels.get(source)
        if channels is None or channels.axis != axis:
            if channels is not None:
                self.units.pin(channels.units)
            channels = Channels.unknown(axis, self.units.new(per_group * groups, pinned=True))
        depthwise = groups > 1 and per_group == 1
        if depthwise:
            units = [unit for unit in channels.units for _ in range(size // groups)]
        else:
            units = self.units.new(size)
            reader = Reader(name, bias_name, out_axis, groups, channels, padded)
            self.readers.append(reader)
            if groups == 1:
                self._label(name, 1 - out_axis, channels.units)
        if groups > 1:
            self.grouped.append(Grouped(name, groups, channels.units, units))
        self._label(name, out_axis, units)
        self._label(bias_name, 0, units)
        constant = product_constants(values, out_axis, groups, channels.constant, padded)
        return Channels(axis, units, constant + (self._values(bias_name) if bias_name else 0))

    def _batch_norm(self, node: Node, given: dict[str, Any]) -> Channels | None:
        channels = self._channels.get(given["input"])
        parts = ("weight", "bias", "running_mean", "running_var")
        names = {part: self._trace.name(given[part]) for part in parts}
        if channels is None or channels.axis != 1 or given["training"] or given["running_mean"] is None:
            return None
        if any(given[part] is not None and name is None for part, name in names.items()):
            return None
        for name in names.values():
            self._label(name, 0, channels.units)
        numbers = {part: self._values(name) for part, name in names.items() if name}
        scale = (numbers["running_var"] + given["eps"]).rsqrt() * numbers.get("weight", 1.0)
        constant = (channels.constant - numbers["running_mean"]) * scale + numbers.get("bias", 0.0)
        return Channels(1, channels.units, constant)

    # Operations without weights

    def _pool(self, name: str, given: dict[str, Any], channels: Channels, ndim: int) -> Channels | None:
        if channels.axis != ndim - int(name[-2]) - 1:
            return None
        counts_zeros = name.startswith("avg_pool") and any(_as_list(given["padding"])) and given["count_include_pad"]
        if not counts_zeros and given.get("divisor_override") is None:
            return channels
        return Channels(channels.axis, channels.units, zero_or_unknown(channels.constant))

    def _mean(self, node: Node, given: dict[str, Any]) -> Channels | None:
        channels = self._channels.get(given["self"])
        ndim = len(shape_of(given["self"]))
        axes = {axis % ndim for axis in given.get("dim") or range(ndim)}
        if channels is None or channels.axis in axes:
            return None
        lost = 0 if given["keepdim"] else sum(axis < channels.axis for axis in axes)
        return Channels(channels.axis - lost, channels.units, channels.constant)

    def _pad(self, node: Node, given: dict[str, Any]) -> Channels | None:
        channels = self._channels.get(given["self"])
        if channels is None or channels.axis >= len(shape_of(node)) - len(given["pad"]) // 2:
            return None
        constant, fill = channels.constant, given.get("value") or 0.0
        if given.get("mode", "constant") == "constant":
            constant = torch.where(constant == fill, constant, torch.nan)
        return Channels(channels.axis, channels.units, constant)

    def _reshape(self, node: Node, given: dict[str, Any], channels: Channels, source: Node) -> Channels | None:
        target: Any = node.target
        before = positions(channels, shape_of(source))
        after = moved(channels, before, target(before, *node.args[1:], **node.kwargs))
        sizes = given.get("size", given.get("shape"))
        if after is not None and sizes is not None and self._sizes_are_fixed and sizes[after.axis] != -1:
            return None
        return after

    def _cat(self, node: Node, given: dict[str, Any]) -> Channels | None:
        sources, axis = given["tensors"], given["dim"] % len(shape_of(node))
        known = [self._channels.get(source) for source in sources]
        if not any(known) or any(one.axis != axis for one in known if one):
            return None
        parts = [
            one or Channels.unknown(axis, self.units.new(shape_of(source)[axis], pinned=True))
            for source, one in zip(sources, known, strict=True)
        ]
        units = [unit for one in parts for unit in one.units]
        return Channels(axis, units, torch.cat([one.constant for one in parts]))

    def _pointwise(self, node: Node, name: str) -> Channels | None:
        shape, target = shape_of(node), node.target
        sources = dict.fromkeys(node.all_input_nodes)
        followed = {source: self._channels[source] for source in sources if source in self._channels}
        aligned = {one.axis + len(shape) - len(shape_of(source)) for source, one in followed.items()}
        if len(aligned) != 1 or not node.meta["val"].is_floating_point():
            return None
        (axis,) = aligned
        units = next(iter(followed.values())).units
        if any(len(one.units) != shape[axis] for one in followed.values()):
            return None
        constants = dict[Node, Tensor]()
        for source in sources:
            own = axis - len(shape) + len(shape_of(source))
            wide = own >= 0 and shape_of(source)[own] == shape[axis]
            if source in followed:
                constants[source] = followed[source].constant
            elif (parameter := self._trace.name(source)) and wide:
                constants[source] = uniform(self._values(parameter), own)
            elif wide and shape[axis] > 1:
                return None
            else:
                constants[source] = torch.full((shape[axis],), torch.nan, dtype=torch.float64)
        for one in followed.values():
            self.units.join(units, one.units)
        for source in sources:
            own = axis - len(shape) + len(shape_of(source))
            if (parameter := self._trace.name(source)) and own >= 0 and shape_of(source)[own] == shape[axis]:
                self._label(parameter, own, units)
        constant = evaluate(target, node, constants)
        if name == "mul":
            zero = torch.stack([one == 0 for one in constants.values()]).any(0)
            constant = torch.where(zero, 0.0, constant)
        return Channels(axis, units, constant)


def _as_list(value: Any) -> Sequence[int]:
    return value if isinstance(value, list | tuple) else [value]


def _shares_memory(node: Node) -> bool:
    """Return True if an operation's output may be a view of its input."""
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    return schema is not None and any(one.alias_info is not None for one in schema.returns)
