"""What the tests share: the reference they compare with, and small models."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import settings
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

onnxruntime.set_default_logger_severity(4)
settings.register_profile("quick", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile("long", max_examples=3000, deadline=None, print_blob=True)
KERNELS = ("avx512", "avx2", "generic")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="try thousands of random graphs, as `make test-all` does")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "quick")


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what onnxruntime computes, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def in_double(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what onnx's own reference computes in float64."""
    double = onnx.ModelProto()
    double.CopyFrom(model)
    for tensor in double.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            wide = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for value in (*double.graph.input, *double.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    wide_inputs = {k: v.astype(np.float64) if v.dtype == np.float32 else v for k, v in inputs.items()}
    return ReferenceEvaluator(double).run(None, wide_inputs)


def difference(x: np.ndarray, y: np.ndarray) -> float:
    """Return the largest difference over the largest value of y."""
    assert x.shape == y.shape
    assert x.size
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    apart = np.abs(np.where(same, 0, x) - np.where(same, 0, y)).max()
    return float(apart) / max(1e-3, float(np.abs(y).max()))


def assert_close(ours: list[np.ndarray], theirs: list[np.ndarray], tolerance: float = 1e-4) -> None:
    assert len(ours) == len(theirs) > 0
    for x, y in zip(ours, theirs, strict=True):
        assert difference(x, y) <= tolerance


def assert_as_exact(ours: list[np.ndarray], model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> None:
    """Compare with onnxruntime; where both differ by more than 1e-4, float64 decides.

    A norm over nearly equal numbers magnifies rounding, whoever rounds. Then ours may be twice as far from the result
    in float64 as onnxruntime's.
    """
    theirs = reference(model, inputs)
    assert len(ours) == len(theirs) > 0
    if all(difference(x, y) <= 1e-4 for x, y in zip(ours, theirs, strict=True)):
        return
    for x, y, exact in zip(ours, theirs, in_double(model, inputs), strict=True):
        assert difference(x, exact) <= max(1e-4, 2 * difference(y, exact))


def one_node(
    op: str,
    inputs: dict[str, np.ndarray],
    constants: Sequence[np.ndarray | None] = (),
    outputs: int = 1,
    opset: int = 20,
    **attributes,
) -> onnx.ModelProto:
    """Return a model of one node: live inputs first, then constants (None where one is left out)."""
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT64}
    names = [("" if c is None else f"c{i}") for i, c in enumerate(constants)]
    node = helper.make_node(op, [*inputs, *names], [f"y{i}" for i in range(outputs)], name="the node", **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(k, kinds[v.dtype.kind], v.shape) for k, v in inputs.items()],
        [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(outputs)],
        [numpy_helper.from_array(c, n) for c, n in zip(constants, names, strict=True) if c is not None],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def convolution_model(batch: int | str = "batch", weight: np.ndarray | None = None) -> onnx.ModelProto:
    """Return a model of one 3 x 3 convolution from `input` to `output`."""
    weight = np.ones((4, 3, 3, 3), np.float32) if weight is None else weight
    node = helper.make_node("Conv", ["input", "weight"], ["output"], name="conv", pads=[1, 1, 1, 1])
    graph = helper.make_graph(
        [node],
        "conv",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [batch, 4, 8, 8])],
        [numpy_helper.from_array(weight, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
