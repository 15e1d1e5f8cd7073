"""Batches that run in parts, whole or cut in two, give what their images give one by one."""

import numpy as np
import onnx
import pytest
from acdc_runtime import InferenceSession, batches, choices, load, session, simplify
from onnx import TensorProto, helper, numpy_helper

from conftest import assert_close, reference


def network(residual_across: bool = False) -> onnx.ModelProto:
    """Return three convolutions, the second with a stride, and a classifier; maps of 224 pixels, then of 56."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = random.standard_normal(shape) * (random.random(shape) < 0.3)
        return numpy_helper.from_array(values.astype(np.float32), name)

    def conv(x: str, name: str, stride: int) -> onnx.NodeProto:
        return helper.make_node("Conv", [x, name], [f"{name}.out"], pads=[1] * 4, strides=[stride] * 2, name=name)

    nodes = [
        conv("input", "a", 1), helper.make_node("Relu", ["a.out"], ["wide"]), conv("wide", "b", 2),
        conv("b.out", "c", 1),
        helper.make_node("GlobalAveragePool", ["c.out"], ["mean"]), helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "fc"], ["output"], transB=1),
    ]  # fmt: skip
    if residual_across:  # the input is read again at the end, so that two tensors pass every place
        nodes[-1].output[0] = "logits"
        nodes += [
            helper.make_node("GlobalAveragePool", ["input"], ["input.mean"]),
            helper.make_node("Flatten", ["input.mean"], ["input.flat"]),
            helper.make_node("Concat", ["logits", "input.flat"], ["output"], axis=1),
        ]
    weights = [weight("a", 8, 3, 3, 3), weight("b", 12, 8, 3, 3), weight("c", 12, 12, 3, 3), weight("fc", 5, 12)]
    ends = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 16, 14]),
        helper.make_tensor_value_info("output", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch):
    """Let the maps of 56 pixels be small, and a part be one image."""
    monkeypatch.setattr(batches, "_SMALL", 4 * 12 * 56)
    monkeypatch.setattr(session, "_PART_BYTES", 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("images", [1, session._TOGETHER])
@pytest.mark.parametrize("batch", [8, 9, 15])
def test_parts_of_a_batch_agree_with_onnxruntime(threads, images, batch, monkeypatch):
    def one_way(self, key, ways):
        return next(run for way, run in ways.items() if way.block == images)()

    monkeypatch.setattr(choices.Choices, "fastest_way", one_way)
    model = network()
    x = np.random.default_rng(1).standard_normal((batch, 3, 16, 14)).astype(np.float32)
    found = InferenceSession(model.SerializeToString(), threads=threads).run(None, {"input": x})
    assert_close(found, reference(model, {"input": x}))


def test_the_faster_way_is_timed_once_and_kept(tmp_path):
    x = np.ones((8, 3, 16, 14), np.float32)
    path = tmp_path / "choices.json"
    first = InferenceSession(network().SerializeToString(), threads=1, choices=path)
    first.run(None, {"input": x})
    (key,) = [k for k in first.choices() if k.startswith("batch 8 threads1")]
    assert first.choices()[key] in ("images/1", f"images/{session._TOGETHER}")
    again = InferenceSession(network().SerializeToString(), threads=1, choices=path)
    assert again.choices()[key] == first.choices()[key]
    plain = InferenceSession(network().SerializeToString(), threads=1, tune=False)
    plain.run(None, {"input": x})
    assert plain.choices()[key] == "images/1"


def shapes_of(graph) -> dict[str, tuple[int, ...]]:
    return {"input": (1, 3, 16, 14), "wide": (1, 8, 16, 14), "b.out": (1, 12, 8, 7), "c.out": (1, 12, 8, 7)}


def test_a_model_is_cut_where_maps_become_small():
    graph = simplify.simplify(load.load_graph(network().SerializeToString()))
    found = batches.cut(graph, shapes_of(graph))
    assert found is not None
    assert (found.name, found.shape) == ("wide", (1, 8, 16, 14))
    assert [n.op for n in found.head.nodes] == ["Conv", "Relu"]
    assert found.tail.inputs[0].name == "wide"
    assert len(found.head.nodes) + len(found.tail.nodes) == len(graph.nodes)


def test_a_model_is_not_cut_where_two_tensors_pass_or_images_are_not_whole_tiles(monkeypatch):
    graph = simplify.simplify(load.load_graph(network(residual_across=True).SerializeToString()))
    assert batches.cut(graph, shapes_of(graph)) is None
    graph = simplify.simplify(load.load_graph(network().SerializeToString()))
    assert batches.cut(graph, {**shapes_of(graph), "wide": (1, 8, 15, 14)}) is None
    monkeypatch.setattr(batches, "_SMALL", 0)
    assert batches.cut(graph, shapes_of(graph)) is None
