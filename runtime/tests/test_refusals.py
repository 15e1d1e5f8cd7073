"""Malformed and hostile models are refused by an exception that names the node or tensor."""

import numpy as np
import onnx
import pytest
from acdc_runtime import InferenceSession, ModelError
from onnx import TensorProto, helper, numpy_helper

from conftest import convolution_model


def load(model: onnx.ModelProto) -> InferenceSession:
    return InferenceSession(model.SerializeToString(), threads=1)


def changed(change) -> onnx.ModelProto:
    model = convolution_model(1)
    change(model.graph)
    return model


def _set(graph, **fields):
    for name, value in fields.items():
        setattr(graph.node[0], name, value)


def _attribute(name, value):
    def change(graph):
        kept = [a for a in graph.node[0].attribute if a.name != name]
        del graph.node[0].attribute[:]
        graph.node[0].attribute.extend([*kept, helper.make_attribute(name, value)])

    return change


def _dims(*dims):
    def change(graph):
        graph.initializer[0].dims[:] = dims

    return change


def _input_dims(*dims):
    def change(graph):
        for d, v in zip(graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
            d.dim_value = v

    return change


def _nan(graph):
    weight = np.full((4, 3, 3, 3), np.nan, np.float32)
    graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "weight"))


def _infinite(graph):
    graph.initializer[0].CopyFrom(numpy_helper.from_array(np.full((4, 3, 3, 3), np.inf, np.float32), "weight"))


def _cycle(graph):
    graph.node[0].input[0] = "b"
    graph.node.append(helper.make_node("Relu", ["output"], ["b"], name="back"))


def _twice(graph):
    graph.node.append(helper.make_node("Relu", ["input"], ["output"], name="again"))


CASES = {
    "operator": (lambda g: _set(g, op_type="LSTM"), r"node 'conv' \(LSTM\): the operator LSTM is not supported"),
    "domain": (lambda g: _set(g, domain="com.example"), "domain 'com.example'"),
    "dangling": (lambda g: g.node[0].input.__setitem__(0, "ghost"), "reads 'ghost', which nothing produces"),
    "cycle": (_cycle, "node 'conv' .*cycle"),
    "produced twice": (_twice, "'output' has the name of another tensor"),
    "no output": (lambda g: g.output[0].__setattr__("name", "ghost"), "output 'ghost': no node produces it"),
    "negative dims": (_dims(4, 3, -3, -3), "tensor 'weight': a dimension of -3"),
    "huge dims": (_dims(1 << 40, 3, 3, 3), "tensor 'weight': it holds"),
    "overflowing dims": (_dims(1 << 62, 1 << 62, 3, 3), "tensor 'weight': it holds"),
    "NaN": (_nan, "tensor 'weight': it holds NaN"),
    "infinite": (_infinite, "node 'conv' .*not finite"),
    "channels": (_input_dims(1, 5, 8, 8), "node 'conv' .*do not fit 5 input channels"),
    "huge input": (_input_dims(1, 3, 1 << 24, 1 << 24), "at most 2\\^40"),
    "large input": (_input_dims(1, 3, 1 << 19, 1 << 18), "GiB of memory"),
    "negative input": (_input_dims(1, 3, -8, 8), "input 'input': dimension 2 is -8"),
    "pads": (_attribute("pads", [-1, 0, 0, 0]), "node 'conv' .*padding"),
    "huge pads": (_attribute("pads", [1 << 40] * 4), "node 'conv' .*padding"),
    "strides": (_attribute("strides", [0, 0]), "node 'conv' .*stride"),
    "short strides": (_attribute("strides", [1]), "node 'conv' .*strides"),
    "dilations": (_attribute("dilations", [9, 9]), "node 'conv' .*larger than its input"),
    "groups": (_attribute("group", -1), "node 'conv' .*groups"),
    "kernel": (_attribute("kernel_shape", [5, 5]), "node 'conv' .*kernel_shape"),
    "wrong type": (_attribute("group", "many"), "node 'conv' .*not an integer"),
    "integer weights": (
        lambda g: g.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 3, 3, 3), np.int64), "weight")),
        "node 'conv'",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_hostile_models_are_refused_by_name(name):
    change, message = CASES[name]
    with pytest.raises(ModelError, match=message):
        load(changed(change))


def test_truncated_and_foreign_files_are_refused(tmp_path):
    content = convolution_model().SerializeToString()
    refused = 0
    for end in range(0, len(content), 7):
        try:
            InferenceSession(content[:end], threads=1)
        except ModelError:
            refused += 1
    assert refused > len(content) // 7 - 5
    for junk in (b"", b"\x00" * 100, b"not a model", bytes(range(256))):
        with pytest.raises(ModelError):
            InferenceSession(junk)
    with pytest.raises(ModelError, match="there is no such file"):
        InferenceSession(tmp_path / "none.onnx")


@pytest.mark.parametrize("location", ["../weights", "/etc/hostname", "sub/../../weights", ""])
def test_external_data_outside_the_folder_is_refused(tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "weights").write_bytes(b"\x00" * 432)
    _external(folder / "m.onnx", location, 432)
    with pytest.raises(ModelError, match=r"tensor 'weight': .*outside the model's folder"):
        InferenceSession(folder / "m.onnx")


def test_external_data_is_read_and_its_bounds_checked(tmp_path):
    (tmp_path / "weights").write_bytes(np.ones(108, np.float32).tobytes())
    _external(tmp_path / "m.onnx", "weights", 432)
    image = np.ones((1, 3, 8, 8), np.float32)
    assert InferenceSession(tmp_path / "m.onnx").run(None, {"input": image})[0][0, 0, 4, 4] == 27
    for length, offset in ((432, 4), (436, 0), (432, -4), (432, 1 << 60)):
        _external(tmp_path / "m.onnx", "weights", length, offset)
        with pytest.raises(ModelError, match="tensor 'weight'"):
            InferenceSession(tmp_path / "m.onnx")
    (tmp_path / "link").symlink_to("/etc/hostname")
    _external(tmp_path / "m.onnx", "link", 432)
    with pytest.raises(ModelError, match="outside the model's folder"):
        InferenceSession(tmp_path / "m.onnx")


@pytest.mark.parametrize("location", ["\0", "a\0b", "a" * 5000, "weights/more"])
def test_external_data_under_an_impossible_name_is_refused(tmp_path, location):
    (tmp_path / "weights").write_bytes(bytes(432))
    _external(tmp_path / "m.onnx", location, 432)
    with pytest.raises(ModelError, match=r"tensor 'weight': its data file, .* (cannot be read|is not there)"):
        InferenceSession(tmp_path / "m.onnx")


def _external(path, location: str, length: int, offset: int = 0) -> None:
    model = convolution_model(1)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("op", ["Concat", "Softmax", "Flatten"])
def test_an_axis_that_is_a_list_is_refused(op):
    """Also where batches are looked at for parts that run by themselves."""
    inputs = ["input", "input"] if op == "Concat" else ["input"]
    node = helper.make_node(op, inputs, ["output"], "it", axis=[1, 2])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("input", "output")]
    ends[0] = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 4, 4])
    with pytest.raises(ModelError, match=r"'it'.*attribute axis is not an integer"):
        load(helper.make_model(helper.make_graph([node], "graph", ends[:1], ends[1:])))
