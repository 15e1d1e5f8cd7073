"""Reads an ONNX file into a Graph, and refuses what is malformed before anything is built from it."""

import heapq
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from acdc_runtime.errors import ModelError
from acdc_runtime.graph import Declared, Graph, Node

_MAX_FILE = 1 << 33
_T = onnx.TensorProto
_DTYPES: dict[int, np.dtype] = {
    _T.FLOAT: np.dtype(np.float32),
    _T.DOUBLE: np.dtype(np.float64),
    _T.FLOAT16: np.dtype(np.float16),
    _T.INT64: np.dtype(np.int64),
    _T.INT32: np.dtype(np.int32),
    _T.INT8: np.dtype(np.int8),
    _T.UINT8: np.dtype(np.uint8),
    _T.BOOL: np.dtype(np.bool_),
}
_FIELDS: dict[int, str] = {
    _T.FLOAT: "float_data",
    _T.DOUBLE: "double_data",
    _T.FLOAT16: "int32_data",
    _T.INT64: "int64_data",
    _T.INT32: "int32_data",
    _T.INT8: "int32_data",
    _T.UINT8: "int32_data",
    _T.BOOL: "int32_data",
}


def load_graph(model: str | os.PathLike | bytes) -> Graph:
    """Read a model from a file, or from the bytes of one."""
    folder: Path | None = None
    if isinstance(model, bytes):
        content = model
    else:
        path = Path(model)
        if not path.is_file():
            raise ModelError(str(path), "there is no such file")
        if path.stat().st_size > _MAX_FILE:
            raise ModelError(str(path), "the file is larger than 8 GiB")
        content, folder = path.read_bytes(), path.parent
    try:
        proto = onnx.ModelProto.FromString(content)
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelError("model", f"this is not an ONNX file, or it is truncated ({error})") from None
    del content  # the parsed message holds its own copy
    return _graph(proto, folder)


def _graph(proto: onnx.ModelProto, folder: Path | None) -> Graph:
    if not proto.HasField("graph") or not proto.graph.node:
        raise ModelError("model", "it holds no graph, or a graph without nodes")
    opsets = {o.domain: o.version for o in proto.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", 0))
    if not 7 <= opset <= 64:
        raise ModelError("model", f"operator set {opset} of ai.onnx; 7 or later is needed")
    source = proto.graph
    if source.sparse_initializer:
        raise ModelError(
            f"tensor {source.sparse_initializer[0].values.name!r}",
            "sparse initializers are not read; store the weight dense (zeros compress away when it is loaded)",
        )
    constants: dict[str, np.ndarray] = {}
    for tensor in source.initializer:
        if tensor.name in constants:
            raise ModelError(f"tensor {tensor.name!r}", "two initializers have this name")
        constants[tensor.name] = tensor_array(tensor, folder)
    inputs = [_declared(v) for v in source.input if v.name not in constants]
    known = {i.name for i in inputs} | set(constants)
    if len({i.name for i in inputs}) != len(inputs):
        raise ModelError("model", "two inputs have one name")
    nodes = [_node(n, i, folder) for i, n in enumerate(source.node)]
    _produced_once(nodes, known)
    nodes = _in_order(nodes, known)
    outputs = [o.name for o in source.output]
    produced = known | {name for n in nodes for name in n.outputs}
    for name in outputs:
        if name not in produced:
            raise ModelError(f"output {name!r}", "no node produces it")
    if not outputs:
        raise ModelError("model", "the graph has no outputs")
    return Graph(nodes, inputs, outputs, constants, opset)


def _produced_once(nodes: list[Node], known: set[str]) -> None:
    seen = set(known)
    for node in nodes:
        for name in node.outputs:
            if name and name in seen:
                raise node.refuse(f"its output {name!r} has the name of another tensor")
            seen.add(name)


def _in_order(nodes: list[Node], known: set[str]) -> list[Node]:
    """Sort nodes so that each follows what it reads; name the node where none can."""
    producers = {name: i for i, n in enumerate(nodes) for name in n.outputs if name}
    waiting: list[int] = []
    followers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        sources = set()
        for name in node.inputs:
            if not name or name in known:
                continue
            if name not in producers:
                raise node.refuse(f"it reads {name!r}, which nothing produces")
            sources.add(producers[name])
        waiting.append(len(sources))
        for s in sources:
            followers.setdefault(s, []).append(i)
    ready = [i for i, n in enumerate(waiting) if n == 0]  # a heap: nodes keep their order where it is free
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for f in followers.get(i, []):
            waiting[f] -= 1
            if waiting[f] == 0:
                heapq.heappush(ready, f)
    if len(order) < len(nodes):
        stuck = next(i for i, n in enumerate(waiting) if n > 0)
        raise nodes[stuck].refuse("it is part of a cycle, or follows one")
    return [nodes[i] for i in order]


def _declared(value: onnx.ValueInfoProto) -> Declared:
    where = f"input {value.name!r}"
    if value.type.WhichOneof("value") != "tensor_type":
        raise ModelError(where, "it is not a tensor")
    kind = value.type.tensor_type
    if kind.elem_type not in _DTYPES:
        raise ModelError(where, f"its element type, {kind.elem_type}, is not supported")
    if not kind.HasField("shape"):
        raise ModelError(where, "its number of dimensions is not given")
    shape: list[int | str] = []
    for i, d in enumerate(kind.shape.dim):
        if d.WhichOneof("value") == "dim_value":
            if d.dim_value < 0 or d.dim_value > 1 << 40:
                raise ModelError(where, f"dimension {i} is {d.dim_value}")
            shape.append(d.dim_value if d.dim_value else "?")
        else:
            shape.append(d.dim_param or "?")
    if len(shape) > 8:
        raise ModelError(where, f"it has {len(shape)} dimensions; at most 8 are supported")
    return Declared(value.name, _DTYPES[kind.elem_type], shape)


def _node(proto: onnx.NodeProto, index: int, folder: Path | None) -> Node:
    name = proto.name or (proto.output[0] if proto.output else f"#{index}")
    node = Node(proto.op_type, name, list(proto.input), list(proto.output))
    if proto.domain not in ("", "ai.onnx"):
        raise node.refuse(f"operators of the domain {proto.domain!r} are not supported")
    if not node.outputs or not node.outputs[0]:
        raise node.refuse("it has no output")
    for a in proto.attribute:
        node.attributes[a.name] = _attribute(a, node, folder)
    return node


def _attribute(a: onnx.AttributeProto, node: Node, folder: Path | None) -> Any:
    kinds = onnx.AttributeProto
    if a.type == kinds.FLOAT:
        return float(a.f)
    if a.type == kinds.INT:
        return int(a.i)
    if a.type == kinds.STRING:
        return a.s.decode("utf-8", "replace")
    if a.type == kinds.TENSOR:
        return tensor_array(a.t, folder, f"attribute {a.name} of {node}")
    if a.type == kinds.FLOATS:
        return [float(v) for v in a.floats]
    if a.type == kinds.INTS:
        return [int(v) for v in a.ints]
    if a.type == kinds.STRINGS:
        return [v.decode("utf-8", "replace") for v in a.strings]
    raise node.refuse(f"attribute {a.name} has a type that is not supported (subgraphs are not)")


def tensor_array(tensor: onnx.TensorProto, folder: Path | None, where: str = "") -> np.ndarray:
    """Return a stored tensor as an array, after checking that its bytes are as many as its sizes say."""
    where = where or f"tensor {tensor.name!r}"
    if tensor.data_type not in _DTYPES:
        raise ModelError(where, f"its element type, {tensor.data_type}, is not supported")
    dtype, count = _DTYPES[tensor.data_type], 1
    for d in tensor.dims:
        if d < 0:
            raise ModelError(where, f"a dimension of {d}")
        count *= d
    if len(tensor.dims) > 8:
        raise ModelError(where, f"it has {len(tensor.dims)} dimensions; at most 8 are supported")
    if tensor.HasField("segment"):
        raise ModelError(where, "it is stored in segments, which is not supported")
    if tensor.data_location == _T.EXTERNAL:
        raw = _external(tensor, folder, where, count * dtype.itemsize)
    elif tensor.HasField("raw_data"):
        raw = tensor.raw_data
    else:
        values = getattr(tensor, _FIELDS[tensor.data_type])
        if len(values) != count:
            raise ModelError(where, f"it holds {len(values)} values where its sizes say {count}")
        if tensor.data_type == _T.FLOAT16:
            array = np.array(values, dtype=np.int64).astype(np.uint16).view(np.float16)
        else:
            array = np.array(values).astype(dtype)
        return _finished(array.reshape(list(tensor.dims)), where)
    if len(raw) != count * dtype.itemsize:
        raise ModelError(where, f"it holds {len(raw)} bytes where its sizes say {count * dtype.itemsize}")
    return _finished(np.frombuffer(raw, dtype=dtype.newbyteorder("<")).reshape(list(tensor.dims)), where)


def _finished(array: np.ndarray, where: str) -> np.ndarray:
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            array = np.ascontiguousarray(array, dtype=np.float32)
        if np.isnan(array).any():
            raise ModelError(where, "it holds NaN")
    elif array.dtype.kind in "iu":
        array = array.astype(np.int64)
    return array


def _external(tensor: onnx.TensorProto, folder: Path | None, where: str, size: int) -> bytes:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(where, "its data is in another file, and the model was given as bytes")
    try:
        return _read_external(folder.resolve(), location, entries, where, size)
    except (OSError, ValueError) as error:  # a name that no file can have, or a file that may not be read
        if isinstance(error, ModelError):
            raise
        raise ModelError(
            where, f"its data file, {location[:80]!r}, cannot be read ({error.__class__.__name__})"
        ) from None


def _read_external(root: Path, location: str, entries: dict[str, str], where: str, size: int) -> bytes:
    path = (root / location).resolve()
    if not location or Path(location).is_absolute() or root not in path.parents:
        raise ModelError(where, f"its data is at {location!r}, outside the model's folder")
    if not path.is_file():
        raise ModelError(where, f"its data file, {location!r}, is not there")
    try:
        offset, length = int(entries.get("offset", "0")), int(entries.get("length", str(size)))
    except ValueError:
        raise ModelError(where, "the offset or length of its data is not a number") from None
    if offset < 0 or length != size or offset + length > path.stat().st_size:
        raise ModelError(where, f"{length} bytes at {offset} of {location!r} are not there, or not {size}")
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
