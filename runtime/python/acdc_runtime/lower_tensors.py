"""Lowers operators on plain tensors: arithmetic, activations, shapes, norms, reductions."""

import math

import numpy as np

from acdc_runtime.folding import reshaped, slices
from acdc_runtime.fusion import activation_of
from acdc_runtime.graph import Node
from acdc_runtime.lower_maps import mean_of_map
from acdc_runtime.plan import Planner, Tensor, tiled_floats

_ARITHMETIC = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5, "Pow": 6}


def steps_of(shape: tuple[int, ...]) -> list[int]:
    """Return the step of each dimension of a contiguous tensor."""
    steps, step = [], 1
    for s in reversed(shape):
        steps.append(step)
        step *= s
    return steps[::-1]


def _axis(node: Node, axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise node.refuse(f"axis {axis} of a tensor of {rank} dimensions")
    return axis % rank


def add_binary(p: Planner, node: Node, kind: int, a: Tensor, b: Tensor) -> Tensor:
    """Combine two tensors, repeated along dimensions of size 1 where they differ."""
    if (
        a.shape == b.shape
        and len(a.shape) == 4
        and (a.tiled or a.array is not None)
        and (b.tiled or b.array is not None)
        and (a.tiled or b.tiled)
    ):
        n = tiled_floats(a.shape)
        result = Tensor(a.shape, tiled=p.new(n))
        p.add("binary", kind, [n], [1], [1], p.tiled(a), p.tiled(b), result.tiled)
        return result
    shape = tuple(int(s) for s in np.broadcast_shapes(a.shape, b.shape))
    result = Tensor(shape, plain=p.new(math.prod(shape)))

    def steps(t: Tensor) -> list[int]:
        own = [1] * (len(shape) - len(t.shape)) + list(t.shape)
        return [0 if s == 1 else step for s, step in zip(own, steps_of(tuple(own)), strict=True)]

    dims, a_steps, b_steps = _merged(list(shape), steps(a), steps(b))
    p.add("binary", kind, dims, a_steps, b_steps, p.plain(a), p.plain(b), result.plain)
    return result


def _merged(dims: list[int], a: list[int], b: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Join neighbouring dimensions that both tensors walk as one."""
    out: list[tuple[int, int, int]] = []
    for d, x, y in zip(dims, a, b, strict=True):
        if d == 1 and 0 not in dims:
            continue
        if out and out[-1][1] == x * d and out[-1][2] == y * d:
            out[-1] = (out[-1][0] * d, x, y)
        else:
            out.append((d, x, y))
    if not out:
        return [math.prod(dims)], [0], [0]
    return [o[0] for o in out], [o[1] for o in out], [o[2] for o in out]


def arithmetic(p: Planner, node: Node) -> None:
    if len(node.inputs) < 2 and node.op not in ("Max", "Min"):
        raise node.refuse("it needs two inputs")
    result = p.numbers(node.input(0))
    for name in node.inputs[1:]:
        result = add_binary(p, node, _ARITHMETIC[node.op], result, p.numbers(name))
    p.define(node.outputs[0], result)


def activation(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    kind, low, high = activation_of(p, node)
    if x.tiled is not None:
        result = Tensor(x.shape, tiled=p.new(tiled_floats(x.shape)))
        p.add("unary", kind, tiled_floats(x.shape), x.tiled, result.tiled, low, high)
    else:
        result = Tensor(x.shape, plain=p.new(x.size))
        p.add("unary", kind, x.size, p.plain(x), result.plain, low, high)
    p.define(node.outputs[0], result)


def prelu(p: Planner, node: Node) -> None:
    x, slope = p.numbers(node.input(0)), p.numbers(node.input(1))
    high = Tensor(x.shape, plain=p.new(x.size))
    p.add("unary", 1, x.size, p.plain(x), high.plain, 0.0, math.inf)
    low = Tensor(x.shape, plain=p.new(x.size))
    p.add("unary", 1, x.size, p.plain(x), low.plain, -math.inf, 0.0)
    p.define(node.outputs[0], add_binary(p, node, 0, high, add_binary(p, node, 2, low, slope)))


def where(p: Planner, node: Node) -> None:
    condition = p.constant(node.input(0))
    yes, no = p.numbers(node.input(1)), p.numbers(node.input(2))
    if condition is None or (yes.array is None) == (no.array is None):
        raise node.refuse("only a constant choice between a computed and a constant tensor is supported")
    live, fixed, keep = (yes, no, condition) if yes.array is None else (no, yes, ~condition.astype(bool))
    assert fixed.array is not None
    keep = keep.astype(bool)
    if keep.size > 1 << 24 or fixed.size > 1 << 24:
        raise node.refuse("its constants are larger than 2^24")
    shape = np.broadcast_shapes(keep.shape, fixed.shape)
    fill = np.where(keep, np.float32(0), np.broadcast_to(fixed.array, shape)).astype(np.float32)
    kept = add_binary(p, node, 2, live, Tensor(keep.shape, array=keep.astype(np.float32)))
    p.define(node.outputs[0], add_binary(p, node, 0, kept, Tensor(fill.shape, array=fill)))


def _view(p: Planner, name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    p.define(name, Tensor(shape, x.integer, plain=p.plain(x)))


def reshape(p: Planner, node: Node) -> None:
    x = p.tensor(node.input(0))
    wanted = p.constant(node.input(1)) if node.input(1) else node.integers("shape")
    if wanted is None:
        raise node.refuse("its sizes are not given")
    _view(p, node.outputs[0], x, tuple(reshaped(node, x.shape, wanted)))


def flatten(p: Planner, node: Node) -> None:
    x = p.tensor(node.input(0))
    axis = node.integer("axis", 1)
    if not -len(x.shape) <= axis <= len(x.shape):
        raise node.refuse(f"axis {axis} of a tensor of {len(x.shape)} dimensions")
    axis = axis + len(x.shape) if axis < 0 else axis
    _view(p, node.outputs[0], x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def squeeze(p: Planner, node: Node) -> None:
    x = p.tensor(node.input(0))
    axes = p.constant(node.input(1)) if node.input(1) else node.integers("axes")
    if axes is None:
        drop = {i for i, s in enumerate(x.shape) if s == 1}
    else:
        drop = {_axis(node, int(a), len(x.shape)) for a in np.ravel(axes)}
    if any(x.shape[a] != 1 for a in drop):
        raise node.refuse(f"axes {sorted(drop)} of {list(x.shape)} are not all 1")
    _view(p, node.outputs[0], x, tuple(s for i, s in enumerate(x.shape) if i not in drop))


def unsqueeze(p: Planner, node: Node) -> None:
    x = p.tensor(node.input(0))
    axes = p.constant(node.input(1)) if node.input(1) else node.integers("axes")
    if axes is None:
        raise node.refuse("its axes are not given")
    rank = len(x.shape) + len(np.ravel(axes))
    added = {_axis(node, int(a), rank) for a in np.ravel(axes)}
    if len(added) != rank - len(x.shape) or rank > 8:
        raise node.refuse("an axis twice, or more than 8 dimensions")
    sizes = iter(x.shape)
    _view(p, node.outputs[0], x, tuple(1 if i in added else next(sizes) for i in range(rank)))


def _copied(p: Planner, x: Tensor, dims: tuple[int, ...], steps: list[int], at: int = 0) -> Tensor:
    if x.integer:
        raise p.node.refuse("integer tensors are only reshaped, cast and used as indices")
    result = Tensor(dims, plain=p.new(math.prod(dims)))
    sizes, from_steps, to_steps = _merged(list(dims), steps, steps_of(dims))
    p.add("copy", sizes, from_steps, to_steps, at, 0, p.plain(x), result.plain)
    return result


def transposed(p: Planner, x: Tensor, order: list[int]) -> Tensor:
    steps = steps_of(x.shape)
    return _copied(p, x, tuple(x.shape[i] for i in order), [steps[i] for i in order])


def transpose(p: Planner, node: Node) -> None:
    x = p.tensor(node.input(0))
    order = node.integers("perm") or list(range(len(x.shape)))[::-1]
    if sorted(order) != list(range(len(x.shape))):
        raise node.refuse(f"perm {order} does not fit {list(x.shape)}")
    p.define(node.outputs[0], transposed(p, x, order))


def expand(p: Planner, node: Node) -> None:
    x, wanted = p.numbers(node.input(0)), p.needed(node.input(1))
    shape = tuple(int(s) for s in np.broadcast_shapes(x.shape, tuple(int(s) for s in np.ravel(wanted))))
    own = (*[1] * (len(shape) - len(x.shape)), *x.shape)
    steps = [0 if s == 1 else step for s, step in zip(own, steps_of(own), strict=True)]
    p.define(node.outputs[0], _copied(p, x, shape, steps))


def slice_(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    ranges = slices(node, [p.constant(i) if i else None for i in node.inputs[1:]], x.shape)
    steps, dims, at, own = [], [], 0, steps_of(x.shape)
    for r, size, step in zip(ranges, x.shape, own, strict=True):
        start, stop, by = r.indices(size)
        if by < 0:
            raise node.refuse("negative steps are not supported")
        dims.append(max(0, -(-(stop - start) // by)))
        steps.append(step * by)
        at += start * step
    if 0 in dims:
        at = 0
    p.define(node.outputs[0], _copied(p, x, tuple(dims), steps, at))


def split(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    axis = _axis(node, node.integer("axis", 0), len(x.shape))
    given = p.constant(node.input(1)) if node.input(1) else node.integers("split")
    count = len(node.outputs)
    each = -(-x.shape[axis] // count)
    sizes = (
        [int(s) for s in np.ravel(given)]
        if given is not None
        else [min(each, x.shape[axis] - i * each) for i in range(count)]
    )
    if len(sizes) != count or sum(sizes) != x.shape[axis] or min(sizes) < 0:
        raise node.refuse(f"parts of {sizes} do not fit {x.shape[axis]}")
    steps, at = steps_of(x.shape), 0
    for name, size in zip(node.outputs, sizes, strict=True):
        dims = (*x.shape[:axis], size, *x.shape[axis + 1 :])
        if name:
            p.define(name, _copied(p, x, dims, steps, at * steps[axis] if size else 0))
        at += size


def concat(p: Planner, node: Node) -> None:
    parts = [p.numbers(i) for i in node.inputs]
    if not parts:
        raise node.refuse("it has no inputs")
    rank = len(parts[0].shape)
    axis = _axis(node, node.integer("axis", 0), rank)
    for t in parts:
        if len(t.shape) != rank or any(i != axis and s != parts[0].shape[i] for i, s in enumerate(t.shape)):
            raise node.refuse(f"sizes {[list(t.shape) for t in parts]} do not fit along axis {axis}")
    shape = tuple(sum(t.shape[axis] for t in parts) if i == axis else s for i, s in enumerate(parts[0].shape))
    if rank == 4 and axis == 1 and all(t.tiled for t in parts):
        result = Tensor(shape, tiled=p.new(tiled_floats(shape)))
        n, _, h, w = shape
        p.add("tile_concat", n * h * w, [t.shape[1] for t in parts], [t.tiled for t in parts], result.tiled)
    else:
        result = Tensor(shape, plain=p.new(math.prod(shape)))
        steps, at = steps_of(shape), 0
        for t in parts:
            if t.size:
                dims, own, to = _merged(list(t.shape), steps_of(t.shape), steps)
                p.add("copy", dims, own, to, 0, at * steps[axis], p.plain(t), result.plain)
            at += t.shape[axis]
    p.define(node.outputs[0], result)


def cast(p: Planner, node: Node) -> None:
    x = p.tensor(node.input(0))
    to = node.integer("to", 1)
    if to in (1, 10, 11) and x.integer:
        result = Tensor(x.shape, plain=p.new(x.size))
        p.add("cast", x.size, p.plain(x), result.plain)
        p.define(node.outputs[0], result)
    elif (to in (1, 10, 11)) or (to in (6, 7) and x.integer):
        p.define(node.outputs[0], x)
    else:
        raise node.refuse(f"a cast of computed numbers to element type {to} is not supported")


def gather(p: Planner, node: Node) -> None:
    data, indices = p.numbers(node.input(0)), p.tensor(node.input(1))
    if not indices.integer:
        raise node.refuse("its indices are not integers")
    axis = _axis(node, node.integer("axis", 0), len(data.shape))
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    result = Tensor(shape, plain=p.new(math.prod(shape)))
    p.add("gather", math.prod(data.shape[:axis]), data.shape[axis], math.prod(data.shape[axis + 1 :]), indices.size,
          p.plain(data), p.plain(indices), result.plain)  # fmt: skip
    p.define(node.outputs[0], result)


def softmax(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    rank = len(x.shape)
    axis = _axis(node, node.integer("axis", -1 if p.graph.opset >= 13 else 1), rank)
    n = x.shape[axis] if p.graph.opset >= 13 else math.prod(x.shape[axis:])
    if n < 1:
        raise node.refuse("nothing to normalise")
    moved = p.graph.opset >= 13 and axis != rank - 1
    order = [i for i in range(rank) if i != axis] + [axis]
    source = transposed(p, x, order) if moved else x
    result = Tensor(source.shape, plain=p.new(x.size))
    p.add("softmax", x.size // n, n, p.plain(source), result.plain)
    p.define(node.outputs[0], transposed(p, result, [order.index(i) for i in range(rank)]) if moved else result)


def norm(p: Planner, node: Node) -> None:
    x, scale = p.numbers(node.input(0)), p.numbers(node.input(1))
    bias = p.numbers(node.input(2)) if node.op == "LayerNormalization" and node.input(2) else None
    axis = _axis(node, node.integer("axis", -1), len(x.shape))
    n = math.prod(x.shape[axis:])
    if any(o and o in p.users for o in node.outputs[1:]):
        raise node.refuse("its mean and deviation are not computed")
    if n < 1 or scale.size != n or (bias is not None and bias.size != n):
        raise node.refuse(f"a scale of {scale.size} values for {n}")
    result = Tensor(x.shape, plain=p.new(x.size))
    p.add("normalise", x.size // n, n, p.plain(x), p.plain(scale), True, p.plain(bias) if bias else 0, bias is not None,
          result.plain, node.number("epsilon", 1e-5), node.op == "LayerNormalization")  # fmt: skip
    p.define(node.outputs[0], result)


def reduce(p: Planner, node: Node) -> None:
    x = p.numbers(node.input(0))
    rank = len(x.shape)
    given = p.constant(node.input(1)) if node.input(1) else node.integers("axes")
    if given is not None and np.size(given) == 0:
        given = None
        if node.integer("noop_with_empty_axes", 0):
            p.define(node.outputs[0], x)
            return
    axes = sorted({_axis(node, int(a), rank) for a in np.ravel(given)}) if given is not None else list(range(rank))
    if any(x.shape[a] < 1 for a in axes):
        raise node.refuse("nothing to reduce")
    kept = tuple(1 if i in axes else s for i, s in enumerate(x.shape))
    shape = kept if node.integer("keepdims", 1) else tuple(s for i, s in enumerate(x.shape) if i not in axes)
    kind = {"ReduceMean": 0, "ReduceSum": 1, "ReduceMax": 2}[node.op]
    if kind == 0 and rank == 4 and axes == [2, 3] and x.tiled is not None:
        mean_of_map(p, node.outputs[0], x, shape)
        return
    if axes != list(range(axes[0], axes[-1] + 1) if axes else []):
        order = [i for i in range(rank) if i not in axes] + axes
        x = transposed(p, x, order)
        axes = list(range(rank - len(axes), rank))
    first, last = (axes[0], axes[-1] + 1) if axes else (rank, rank)
    result = Tensor(shape, plain=p.new(math.prod(shape)))
    p.add(
        "reduce",
        math.prod(x.shape[:first]),
        math.prod(x.shape[first:last]),
        math.prod(x.shape[last:]),
        kind,
        p.plain(x),
        result.plain,
    )
    p.define(node.outputs[0], result)
