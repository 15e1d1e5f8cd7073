"""Evaluates nodes whose inputs are all known: shape arithmetic and constants that exporters leave in a graph."""

from collections.abc import Callable
from typing import Any

import numpy as np

from acdc_runtime.graph import Node

_CASTS = {
    1: np.float32, 10: np.float32, 11: np.float32, 6: np.int64, 7: np.int64, 2: np.int64, 3: np.int64, 9: np.bool_,
}  # fmt: skip


def _axes(node: Node, values: list[Any], index: int) -> list[int] | None:
    given = values[index] if len(values) > index and values[index] is not None else node.integers("axes")
    return None if given is None else [int(a) for a in np.ravel(given)]


def _size(node: Node, sizes: Any) -> list[int]:
    """Return sizes as integers, refused when they ask for more than a shape computation needs."""
    found = [int(s) for s in np.ravel(sizes)]
    total = 1
    for s in found:
        if s < 0:
            raise node.refuse(f"a size of {s}")
        total *= s
    if total > LIMIT:
        raise node.refuse(f"a constant of {total} values; at most {LIMIT} are computed at load")
    return found


LIMIT = 1 << 24


def _constant(node: Node, values: list[Any]) -> np.ndarray:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in node.attributes:
            value = np.asarray(node.attributes[name])
            return value.astype(np.float32 if value.dtype.kind == "f" else value.dtype)
    raise node.refuse("a constant without a numeric value")


def _slice(node: Node, values: list[Any]) -> np.ndarray:
    data = values[0]
    return data[slices(node, values[1:], data.shape)]


def slices(node: Node, values: list[Any], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return a Slice node's ranges as Python slices, one per dimension."""
    if values and values[0] is not None:
        starts, ends = np.ravel(values[0]), np.ravel(values[1])
        axes = np.ravel(values[2]) if len(values) > 2 and values[2] is not None else np.arange(len(starts))
        steps = np.ravel(values[3]) if len(values) > 3 and values[3] is not None else np.ones(len(starts), np.int64)
    else:
        starts, ends = np.array(node.integers("starts", [])), np.array(node.integers("ends", []))
        axes = np.array(node.integers("axes", list(range(len(starts)))))
        steps = np.ones(len(starts), np.int64)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.refuse("starts, ends, axes and steps are not as many")
    ranges = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis, start, end, step = int(axis), int(start), int(end), int(step)
        if not -len(shape) <= axis < len(shape) or step == 0:
            raise node.refuse(f"axis {axis} or step {step} is not possible")
        ranges[axis] = slice(start, None if step < 0 and end < -shape[axis] else end, step)
    return tuple(ranges)


def _squeeze(node: Node, values: list[Any]) -> np.ndarray:
    axes = _axes(node, values, 1)
    return np.squeeze(values[0], None if axes is None else tuple(axes))


def _unsqueeze(node: Node, values: list[Any]) -> np.ndarray:
    return np.expand_dims(values[0], tuple(_axes(node, values, 1) or []))


def _divide(node: Node, values: list[Any]) -> np.ndarray:
    a, b = values
    if a.dtype.kind in "iu":
        if (b == 0).any():
            raise node.refuse("a division by zero")
        return (np.sign(a) * np.sign(b)) * (np.abs(a) // np.abs(b))
    return a / b


def _reshape(node: Node, values: list[Any]) -> np.ndarray:
    return values[0].reshape(reshaped(node, values[0].shape, values[1]))


def reshaped(node: Node, shape: tuple[int, ...], wanted: Any) -> list[int]:
    """Return the sizes a Reshape gives: 0 keeps a size, one -1 takes what is left."""
    sizes = [int(s) for s in np.ravel(wanted)]
    if node.integer("allowzero", 0) == 0:
        for i, s in enumerate(sizes):
            if s == 0:
                if i >= len(shape):
                    raise node.refuse(f"size {i} is copied from a dimension that is not there")
                sizes[i] = shape[i]
    total = int(np.prod([int(s) for s in shape], dtype=object)) if shape else 1
    rest = 1
    for s in sizes:
        if s != -1:
            if s < 0:
                raise node.refuse(f"a size of {s}")
            rest *= s
    if sizes.count(-1) > 1:
        raise node.refuse("two sizes of -1")
    if -1 in sizes:
        if rest == 0 or total % rest:
            raise node.refuse(f"{list(shape)} does not reshape to {sizes}")
        sizes[sizes.index(-1)] = total // rest
        rest = total
    if rest != total:
        raise node.refuse(f"{list(shape)} does not reshape to {sizes}")
    return sizes


def _range(node: Node, values: list[Any]) -> np.ndarray:
    start, limit, step = (v.reshape(()).item() for v in values)
    if step == 0:
        raise node.refuse("a step of zero")
    _size(node, [max(0, int((limit - start) / step) + 1)])
    return np.arange(start, limit, step, dtype=values[0].dtype)


def _gather(node: Node, values: list[Any]) -> np.ndarray:
    return np.take(values[0], values[1], axis=node.integer("axis", 0))


def _concat(node: Node, values: list[Any]) -> np.ndarray:
    _size(node, [sum(v.size for v in values)])
    return np.concatenate(values, axis=node.integer("axis", 0))


def _cast(node: Node, values: list[Any]) -> np.ndarray:
    to = node.integer("to", 1)
    if to not in _CASTS:
        raise node.refuse(f"a cast to element type {to} is not supported")
    return values[0].astype(_CASTS[to])


def _filled(node: Node, values: list[Any]) -> np.ndarray:
    value = np.ravel(node.attributes.get("value", np.zeros(1, np.float32)))
    return np.full(_size(node, values[0]), value[0], dtype=value.dtype)


def _expand(node: Node, values: list[Any]) -> np.ndarray:
    shape = np.broadcast_shapes(values[0].shape, tuple(_size(node, values[1])))
    return np.broadcast_to(values[0], _size(node, shape)).copy()


def _transpose(node: Node, values: list[Any]) -> np.ndarray:
    return np.transpose(values[0], node.integers("perm"))  # a view: a weight is not held twice


def _tile(node: Node, values: list[Any]) -> np.ndarray:
    _size(node, np.array(values[0].shape) * np.array(values[1]))
    return np.tile(values[0], values[1])


_EVALUATE: dict[str, Callable[[Node, list[Any]], np.ndarray]] = {
    "Constant": _constant, "Slice": _slice, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Div": _divide,
    "Reshape": _reshape, "Range": _range, "Gather": _gather, "Concat": _concat, "Cast": _cast, "Expand": _expand,
    "ConstantOfShape": _filled, "Transpose": _transpose, "Tile": _tile,
    "Identity": lambda n, v: v[0], "Add": lambda n, v: v[0] + v[1], "Sub": lambda n, v: v[0] - v[1],
    "Mul": lambda n, v: v[0] * v[1], "Pow": lambda n, v: np.power(v[0], v[1]).astype(v[0].dtype),
    "Neg": lambda n, v: -v[0], "Sqrt": lambda n, v: np.sqrt(v[0]), "Floor": lambda n, v: np.floor(v[0]),
    "Ceil": lambda n, v: np.ceil(v[0]), "Equal": lambda n, v: v[0] == v[1], "Less": lambda n, v: v[0] < v[1],
    "Greater": lambda n, v: v[0] > v[1], "LessOrEqual": lambda n, v: v[0] <= v[1],
    "GreaterOrEqual": lambda n, v: v[0] >= v[1], "Not": lambda n, v: ~v[0], "And": lambda n, v: v[0] & v[1],
    "Or": lambda n, v: v[0] | v[1], "Where": lambda n, v: np.where(v[0], v[1], v[2]),
    "Min": lambda n, v: np.minimum.reduce(v), "Max": lambda n, v: np.maximum.reduce(v),
    "Trilu": lambda n, v: (np.triu if n.integer("upper", 1) else np.tril)(
        v[0], int(v[1].reshape(())) if len(v) > 1 and v[1] is not None else 0),
    "Reciprocal": lambda n, v: 1 / v[0], "Cos": lambda n, v: np.cos(v[0]), "Sin": lambda n, v: np.sin(v[0]),
    "Flatten": lambda n, v: v[0].reshape(int(np.prod(v[0].shape[: n.integer("axis", 1)])), -1),
}  # fmt: skip
FOLDABLE = frozenset(_EVALUATE) | {"Shape", "Size"}


def evaluate(node: Node, values: list[Any]) -> np.ndarray:
    """Return the value of a node whose inputs are arrays (None where one is left out)."""
    if len(values) < 1 and node.op != "Constant":
        raise node.refuse("it has no inputs")
    try:
        with np.errstate(all="ignore"):
            sizes = [v.shape for v in values if v is not None]
            if sizes and node.op in ("Add", "Sub", "Mul", "Div", "Where", "Equal", "Pow", "Min", "Max"):
                _size(node, np.broadcast_shapes(*sizes))
            result = np.asarray(_EVALUATE[node.op](node, values))
    except (ValueError, IndexError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        if hasattr(error, "where"):
            raise
        raise node.refuse(f"its constant inputs do not fit: {error}") from None
    if result.dtype.kind == "f":
        result = result.astype(np.float32, copy=False)
    elif result.dtype.kind in "iu":
        result = result.astype(np.int64, copy=False)
    return result
