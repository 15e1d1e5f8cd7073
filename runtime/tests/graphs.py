"""Small random ONNX graphs: every choice in them is an integer, drawn from a seed or by hypothesis."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Draw = Callable[[int, int], int]  # a number from the first to below the second


def seeded(seed: int) -> Draw:
    """Return draws that depend on the seed alone."""
    random = np.random.default_rng(seed)
    return lambda low, high: int(random.integers(low, high))


class Builder:
    """Collects nodes; `shapes` knows the sizes of every tensor made so far."""

    def __init__(self, integer: Draw):
        self.integer = integer
        self.random = np.random.default_rng(integer(0, 1 << 32))  # what is in arrays
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}

    def pick(self, *options):
        return options[self.integer(0, len(options))]

    def integers(self, low: int, high: int, n: int) -> list[int]:
        return [self.integer(low, high) for _ in range(n)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 100) < percent

    def input(self, shape: tuple[int, ...]) -> str:
        name = f"input{len(self.inputs)}"
        self.inputs[name] = self.random.standard_normal(shape).astype(np.float32)
        self.shapes[name] = shape
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, rows: int, *rest: int) -> str:
        """Draw a weight that is dense, sparse, or sparse in tiles of 4 x 1."""
        w = self.random.standard_normal((rows, *rest), np.float32) / np.float32(np.sqrt(np.prod(rest)))
        kind = self.pick("dense", "sparse", "tiles", "zero rows")
        if kind == "sparse":
            w *= self.random.random(w.shape) < self.pick(0.02, 0.1, 0.4)
        elif kind == "tiles" and rows % 4 == 0:
            keep = self.random.random((rows // 4, 1, int(np.prod(rest)))) < 0.2
            w *= np.repeat(keep, 4, axis=1).reshape(w.shape)
        elif kind == "zero rows":
            w[self.random.random(rows) < 0.5] = 0
        return self.constant(w)

    def node(self, op: str, inputs: list[str], shape: tuple[int, ...], **attributes) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{op}{len(self.nodes)}", **attributes))
        self.shapes[name] = shape
        return name

    def model(self, outputs: list[str], dynamic: bool = False, opset: int = 20) -> onnx.ModelProto:
        def info(name: str, first):
            shape = self.shapes[name]
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, [first, *shape[1:]] if first else shape)

        inputs = [info(n, "batch" if dynamic else None) for n in self.inputs]
        results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
        graph = helper.make_graph(self.nodes, "random", inputs, results, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def _conv(b: Builder, x: str) -> str | None:
    n, c, h, w = b.shapes[x]
    groups = b.pick(1, 1, 1, c, 2 if c % 2 == 0 else 1)
    rows = groups * b.integer(1, 6) if groups < c else c * b.pick(1, 1, 2)
    if groups == 1:
        rows = b.pick(1, 3, 4, 8, 16, 20)
    k, s, d = (b.integers(1, m, 2) for m in (4, 4, 3))
    if b.chance(40):
        k, s, d = [1, 1], [b.pick(1, 2)] * 2, [1, 1]
    pads = b.integers(0, 3, 4)
    out = [(v + pads[i] + pads[i + 2] - d[i] * (k[i] - 1) - 1) // s[i] + 1 for i, v in enumerate((h, w))]
    if min(out) < 1:
        return None
    inputs = [x, b.weight(rows, c // groups, *k)]
    if b.chance(60):
        inputs.append(b.constant(b.random.standard_normal(rows).astype(np.float32)))
    return b.node("Conv", inputs, (n, rows, *out), kernel_shape=k, strides=s, dilations=d, pads=pads, group=groups)


def _batch_norm(b: Builder, x: str) -> str:
    c = b.shapes[x][1]
    terms = [b.constant(b.random.uniform(0.5, 1.5, c).astype(np.float32)) for _ in range(4)]
    return b.node("BatchNormalization", [x, *terms], b.shapes[x], epsilon=1e-5)


def _pool(b: Builder, x: str) -> str | None:
    n, c, h, w = b.shapes[x]
    k, s = b.integers(1, 4, 2), b.integers(1, 4, 2)
    pads = [b.integer(0, k[i % 2]) for i in range(4)]
    out = [(v + pads[i] + pads[i + 2] - k[i]) // s[i] + 1 for i, v in enumerate((h, w))]
    if min(out) < 1:
        return None
    if b.chance(50):
        return b.node("MaxPool", [x], (n, c, *out), kernel_shape=k, strides=s, pads=pads)
    counted = b.integer(0, 2)
    return b.node("AveragePool", [x], (n, c, *out), kernel_shape=k, strides=s, pads=pads, count_include_pad=counted)


def _activation(b: Builder, x: str) -> str:
    op = b.pick("Relu", "Clip", "Sigmoid", "Tanh", "Erf", "Gelu", "HardSwish", "LeakyRelu", "Silu")
    shape = b.shapes[x]
    if op == "Clip":
        return b.node(op, [x, b.constant(np.float32(0)), b.constant(np.float32(6))], shape)
    if op == "Silu":
        return b.node("Mul", [x, b.node("Sigmoid", [x], shape)], shape)
    return b.node(op, [x], shape)


def _arithmetic(b: Builder, x: str) -> str:
    op = b.pick("Add", "Mul", "Sub", "Add", "Max")
    shape = b.shapes[x]
    same = [n for n, s in b.shapes.items() if s == shape]
    choice = b.pick("same", "scalar", "channel")
    if choice == "same":
        other = b.pick(*same)
    else:
        sizes = () if choice == "scalar" else (shape[1], *[1] * (len(shape) - 2))
        other = b.constant(b.random.standard_normal(sizes).astype(np.float32))
    pair = [x, other] if b.chance(50) else [other, x]
    return b.node(op, pair, shape)


def _concat(b: Builder, x: str) -> str:
    n, c, h, w = b.shapes[x]
    fits = [m for m, s in b.shapes.items() if len(s) == 4 and (s[0], *s[2:]) == (n, h, w)]
    other = b.pick(*fits)
    return b.node("Concat", [x, other], (n, c + b.shapes[other][1], h, w), axis=1)


def _resize(b: Builder, x: str) -> str:
    n, c, h, w = b.shapes[x]
    mode = b.pick("nearest", "linear")
    how = b.pick("half_pixel", "asymmetric", "align_corners") if mode == "linear" else "asymmetric"
    extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    return b.node(
        "Resize", [x, "", scales], (n, c, 2 * h, 2 * w), mode=mode, coordinate_transformation_mode=how, **extra
    )


def _squeeze_excite(b: Builder, x: str) -> str:
    n, c, _, _ = b.shapes[x]
    pooled = b.node("GlobalAveragePool", [x], (n, c, 1, 1))
    gate = b.node("Conv", [pooled, b.weight(c, c, 1, 1)], (n, c, 1, 1))
    return b.node("Mul", [x, b.node("Sigmoid", [gate], (n, c, 1, 1))], b.shapes[x])


_MAP_STEPS: list[Callable[[Builder, str], str | None]] = [
    _conv, _conv, _conv, _batch_norm, _pool, _activation, _activation, _arithmetic, _arithmetic, _concat, _resize,
    _squeeze_excite,
]  # fmt: skip


def random_map_graph(integer: Draw) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a graph of convolutions and their company, and its inputs."""
    b = Builder(integer)
    n, c, h, w = b.pick(1, 1, 2, 3), b.pick(1, 3, 4, 8), *b.integers(1, 20, 2)
    x = b.input((n, c, h, w))
    for _ in range(b.integer(1, 8)):
        if b.chance(20):
            maps = [m for m, s in b.shapes.items() if len(s) == 4]
            x = b.pick(*maps)
        if np.prod(b.shapes[x]) > 40_000:
            break
        x = b.pick(*_MAP_STEPS)(b, x) or x
    outputs = [x]
    n, c, h, w = b.shapes[x]
    tail = b.pick("none", "flat", "mean", "classifier")
    if tail == "flat":
        outputs.append(b.node("Flatten", [x], (n, c * h * w)))
    elif tail == "mean":
        outputs = [b.node("ReduceMean", [x, b.constant(np.array([2, 3]))], (n, c), keepdims=0)]
    elif tail == "classifier":
        flat = b.node("Flatten", [b.node("GlobalAveragePool", [x], (n, c, 1, 1))], (n, c))
        bias = b.constant(b.random.standard_normal(12).astype(np.float32))
        logits = b.node("Gemm", [flat, b.weight(12, c), bias], (n, 12), transB=1)
        outputs = [b.node("Softmax", [logits], (n, 12))]
    if not b.nodes:
        outputs = [b.node("Relu", [x], b.shapes[x])]
    return b.model(outputs), b.inputs


def _linear(b: Builder, x: str) -> str:
    *rest, d = b.shapes[x]
    n = b.pick(4, 8, 24, 116)
    y = b.node("MatMul", [x, b.constant(_transposed(b, n, d))], (*rest, n))
    if b.chance(60):
        y = b.node("Add", [y, b.constant(b.random.standard_normal(n).astype(np.float32))], (*rest, n))
    return y


def _transposed(b: Builder, n: int, d: int) -> np.ndarray:
    name = b.weight(n, d)
    tensor = next(t for t in b.constants if t.name == name)
    b.constants.remove(tensor)
    return np.ascontiguousarray(numpy_helper.to_array(tensor).T)


def _norm(b: Builder, x: str) -> str:
    d = b.shapes[x][-1]
    scale, bias = (b.constant(b.random.standard_normal(d).astype(np.float32)) for _ in range(2))
    return b.node("LayerNormalization", [x, scale, bias], b.shapes[x], axis=-1, epsilon=1e-5)


def _attention(b: Builder, x: str) -> str:
    n, t, d = b.shapes[x]
    if d % 2:
        return _norm(b, x)
    shape = b.constant(np.array([n, t, 2, d // 2]))
    q, k, v = (
        b.node("Transpose", [b.node("Reshape", [y, shape], (n, t, 2, d // 2))], (n, 2, t, d // 2), perm=[0, 2, 1, 3])
        for y in (x, x, x)
    )
    turned = b.node("Transpose", [k], (n, 2, d // 2, t), perm=[0, 1, 3, 2])
    scale = b.constant(np.float32(1 / max(1, d)))  # keeps the softmax from magnifying rounding
    scores = b.node("Mul", [b.node("MatMul", [q, turned], (n, 2, t, t)), scale], (n, 2, t, t))
    scores = b.node("Softmax", [scores], (n, 2, t, t), axis=-1)
    mixed = b.node(
        "Transpose", [b.node("MatMul", [scores, v], (n, 2, t, d // 2))], (n, t, 2, d // 2), perm=[0, 2, 1, 3]
    )
    return b.node("Reshape", [mixed, b.constant(np.array([n, t, d]))], (n, t, d))


def _residual(b: Builder, x: str) -> str:
    same = [n for n, s in b.shapes.items() if s == b.shapes[x]]
    return b.node("Add", [x, b.pick(*same)], b.shapes[x])


def _halves(b: Builder, x: str) -> str:
    n, t, d = b.shapes[x]
    if d < 2:
        return _residual(b, x)
    ends = [b.constant(np.array([v])) for v in (d // 2, d, 2)]
    upper = b.node("Slice", [x, *ends], (n, t, d - d // 2))
    return b.node("Softmax", [upper], b.shapes[upper], axis=1)


_TOKEN_STEPS = [_linear, _linear, _norm, _attention, _residual, _halves, _activation]


def random_token_graph(integer: Draw) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a graph of the parts of a transformer, and its inputs."""
    b = Builder(integer)
    x = b.input((b.pick(1, 2, 3), b.integer(1, 130), b.pick(1, 6, 16, 33)))
    for _ in range(b.integer(1, 7)):
        x = b.pick(*_TOKEN_STEPS)(b, x)
    if not b.nodes:
        x = b.node("Relu", [x], b.shapes[x])
    return b.model([x]), b.inputs
