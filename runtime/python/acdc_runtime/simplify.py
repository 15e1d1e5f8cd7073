"""Rewrites a graph before shapes are known: folds batch norms, names SiLU and GELU, drops what nothing reads."""

import math

import numpy as np

from acdc_runtime.folding import evaluate
from acdc_runtime.graph import Graph, Node


def simplify(graph: Graph) -> Graph:
    """Return an equal graph with fewer nodes."""
    _keep_constants(graph)
    graph = _without_identities(graph)
    _name_silu(graph)
    _name_gelu(graph)
    _fold_batch_norms(graph)
    return _without_unread(graph)


def _keep_constants(graph: Graph) -> None:
    for node in graph.nodes:
        if node.op == "Constant":
            graph.constants[node.outputs[0]] = evaluate(node, [])
    graph.nodes = [n for n in graph.nodes if n.op != "Constant"]


def _without_identities(graph: Graph) -> Graph:
    alias: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        node.inputs = [alias.get(i, i) for i in node.inputs]
        training = node.op == "Dropout" and len(node.inputs) > 2 and bool(node.inputs[2])
        if node.op in ("Identity", "Dropout") and not training:
            if not node.input(0):
                raise node.refuse("it has no input")
            alias[node.outputs[0]] = node.inputs[0]
        else:
            kept.append(node)
    # An output keeps its name: what produced it is read under the alias.
    graph.nodes = kept
    graph.outputs = [alias.get(o, o) for o in graph.outputs]
    return graph


def _scalar(graph: Graph, name: str) -> float | None:
    value = graph.constants.get(name)
    return float(value.reshape(-1)[0]) if isinstance(value, np.ndarray) and value.size == 1 else None


def _name_silu(graph: Graph) -> None:
    """Turn x * sigmoid(x) into one node."""
    users = graph.users()
    producer = {o: n for n in graph.nodes for o in n.outputs}
    gone: set[int] = set()
    for node in graph.nodes:
        if node.op != "Mul" or len(node.inputs) != 2:
            continue
        for x, y in (node.inputs, node.inputs[::-1]):
            gate = producer.get(y)
            if gate and gate.op == "Sigmoid" and gate.inputs == [x] and len(users[y]) == 1:
                node.op, node.inputs = "Silu", [x]
                gone.add(id(gate))
                break
    graph.nodes = [n for n in graph.nodes if id(n) not in gone]


def _name_gelu(graph: Graph) -> None:
    """Turn x/2 * (1 + erf(x/sqrt 2)), in the orders exporters write it, into one node."""
    users = graph.users()
    producer = {o: n for n in graph.nodes for o in n.outputs}

    def only_user(name: str, op: str) -> Node | None:
        found = users.get(name, [])
        return found[0] if len(found) == 1 and found[0].op == op and len(found[0].inputs) == 2 else None

    def other(node: Node, name: str) -> str:
        return node.inputs[1] if node.inputs[0] == name else node.inputs[0]

    def near(name: str, value: float) -> bool:
        found = _scalar(graph, name)
        return found is not None and math.isclose(found, value, rel_tol=1e-5)

    for erf in [n for n in graph.nodes if n.op == "Erf"]:
        scaled = producer.get(erf.inputs[0]) if erf.inputs else None
        if not scaled or len(scaled.inputs) != 2 or len(users[scaled.outputs[0]]) != 1:
            continue
        x = scaled.inputs[0]
        if not (
            (scaled.op == "Div" and near(scaled.inputs[1], math.sqrt(2)))
            or (scaled.op == "Mul" and near(scaled.inputs[1], math.sqrt(0.5)))
        ):
            continue
        plus = only_user(erf.outputs[0], "Add")
        if not plus or not near(other(plus, erf.outputs[0]), 1.0):
            continue
        product = only_user(plus.outputs[0], "Mul")
        if not product:
            continue
        factor = other(product, plus.outputs[0])
        half = producer.get(factor)
        drop = [erf, scaled, plus]
        if factor == x:  # x (1 + erf) * 0.5
            last = only_user(product.outputs[0], "Mul")
            if not last or not near(other(last, product.outputs[0]), 0.5):
                continue
            drop.append(product)
        elif near(factor, 0.5):  # 0.5 (1 + erf) * x
            last = only_user(product.outputs[0], "Mul")
            if not last or other(last, product.outputs[0]) != x:
                continue
            drop.append(product)
        elif half and half.op == "Mul" and x in half.inputs and near(other(half, x), 0.5) and len(users[factor]) == 1:
            last = product
            drop.append(half)
        else:
            continue
        last.op, last.inputs, last.attributes = "Gelu", [x], {}
        gone = {id(n) for n in drop}
        graph.nodes = [n for n in graph.nodes if id(n) not in gone]


def batch_norm_terms(graph_constants: dict[str, np.ndarray], node: Node) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and the summand of a batch norm in inference."""
    terms = [graph_constants.get(node.input(i)) for i in range(1, 5)]
    if any(t is None for t in terms):
        raise node.refuse("its scale, bias, mean and variance must be constants")
    scale, bias, mean, variance = (np.asarray(t, dtype=np.float64).reshape(-1) for t in terms)
    if not scale.size == bias.size == mean.size == variance.size:
        raise node.refuse("its scale, bias, mean and variance differ in size")
    spread = variance + node.number("epsilon", 1e-5)
    if not (spread > 0).all():
        raise node.refuse("a variance that is not positive")
    factor = scale / np.sqrt(spread)
    return factor, bias - mean * factor


def _fold_batch_norms(graph: Graph) -> None:
    users = graph.users()
    producer = {o: n for n in graph.nodes for o in n.outputs}
    gone: set[int] = set()
    for node in graph.nodes:
        if node.op != "BatchNormalization" or node.integer("training_mode", 0):
            continue
        before = producer.get(node.input(0))
        if before is None or before.op != "Conv" or len(users[before.outputs[0]]) != 1:
            continue
        weight = graph.constants.get(before.input(1))
        old_bias = graph.constants.get(before.input(2)) if before.input(2) else None
        if weight is None or (before.input(2) and old_bias is None):
            continue
        factor, summand = batch_norm_terms(graph.constants, node)
        if weight.ndim < 1 or weight.shape[0] != factor.size or (old_bias is not None and old_bias.size != factor.size):
            raise node.refuse(f"it has {factor.size} channels where the convolution before it has {weight.shape[:1]}")
        bias = summand + (0 if old_bias is None else old_bias.astype(np.float64).reshape(-1) * factor)
        with np.errstate(over="ignore"):
            folded = (weight.astype(np.float64) * factor.reshape([-1] + [1] * (weight.ndim - 1))).astype(np.float32)
        name = before.outputs[0]
        graph.constants[f"{name}/folded weight"], graph.constants[f"{name}/folded bias"] = (
            folded,
            bias.astype(np.float32),
        )
        before.inputs = [before.inputs[0], f"{name}/folded weight", f"{name}/folded bias"]
        before.outputs = [node.outputs[0], *before.outputs[1:]]
        gone.add(id(node))
    graph.nodes = [n for n in graph.nodes if id(n) not in gone]


def _without_unread(graph: Graph) -> Graph:
    read = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(o in read for o in node.outputs):
            kept.append(node)
            read.update(node.inputs)
    graph.nodes = kept[::-1]
    graph.constants = {k: v for k, v in graph.constants.items() if k in read}
    return graph
