"""Operators one at a time, in the variants that random graphs do not reach."""

import numpy as np
import pytest
from acdc_runtime import InferenceSession
from onnx import helper, numpy_helper

from conftest import assert_close, one_node, reference

R = np.random.default_rng(0)


def numbers(*shape: int) -> np.ndarray:
    return R.standard_normal(shape).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


X = {"x": numbers(2, 3, 7, 9)}
CASES = {
    "conv1d": ("Conv", {"x": numbers(2, 4, 33)}, [numbers(8, 4, 5)], {"strides": [2], "pads": [2, 2]}),
    "conv same upper": ("Conv", X, [numbers(4, 3, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "conv same lower": ("Conv", X, [numbers(4, 3, 2, 2)], {"auto_pad": "SAME_LOWER"}),
    "conv stride 3": ("Conv", X, [numbers(4, 3, 3, 3)], {"strides": [3, 3], "pads": [1, 1, 1, 1]}),
    "depthwise multiplier": ("Conv", X, [numbers(6, 1, 3, 3)], {"group": 3}),
    "pool ceil": ("MaxPool", X, [], {"kernel_shape": [3, 2], "strides": [2, 2], "ceil_mode": 1}),
    "average ceil": ("AveragePool", X, [], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "pool dilated": ("MaxPool", X, [], {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    "pool whole": ("AveragePool", X, [], {"kernel_shape": [7, 9]}),
    "pool 1d": ("MaxPool", {"x": numbers(1, 3, 20)}, [], {"kernel_shape": [3], "strides": [2]}),
    "gemm": ("Gemm", {"x": numbers(5, 6)}, [numbers(6, 7), numbers(7)], {"alpha": 0.5, "beta": 2.0}),
    "gemm transposed": ("Gemm", {"x": numbers(6, 5)}, [numbers(7, 6), numbers(1, 7)], {"transA": 1, "transB": 1}),
    "gemm live": ("Gemm", {"a": numbers(5, 6), "b": numbers(7, 6), "c": numbers(5, 1)}, [], {"transB": 1}),
    "gemm scalar": ("Gemm", {"x": numbers(3, 6)}, [numbers(6, 7), numbers(1)], {}),
    "matmul broadcast": ("MatMul", {"a": numbers(2, 1, 4, 6), "b": numbers(3, 6, 5)}, [], {}),
    "matmul 3d weights": ("MatMul", {"a": numbers(2, 4, 6)}, [numbers(2, 6, 5)], {}),
    "batch norm 2d": ("BatchNormalization", {"x": numbers(4, 5)}, [np.abs(numbers(5)) for _ in range(4)], {}),
    "softmax middle": ("Softmax", X, [], {"axis": 1}),
    "rms": ("RMSNormalization", {"x": numbers(3, 17)}, [numbers(17)], {"axis": -1, "opset": 23}),
    "layer norm two axes": ("LayerNormalization", {"x": numbers(3, 4, 5)}, [numbers(4, 5), numbers(4, 5)], {"axis": 1}),
    "layer norm no bias": ("LayerNormalization", {"x": numbers(3, 4, 5)}, [numbers(5)], {}),
    "mean apart": ("ReduceMean", X, [integers(0, 2)], {"keepdims": 0}),
    "mean all": ("ReduceMean", X, [], {}),
    "sum": ("ReduceSum", X, [integers(-1)], {}),
    "max": ("ReduceMax", X, [integers(1)], {}),
    "gather axis": ("Gather", X, [integers(-1, 0, 2)], {"axis": 3}),
    "gather scalar": ("Gather", X, [np.array(1, np.int64)], {"axis": 1}),
    "slice steps": ("Slice", X, [integers(1, 0), integers(-1, 9), integers(2, 3), integers(2, 3)], {}),
    "transpose": ("Transpose", X, [], {"perm": [2, 0, 3, 1]}),
    "squeeze": ("Squeeze", {"x": numbers(2, 1, 3, 1)}, [integers(1, -1)], {}),
    "unsqueeze": ("Unsqueeze", {"x": numbers(2, 3)}, [integers(0, -1)], {}),
    "expand": ("Expand", {"x": numbers(3, 1)}, [integers(2, 1, 4)], {}),
    "concat": ("Concat", {"a": numbers(2, 3), "b": numbers(2, 5)}, [], {"axis": -1}),
    "flatten 2": ("Flatten", X, [], {"axis": 2}),
    "reshape": ("Reshape", X, [integers(0, -1, 3)], {}),
    "prelu": ("PRelu", X, [numbers(3, 1, 1)], {}),
    "elu": ("Elu", X, [], {"alpha": 0.7}),
    "hard sigmoid": ("HardSigmoid", X, [], {"alpha": 0.3}),
    "gelu tanh": ("Gelu", X, [], {"approximate": "tanh"}),
    "sqrt": ("Sqrt", {"x": np.abs(numbers(3, 5))}, [], {}),
    "pow": ("Pow", {"x": np.abs(numbers(3, 5))}, [np.float32(2.5).reshape(())], {}),
    "divide": ("Div", {"a": numbers(3, 1, 5), "b": np.abs(numbers(4, 1)) + 1}, [], {}),
    "exp": ("Exp", X, [], {}),
    "log": ("Log", {"x": np.abs(numbers(4, 4)) + 0.1}, [], {}),
}
for _mode in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"):
    for _kind in ("nearest", "linear"):
        CASES[f"resize {_kind} {_mode}"] = (
            "Resize", X, [None, None, integers(2, 3, 10, 5)],
            {"mode": _kind, "coordinate_transformation_mode": _mode},
        )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_operator(name: str):
    op, inputs, constants, attributes = CASES[name]
    model = one_node(op, inputs, constants, **attributes)
    assert_close(InferenceSession(model.SerializeToString(), threads=1).run(None, inputs), reference(model, inputs))


def test_split_gives_every_part():
    inputs = {"x": numbers(2, 10, 3)}
    model = one_node("Split", inputs, [integers(3, 7)], outputs=2, axis=1)
    assert_close(InferenceSession(model.SerializeToString()).run(None, inputs), reference(model, inputs))


def test_embeddings_are_gathered_by_integer_inputs():
    table = numbers(11, 4)
    inputs = {"ids": integers(3, -1, 0, 10)}
    model = one_node("Gather", inputs, [], axis=0)
    model.graph.node[0].input[:] = ["table", "ids"]
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    session = InferenceSession(model.SerializeToString())
    assert np.array_equal(session.run(None, inputs)[0], table[[3, -1, 0, 10]])
    with pytest.raises(ValueError, match="index 11 is outside an axis of 11"):
        session.run(None, {"ids": integers(0, 0, 0, 11)})


def test_extreme_numbers_pass_through_activations():
    inputs = {"x": np.array([[-np.inf, -1e30, -100, -1e-20, 0, 1e-20, 100, 1e30, np.inf]], np.float32)}
    for op in ("Sigmoid", "Tanh", "Relu", "Erf"):
        model = one_node(op, inputs)
        (ours,) = InferenceSession(model.SerializeToString()).run(None, inputs)
        np.testing.assert_allclose(ours, reference(model, inputs)[0], rtol=1e-5, atol=1e-7)


def test_a_mask_chooses_between_scores_and_a_constant():
    inputs = {"x": numbers(2, 4, 4)}
    model = one_node("Where", inputs, [])
    mask, fill = np.tril(np.ones((4, 4), bool)), np.array(-np.inf, np.float32)
    model.graph.initializer.extend([numpy_helper.from_array(mask, "mask"), numpy_helper.from_array(fill, "fill")])
    model.graph.node[0].input[:] = ["mask", "x", "fill"]
    (ours,) = InferenceSession(model.SerializeToString()).run(None, inputs)
    assert np.array_equal(ours, np.where(mask, inputs["x"], fill))


def test_decomposed_gelu_and_layer_norm_and_shape_arithmetic():
    inputs = {"x": numbers(3, 5, 8)}
    tensors = {
        "root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5), "two": np.float32(2),
        "eps": np.float32(1e-5), "scale": numbers(8), "bias": numbers(8), "axis": integers(-1), "zero": integers(0),
        "minus": integers(-1),
    }  # fmt: skip
    nodes = [
        ("Div", ["x", "root"], "a"), ("Erf", ["a"], "b"), ("Add", ["b", "one"], "c"), ("Mul", ["x", "c"], "d"),
        ("Mul", ["d", "half"], "gelu"), ("ReduceMean", ["gelu", "axis"], "mean"), ("Sub", ["gelu", "mean"], "centred"),
        ("Pow", ["centred", "two"], "square"), ("ReduceMean", ["square", "axis"], "variance"),
        ("Add", ["variance", "eps"], "safe"), ("Sqrt", ["safe"], "deviation"), ("Div", ["centred", "deviation"], "n"),
        ("Mul", ["n", "scale"], "scaled"), ("Add", ["scaled", "bias"], "norm"), ("Shape", ["norm"], "shape"),
        ("Gather", ["shape", "zero"], "batch"), ("Concat", ["batch", "minus"], "sizes"),
        ("Reshape", ["norm", "sizes"], "y0"),
    ]  # fmt: skip
    model = one_node("Relu", inputs)
    del model.graph.node[:]
    for op, names, out in nodes:
        extra = {"axis": 0} if op in ("Gather", "Concat") else {}
        model.graph.node.append(helper.make_node(op, names, [out], name=out, **extra))
    model.graph.initializer.extend([numpy_helper.from_array(np.asarray(v), k) for k, v in tensors.items()])
    session = InferenceSession(model.SerializeToString())
    assert_close(session.run(None, inputs), reference(model, inputs))
    assert not any(r["node"] == "b" for r in session.profile(runs=1))
