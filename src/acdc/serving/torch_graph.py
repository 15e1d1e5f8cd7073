"""An ONNX file as a torch module, for timing torch on the same network. Operators of CNNs and MLPs, nothing more."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class UnsupportedNode(Exception):  # noqa: N818
    """The file holds a node that this module does not know."""


class TorchGraph(nn.Module):
    """Runs a graph of one input and one output, node by node."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        import onnx
        from onnx import numpy_helper

        model = onnx.load(str(path))
        weights = {t.name: torch.from_numpy(numpy_helper.to_array(t).copy()) for t in model.graph.initializer}
        self.source = next(i.name for i in model.graph.input if i.name not in weights)
        self.result = model.graph.output[0].name
        self.nodes: list[tuple[str, list[str], str, dict[str, Any]]] = []
        self.keys: dict[str, str] = {}
        for i, (name, value) in enumerate(weights.items()):
            self.keys[name] = f"w{i}"
            self.register_buffer(f"w{i}", value)
        for node in model.graph.node:
            if node.op_type not in _RUN:
                raise UnsupportedNode(f"node {node.name!r} is a {node.op_type}, which is not run by torch here")
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            self.nodes.append((node.op_type, list(node.input), node.output[0], attributes))

    def forward(self, x: Tensor) -> Tensor:
        values: dict[str, Tensor] = {name: getattr(self, key) for name, key in self.keys.items()}
        values[self.source] = x
        for op, inputs, output, attributes in self.nodes:
            values[output] = _RUN[op]([values[i] for i in inputs if i], attributes)
        return values[self.result]


def _padding(attributes: dict[str, Any], rank: int) -> list[int]:
    pads = list(attributes.get("pads", [0] * 2 * rank))
    if pads[:rank] != pads[rank:] or attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b""):
        raise UnsupportedNode("padding that differs between sides is not run by torch here")
    return pads[:rank]


def _conv(x: list[Tensor], a: dict[str, Any]) -> Tensor:
    rank = x[1].ndim - 2
    convolve = F.conv2d if rank == 2 else F.conv1d
    return convolve(
        x[0], x[1], x[2] if len(x) > 2 else None, a.get("strides", [1] * rank), _padding(a, rank),
        a.get("dilations", [1] * rank), a.get("group", 1),
    )  # fmt: skip


def _pool(x: list[Tensor], a: dict[str, Any]) -> Tensor:
    return F.max_pool2d(x[0], a["kernel_shape"], a.get("strides", [1, 1]), _padding(a, 2))


def _gemm(x: list[Tensor], a: dict[str, Any]) -> Tensor:
    weight = x[1] if a.get("transB", 0) else x[1].T
    return F.linear(x[0], weight, x[2] if len(x) > 2 else None)


def _mean(x: list[Tensor], a: dict[str, Any]) -> Tensor:
    axes = x[1].tolist() if len(x) > 1 else list(a.get("axes", []))  # an input since opset 18
    return x[0].mean(dim=axes or list(range(x[0].ndim)), keepdim=bool(a.get("keepdims", 1)))


_RUN = {
    "Conv": _conv,
    "MaxPool": _pool,
    "Gemm": _gemm,
    "Relu": lambda x, a: F.relu(x[0]),
    "Clip": lambda x, a: torch.clamp(x[0], *(v.item() for v in x[1:3])),
    "Add": lambda x, a: x[0] + x[1],
    "Mul": lambda x, a: x[0] * x[1],
    "MatMul": lambda x, a: x[0] @ x[1],
    "Sigmoid": lambda x, a: torch.sigmoid(x[0]),
    "GlobalAveragePool": lambda x, a: x[0].mean(dim=(2, 3), keepdim=True),
    "ReduceMean": _mean,
    "Flatten": lambda x, a: x[0].flatten(a.get("axis", 1)),
    "Concat": lambda x, a: torch.cat(x, dim=a["axis"]),
    "BatchNormalization": lambda x, a: F.batch_norm(x[0], x[3], x[4], x[1], x[2], eps=a.get("epsilon", 1e-5)),
}
