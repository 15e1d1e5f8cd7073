"""Finds what can be done while a convolution or product is still in registers: residual, clamp, activation."""

import math
from dataclasses import dataclass

from acdc_runtime.graph import Node
from acdc_runtime.plan import Planner, Tensor

# Activation numbers of src/kernels.h.
CLAMP = 1
_PLAIN = {
    "Sigmoid": 2, "Tanh": 3, "Silu": 4, "Gelu": 5, "Erf": 7, "Exp": 8, "Sqrt": 9, "HardSigmoid": 10, "HardSwish": 11,
    "LeakyRelu": 12, "Neg": 13, "Abs": 14, "Reciprocal": 15, "Elu": 16, "Log": 17, "Relu": CLAMP, "Clip": CLAMP,
}  # fmt: skip
ACTIVATIONS = frozenset(_PLAIN)


def activation_of(p: Planner, node: Node) -> tuple[int, float, float]:
    """Return an activation's number and its two parameters."""
    kind = _PLAIN[node.op]
    if node.op == "Relu":
        return CLAMP, 0.0, math.inf
    if node.op == "Clip":
        low, high = node.number("min", -math.inf), node.number("max", math.inf)
        if node.input(1):
            low = p.scalar(node.input(1))
        if node.input(2):
            high = p.scalar(node.input(2))
        return CLAMP, low, high
    if node.op == "Gelu":
        style = node.text("approximate", "none")
        if style not in ("none", "tanh"):
            raise node.refuse(f"approximate {style!r} is not known")
        return (6 if style == "tanh" else 5), 0.0, 0.0
    if node.op == "HardSigmoid":
        return kind, node.number("alpha", 0.2), node.number("beta", 0.5)
    if node.op == "LeakyRelu":
        return kind, node.number("alpha", 0.01), 0.0
    if node.op == "Elu":
        return kind, node.number("alpha", 1.0), 0.0
    return kind, 0.0, 0.0


@dataclass
class Extra:
    """What follows a result: the name it ends under, a residual, a clamp, another activation."""

    output: str
    residual: Tensor | None = None
    clamp: tuple[float, float] = (-math.inf, math.inf)
    activation: tuple[int, float, float] = (0, 0.0, 0.0)


def follow(p: Planner, name: str, shape: tuple[int, ...], residual: bool) -> Extra:
    """Take over the nodes after `name` that can be fused; `shape` is what a residual must have."""
    extra = Extra(name)
    user = p.only_user(name)
    if user and user.op == "Add" and residual and len(user.inputs) == 2:
        other = user.inputs[1] if user.inputs[0] == name else user.inputs[0]
        found = p.values.get(other)
        if other != name and found is not None and found.array is None and found.shape == shape and not found.integer:
            extra.residual, extra.output = found, user.outputs[0]
            p.done.add(id(user))
            user = p.only_user(extra.output)
    if user and user.op in ACTIVATIONS:
        constants = all(
            not i or i in p.graph.constants or (i in p.values and p.values[i].array is not None)
            for i in user.inputs[1:]
        )
        if user.inputs[0] == extra.output and constants:
            kind, low, high = activation_of(p, user)
            if kind == CLAMP:
                extra.clamp = (low, high)
            else:
                extra.activation = (kind, low, high)
            extra.output = user.outputs[0]
            p.done.add(id(user))
    return extra
