"""ONNX files of networks whose random weights, pruned, cost the FLOPs that the paper reports.

Weights are drawn from N(0, fan_in^-2a). With the right `a`, pruning the 90 % smallest of all leaves the paper's 18 % of
inference FLOPs for both networks, and other levels fall in place: `calibrate` finds it. Batch norms are folded, as an
exporter would leave them. Only numpy and onnx are needed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass
class Layer:
    """A convolution or the classifier: its weight's shape, its output pixels, and whether the paper prunes it."""

    name: str
    shape: tuple[int, ...]
    pixels: int
    prunable: bool = True
    weight: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def fan_in(self) -> int:
        return math.prod(self.shape[1:])


@dataclass
class Network:
    layers: list[Layer]
    build: Callable[["Network"], onnx.ModelProto]

    def flops_fraction(self) -> float:
        """Return multiply-adds by non-zero weights over those of the dense network."""
        dense = sum(math.prod(x.shape) * x.pixels for x in self.layers)
        return sum(np.count_nonzero(x.weight) * x.pixels for x in self.layers) / dense

    def sparsity(self) -> float:
        kept = [x for x in self.layers if x.prunable]
        return 1 - sum(np.count_nonzero(x.weight) for x in kept) / sum(math.prod(x.shape) for x in kept)


class _Writer:
    """Collects nodes and weights of a graph, and the layers it is made of."""

    def __init__(self, network: Network | None, side: int, classes: int = 1000, shape=None, out=None):
        self.network, self.classes = network, classes
        self.shape = shape or ["batch", 3, side, side]
        self.out = out or ["batch", classes]
        self.layers: list[Layer] = []
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(1)

    def layer(self, name: str, shape: tuple[int, ...], pixels: int, prunable: bool) -> None:
        if self.network is None:
            self.layers.append(Layer(name, shape, pixels, prunable))
            return
        weight = next(x for x in self.network.layers if x.name == name).weight
        # Activations keep their size whatever was pruned: a row's norm is that of a fresh He initialisation.
        norm = np.sqrt((weight.reshape(shape[0], -1) ** 2).sum(axis=1) + 1e-12)
        gain = (math.sqrt(2.0) if len(shape) == 4 else 1.0) / np.maximum(norm, 1e-6)
        if name.endswith("conv3"):
            gain *= 0.3
        scaled = weight * gain.reshape([-1] + [1] * (len(shape) - 1)).astype(np.float32)
        self.tensors.append(numpy_helper.from_array(scaled.astype(np.float32), f"{name}.weight"))
        bias = self.random.normal(0, 0.1, shape[0]).astype(np.float32)
        self.tensors.append(numpy_helper.from_array(bias, f"{name}.bias"))

    def conv(
        self,
        x: str,
        name: str,
        c_in: int,
        c_out: int,
        k: int,
        stride: int,
        side: int,
        groups: int = 1,
        relu: bool = True,
        prunable: bool = True,
    ) -> str:
        self.layer(name, (c_out, c_in // groups, k, k), side * side, prunable)
        pads = [k // 2] * 4
        self.nodes.append(
            helper.make_node(
                "Conv",
                [x, f"{name}.weight", f"{name}.bias"],
                [name],
                name=name,
                kernel_shape=[k, k],
                pads=pads,
                strides=[stride, stride],
                group=groups,
            )
        )
        return self.then("Relu", name) if relu else name

    def then(self, op: str, *inputs: str, **attributes) -> str:
        out = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], name=out, **attributes))
        return out

    def model(self) -> onnx.ModelProto:
        image = helper.make_tensor_value_info("input", TensorProto.FLOAT, self.shape)
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, self.out)
        graph = helper.make_graph(self.nodes, "network", [image], [logits], self.tensors)
        # Old engines read old files: only Gelu needs a new one.
        opset, version = (20, 9) if any(node.op_type == "Gelu" for node in self.nodes) else (13, 7)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=version)

    def classifier(self, x: str, features: int) -> str:
        pooled = self.then("Flatten", self.then("GlobalAveragePool", x))
        self.layer("fc", (self.classes, features), 1, True)
        self.nodes.append(helper.make_node("Gemm", [pooled, "fc.weight", "fc.bias"], ["logits"], name="fc", transB=1))
        return "logits"


def _write_resnet50(network: Network | None) -> _Writer:
    w = _Writer(network, 224)
    x = w.conv("input", "conv1", 3, 64, 7, 2, 112)
    x = w.then("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    c_in, side = 64, 56
    for stage, (count, c) in enumerate(zip((3, 4, 6, 3), (64, 128, 256, 512), strict=True), 1):
        for b in range(count):
            stride = 2 if stage > 1 and b == 0 else 1
            name, before = f"layer{stage}.{b}", side
            side //= stride
            y = w.conv(x, f"{name}.conv1", c_in, c, 1, 1, before)
            y = w.conv(y, f"{name}.conv2", c, c, 3, stride, side)
            y = w.conv(y, f"{name}.conv3", c, 4 * c, 1, 1, side, relu=False)
            if b == 0:
                x = w.conv(x, f"{name}.downsample", c_in, 4 * c, 1, stride, side, relu=False)
            x = w.then("Relu", w.then("Add", y, x))
            c_in = 4 * c
    w.classifier(x, c_in)
    return w


def _write_mobilenet(network: Network | None) -> _Writer:
    w = _Writer(network, 224)
    x = w.conv("input", "conv1", 3, 32, 3, 2, 112)
    c_in, side = 32, 112
    pairs = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for i, (c, stride) in enumerate(pairs):
        side //= stride
        x = w.conv(x, f"pairs.{i}.depthwise", c_in, c_in, 3, stride, side, groups=c_in, prunable=False)
        x = w.conv(x, f"pairs.{i}.pointwise", c_in, c, 1, 1, side)
        c_in = c
    w.classifier(x, c_in)
    return w


def _write_resnet20(network: Network | None) -> _Writer:
    w = _Writer(network, 32, classes=10)
    x = w.conv("input", "conv1", 3, 16, 3, 1, 32)
    c_in, side = 16, 32
    for stage, c in enumerate((16, 32, 64), 1):
        for b in range(3):
            stride = 2 if stage > 1 and b == 0 else 1
            name = f"layer{stage}.{b}"
            side //= stride
            y = w.conv(x, f"{name}.conv1", c_in, c, 3, stride, side)
            y = w.conv(y, f"{name}.conv2", c, c, 3, 1, side, relu=False)
            if stride == 2:
                x = w.conv(x, f"{name}.downsample", c_in, c, 1, 2, side, relu=False)
            x = w.then("Relu", w.then("Add", y, x))
            c_in = c
    w.classifier(x, c_in)
    return w


def _write_gpt_block(network: Network | None) -> _Writer:
    """Write one block of GPT-2 small on 128 tokens; its input is (batch, 128, 768)."""
    tokens, width, heads = 128, 768, 12
    w = _Writer(network, 0, shape=["batch", tokens, width], out=["batch", tokens, width])

    def linear(x: str, name: str, c_in: int, c_out: int) -> str:
        w.layer(name, (c_out, c_in), tokens, True)
        turned = w.then("Transpose", f"{name}.weight", perm=[1, 0])
        return w.then("Add", w.then("MatMul", x, turned), f"{name}.bias")

    def norm(x: str, name: str) -> str:
        for part, value in (("scale", np.ones), ("shift", np.zeros)):
            w.tensors.append(numpy_helper.from_array(value(width, np.float32), f"{name}.{part}"))
        return w.then("LayerNormalization", x, f"{name}.scale", f"{name}.shift", axis=-1)

    def constant(name: str, value: np.ndarray) -> str:
        w.tensors.append(numpy_helper.from_array(value, name))
        return name

    split = constant("split", np.array([0, 0, heads, width // heads]))
    join = constant("join", np.array([0, 0, width]))
    parts = []
    x = norm("input", "ln1")
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        y = w.then("Reshape", linear(x, part, width, width), split)
        parts.append(w.then("Transpose", y, perm=order))
    scores = w.then(
        "Mul", w.then("MatMul", *parts[:2]), constant("scale", np.array((heads / width) ** 0.5, np.float32))
    )
    mask = np.where(np.tril(np.ones((tokens, tokens), bool)), 0, -1e9).astype(np.float32)
    weights = w.then("Softmax", w.then("Add", scores, constant("mask", mask)), axis=-1)
    mixed = w.then("Transpose", w.then("MatMul", weights, parts[2]), perm=[0, 2, 1, 3])
    x = w.then("Add", linear(w.then("Reshape", mixed, join), "mix", width, width), "input")
    y = w.then("Gelu", linear(norm(x, "ln2"), "up", width, 4 * width))
    y = linear(y, "down", 4 * width, width)
    w.nodes.append(helper.make_node("Add", [y, x], ["logits"], name="logits"))
    return w


_WRITERS = {
    "resnet50": _write_resnet50,
    "mobilenet": _write_mobilenet,
    "resnet20": _write_resnet20,
    "gpt_block": _write_gpt_block,
}


def draw(name: str, exponent: float, seed: int = 0) -> Network:
    """Return a dense network with weights of standard deviation fan_in^-exponent."""
    write = _WRITERS[name]
    random = np.random.default_rng(seed)
    layers = write(None).layers
    for x in layers:
        x.weight = (random.standard_normal(x.shape, dtype=np.float32)) * np.float32(x.fan_in**-exponent)
    return Network(layers, lambda network: write(network).model())


def prune_globally(network: Network, sparsity: float) -> None:
    """Zero the smallest weights of all prunable layers together."""
    layers = [x for x in network.layers if x.prunable]
    sizes = np.concatenate([np.abs(x.weight).ravel() for x in layers])
    threshold = np.partition(sizes, int(sparsity * sizes.size))[int(sparsity * sizes.size)]
    for x in layers:
        x.weight = np.where(np.abs(x.weight) >= threshold, x.weight, np.float32(0))


def prune_uniformly(network: Network, sparsity: float, ends: bool = False) -> None:
    """Zero the smallest weights of each layer; of the first and last only with `ends`."""
    for x in network.layers if ends else network.layers[1:-1]:
        if x.prunable:
            sizes = np.abs(x.weight)
            threshold = np.partition(sizes.ravel(), int(sparsity * sizes.size))[int(sparsity * sizes.size)]
            x.weight = np.where(sizes >= threshold, x.weight, np.float32(0))


def prune_in_tiles(network: Network, sparsity: float, rows: int) -> None:
    """Zero the smallest tiles of `rows` output channels x 1 of all prunable layers together."""
    layers = [x for x in network.layers if x.prunable]
    norms = [(x.weight.reshape(-1, rows, x.fan_in) ** 2).sum(axis=1) for x in layers]
    everything = np.concatenate([n.ravel() for n in norms])
    threshold = np.partition(everything, int(sparsity * everything.size))[int(sparsity * everything.size)]
    for x, norm in zip(layers, norms, strict=True):
        mask = np.repeat(norm >= threshold, rows, axis=0).reshape(x.shape)
        x.weight = np.where(mask, x.weight, np.float32(0))


def calibrate(name: str, prune: Callable[[Network], None], flops: float) -> float:
    """Find the exponent whose network, pruned, costs `flops` of the dense one."""
    low, high = 0.0, 1.0
    for _ in range(10):
        middle = (low + high) / 2
        network = draw(name, middle)
        prune(network)
        if network.flops_fraction() < flops:
            low = middle
        else:
            high = middle
    return (low + high) / 2
