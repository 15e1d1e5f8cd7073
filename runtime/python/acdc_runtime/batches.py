"""Decides whether a batch may be run in parts: every operator must keep images apart along the first dimension.

Parts keep activations in the caches, and each thread runs parts of its own without waiting for the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from acdc_runtime.fusion import ACTIVATIONS
from acdc_runtime.graph import Declared, Graph, Node
from acdc_runtime.plan import TILE

_SMALL = 1 << 20  # bytes of an image's largest tensor from where on images run together
_ANY = ACTIVATIONS | {"Conv", "BatchNormalization", "MaxPool", "AveragePool", "GlobalAveragePool"}


def separable(graph: Graph) -> bool:
    """True if the model maps every image of a batch alone, whatever else the batch holds."""
    names = {i.shape[0] if i.shape else None for i in graph.inputs}
    if len(names) != 1 or not isinstance(names.pop(), str):
        return False
    if any(isinstance(s, str) for i in graph.inputs for s in (i.shape or [])[1:]):
        return False
    ranks: dict[str, int] = {i.name: len(i.shape or []) for i in graph.inputs}
    for node in graph.nodes:
        live = [i for i in node.inputs if i and i not in graph.constants]
        if not live or any(i not in ranks for i in live):
            return False
        rank = _rank(graph, node, live, ranks)
        if rank is None:
            return False
        for name in node.outputs:
            ranks[name] = rank
    return all(o in ranks for o in graph.outputs)


@dataclass(frozen=True)
class Cut:
    """A model in two: its head runs image by image, its tail, where maps are small, on some images together."""

    head: Graph
    tail: Graph
    name: str
    shape: tuple[int, ...]  # of one image's tensor between them


def cut(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Cut | None:
    """Cut a separable graph at the first tensor after which all are small, None where there is no such place.

    Nothing else may pass from head to tail, and the tensor's images must be whole tiles. `shapes` are one image's.
    """
    last = {name: k for k, node in enumerate(graph.nodes) for name in node.inputs}
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    small = len(graph.nodes)  # from this node on, results are small
    while small and all(4 * np.prod(shapes.get(o, ())) <= _SMALL for o in graph.nodes[small - 1].outputs):
        small -= 1
    live = {i.name for i in graph.inputs}
    for k, node in enumerate(graph.nodes[:-1]):
        live = {name for name in (*live, *node.outputs) if last.get(name, -1) > k}
        if k + 1 < small or not small or len(live) != 1:
            continue
        (name,) = live
        shape = shapes.get(name, ())
        if name not in graph.outputs and len(shape) == 4 and shape[2] * shape[3] % TILE == 0:
            between = Declared(name, np.dtype(np.float32), ["batch", *shape[1:]])
            head = Graph(graph.nodes[: k + 1], graph.inputs, [name], graph.constants, graph.opset)
            tail = Graph(graph.nodes[k + 1 :], [between], graph.outputs, graph.constants, graph.opset)
            return Cut(head, tail, name, shape)
    return None


def _rank(graph: Graph, node: Node, live: list[str], ranks: dict[str, int]) -> int | None:
    """Return the dimensions of a node's result, None when the node may mix images."""
    first = ranks[live[0]]
    if node.op in _ANY:
        return first if live == [node.inputs[0]] and first >= 2 else None
    if node.op in ("Add", "Mul", "Sub", "Div", "Max", "Min"):
        same = all(ranks[i] == first for i in live)
        constants = [graph.constants[i] for i in node.inputs if i in graph.constants]
        fits = all(c.ndim < first or (c.ndim == first and c.shape[0] == 1) for c in constants)
        return first if same and fits and first >= 2 else None
    if node.op == "Concat":
        same = len(live) == len(node.inputs) and all(ranks[i] == first for i in live)
        return first if same and node.integer("axis", 0) % first != 0 else None
    rule = _RULES.get(node.op)
    return rule(graph, node, first) if rule and live == [node.inputs[0]] else None


def _axes(graph: Graph, node: Node) -> list[int] | None:
    stored = graph.constants.get(node.input(1)) if node.input(1) else node.integers("axes")
    return None if stored is None else [int(a) for a in np.ravel(stored)]


def _product(graph: Graph, node: Node, rank: int) -> int | None:
    summand = graph.constants.get(node.input(2)) if node.input(2) else None
    one_row = summand is None or summand.ndim < 2 or summand.shape[0] == 1
    weight = graph.constants.get(node.input(1))
    return rank if weight is not None and weight.ndim == 2 and one_row and not node.integer("transA", 0) else None


def _reduced(graph: Graph, node: Node, rank: int) -> int | None:
    axes = _axes(graph, node)
    if not axes or any(a % rank == 0 for a in axes):
        return None
    return rank if node.integer("keepdims", 1) else rank - len(axes)


_RULES: dict[str, Callable[[Graph, Node, int], int | None]] = {
    "Flatten": lambda g, n, r: 2 if n.integer("axis", 1) == 1 else None,
    "Gemm": _product,
    "MatMul": _product,
    "ReduceMean": _reduced,
    "Softmax": lambda g, n, r: r if n.integer("axis", -1) % r != 0 else None,
    "LayerNormalization": lambda g, n, r: r if n.integer("axis", -1) % r != 0 else None,
    "RMSNormalization": lambda g, n, r: r if n.integer("axis", -1) % r != 0 else None,
}
