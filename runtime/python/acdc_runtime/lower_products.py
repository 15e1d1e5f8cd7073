"""Lowers matrix products: Gemm and MatMul."""

import math

import numpy as np

from acdc_runtime.fusion import follow
from acdc_runtime.graph import Node
from acdc_runtime.lower_tensors import add_binary, transposed
from acdc_runtime.plan import Planner, Tensor


def gemm(p: Planner, node: Node) -> None:
    a, b = p.numbers(node.input(0)), p.numbers(node.input(1))
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise node.refuse("both factors must be matrices")
    if node.integer("transA", 0):
        a = transposed(p, a, [1, 0])
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    summand = p.numbers(node.input(2)) if node.input(2) else None
    columns = b.shape[0] if node.integer("transB", 0) else b.shape[1]
    depth = b.shape[1] if node.integer("transB", 0) else b.shape[0]
    if a.shape[1] != depth:
        raise node.refuse(f"{list(a.shape)} times {list(b.shape)} does not fit")
    shape = (a.shape[0], columns)
    if b.array is None or depth < 1 or columns < 1:
        if alpha != 1 or (summand is not None and beta != 1):
            raise node.refuse("alpha and beta other than 1 are only supported with constant weights")
        if node.integer("transB", 0):
            b = transposed(p, b, [1, 0])
        result = _matmul(p, node, a, b)
        if summand is not None:
            result = add_binary(p, node, 0, result, summand)
        if result.shape != shape:
            raise node.refuse("its summand is larger than its product")
        p.define(node.outputs[0], result)
        return
    matrix = b.array if node.integer("transB", 0) else b.array.T
    matrix = np.ascontiguousarray(matrix if alpha == 1 else matrix * np.float32(alpha), dtype=np.float32)
    bias = None
    if (
        summand is not None
        and summand.array is not None
        and summand.size in (1, columns)
        and (summand.size == 1 or summand.shape[-1] == columns)
    ):
        bias = np.broadcast_to(summand.array.reshape(-1), (columns,)) * np.float32(beta)
        summand = None
    if summand is not None:
        if beta != 1:
            raise node.refuse("beta other than 1 is only supported with a constant row as summand")
        result = Tensor(shape)
        _linear(p, node, matrix, bias, a, result, "")
        result = add_binary(p, node, 0, result, summand)
        if result.shape != shape:
            raise node.refuse("its summand is larger than its product")
        p.define(node.outputs[0], result)
        return
    _linear(p, node, matrix, bias, a, Tensor(shape), node.outputs[0])


def _linear(
    p: Planner, node: Node, matrix: np.ndarray, bias: np.ndarray | None, x: Tensor, result: Tensor, name: str
) -> None:
    """Multiply by constant weights (rows x depth), with what follows `name` fused."""
    if not np.isfinite(matrix).all():
        raise node.refuse(f"its weights, {node.input(1)!r}, are not finite")
    tokens = math.prod(result.shape[:-1])
    residual = None
    clamp, activation = (-math.inf, math.inf), (0, 0.0, 0.0)
    if name:
        user = p.only_user(name)
        if bias is None and user and user.op == "Add" and len(user.inputs) == 2:
            other = user.inputs[1] if user.inputs[0] == name else user.inputs[0]
            found = p.graph.constants.get(other)
            if (
                found is not None
                and found.dtype.kind == "f"
                and found.size == matrix.shape[0] == found.shape[-1]
                and found.ndim <= len(result.shape)
            ):
                bias, name = found.reshape(-1), user.outputs[0]
                p.done.add(id(user))
        extra = follow(p, name, result.shape, residual=True)
        name, residual, clamp, activation = extra.output, extra.residual, extra.clamp, extra.activation
    if bias is not None:
        bias = np.ascontiguousarray(bias, dtype=np.float32)
    source = p.plain(x)
    other_buffer = p.plain(residual) if residual else 0
    result.plain = p.new(result.size)
    weights = p.choose(node.name, matrix, bias, tokens)
    p.add("linear", weights, tokens, source, result.plain, other_buffer, residual is not None, *clamp, *activation)
    if name:
        p.define(name, result)


def matmul(p: Planner, node: Node) -> None:
    a, b = p.numbers(node.input(0)), p.numbers(node.input(1))
    if b.array is not None and len(b.shape) == 2 and len(a.shape) >= 2 and b.size:
        if a.shape[-1] != b.shape[0]:
            raise node.refuse(f"{list(a.shape)} times {list(b.shape)} does not fit")
        matrix = np.ascontiguousarray(b.array.T)
        _linear(p, node, matrix, None, a, Tensor((*a.shape[:-1], b.shape[1])), node.outputs[0])
        return
    p.define(node.outputs[0], _matmul(p, node, a, b))


def _matmul(p: Planner, node: Node, a: Tensor, b: Tensor) -> Tensor:
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise node.refuse("factors of one dimension are not supported")
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if b.shape[-2] != k or min(m, k, n) < 1:
        raise node.refuse(f"{list(a.shape)} times {list(b.shape)} does not fit")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    if math.prod(batch) > 1 << 22:
        raise node.refuse(f"{math.prod(batch)} products in one node")

    def starts(shape: tuple[int, ...], each: int) -> list[int]:
        own = np.arange(math.prod(shape), dtype=np.int64).reshape(shape) * each
        return np.broadcast_to(own, batch).ravel().tolist()

    result = Tensor((*batch, m, n), plain=p.new(math.prod(batch) * m * n))
    p.add(
        "matmul",
        m,
        k,
        n,
        p.plain(a),
        p.plain(b),
        result.plain,
        starts(a.shape[:-2], m * k),
        starts(b.shape[:-2], k * n),
    )
    return result
