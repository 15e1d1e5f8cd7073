"""A session's face: names, shapes, threads, choices, and several callers at once."""

import json
import threading

import numpy as np
import pytest
from acdc_runtime import InferenceSession, ModelError
from graphs import random_map_graph, seeded

from conftest import assert_close, convolution_model, one_node, reference

R = np.random.default_rng(1)


def images(n: int) -> np.ndarray:
    return R.standard_normal((n, 3, 8, 8)).astype(np.float32)


def test_inputs_and_outputs_are_described():
    session = InferenceSession(convolution_model().SerializeToString(), threads=1)
    assert [(i.name, i.shape, i.type) for i in session.get_inputs()] == [("input", ["batch", 3, 8, 8], "tensor(float)")]
    assert [(o.name, o.shape) for o in session.get_outputs()] == [("output", ["batch", 4, 8, 8])]


def test_any_batch_runs(tmp_path):
    model = convolution_model(weight=R.standard_normal((4, 3, 3, 3)).astype(np.float32))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    session = InferenceSession(path)
    for n in (1, 5, 16, 2, 5):
        x = images(n)
        assert_close(session.run(None, {"input": x}), reference(model, {"input": x}))


@pytest.mark.parametrize("rows", [1, 4])
def test_any_number_of_tokens_runs(rows):
    """One or two tokens read a sparse layer's weights in another order than many do."""
    weight = R.standard_normal((32, 24)).astype(np.float32) * np.repeat(R.random((32, 24 // rows)) < 0.2, rows, axis=1)
    model = one_node("MatMul", {"x": np.zeros((1, 1, 32), np.float32)}, [weight.astype(np.float32)])
    for dimension, name in zip(model.graph.input[0].type.tensor_type.shape.dim, ("batch", "tokens"), strict=False):
        dimension.dim_param = name
    session = InferenceSession(model.SerializeToString(), threads=2)
    for tokens in (1, 2, 3, 130, 1):
        x = {"x": R.standard_normal((1, tokens, 32)).astype(np.float32)}
        assert_close(session.run(None, x), reference(model, x))
    kinds = {str(choice).split("/")[0] for choice in session.choices().values()}
    assert kinds == {"block4" if rows == 4 else "sparse"}


def test_outputs_are_picked_by_name():
    session = InferenceSession(convolution_model().SerializeToString())
    assert len(session.run(["output", "output"], {"input": images(1)})) == 2
    with pytest.raises(ModelError, match=r"output 'nope': the model has no such output"):
        session.run(["nope"], {"input": images(1)})


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"wrong": images(1)}, "input 'wrong': the model has no such input"),
        ({}, "input 'input': it is missing"),
        ({"input": images(1).astype(np.float64)}, "its element type is float64; the model takes float32"),
        ({"input": images(1)[:, :2]}, r"its shape is \[1, 2, 8, 8\]"),
        ({"input": images(1)[0]}, r"its shape is \[3, 8, 8\]"),
    ],
)
def test_wrong_inputs_are_named(feed, message):
    session = InferenceSession(convolution_model().SerializeToString())
    with pytest.raises(ModelError, match=message):
        session.run(None, feed)


def test_an_empty_batch_gives_an_empty_result():
    session = InferenceSession(convolution_model().SerializeToString())
    assert session.run(None, {"input": images(0)})[0].shape == (0, 4, 8, 8)


def test_one_session_serves_several_threads():
    model, inputs = random_map_graph(seeded(5))
    session = InferenceSession(model.SerializeToString(), threads=2)
    expected = session.run(None, inputs)
    wrong: list[int] = []

    def caller() -> None:
        for i in range(50):
            found = session.run(None, inputs)
            if not all(np.array_equal(x, y) for x, y in zip(found, expected, strict=True)):
                wrong.append(i)

    callers = [threading.Thread(target=caller) for _ in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not wrong


def test_choices_are_saved_and_read(tmp_path, monkeypatch):
    content = convolution_model(weight=np.eye(4, 27, dtype=np.float32).reshape(4, 3, 3, 3)).SerializeToString()
    path = tmp_path / "choices.json"
    first = InferenceSession(content, threads=1, choices=path)
    assert json.loads(path.read_text())["version"] == 1
    from acdc_runtime.choices import Choices

    def refuse(*_: object) -> None:
        raise AssertionError("a saved choice was timed again")

    monkeypatch.setattr(Choices, "_fastest", refuse)
    assert InferenceSession(content, threads=1, choices=path).choices() == first.choices()
    path.write_text("{")
    with pytest.raises(ModelError, match="does not hold a session's choices"):
        InferenceSession(content, threads=1, choices=path)


def test_profile_names_every_step():
    weight = np.zeros((4, 3, 3, 3), np.float32)
    weight[0, 0, 0, 0] = 1
    session = InferenceSession(convolution_model(weight=weight).SerializeToString(), threads=1)
    rows = session.profile(runs=1)
    (row,) = [r for r in rows if r["kernel"].startswith("conv")]
    assert row["node"] == "conv"
    assert row["density"] == pytest.approx(1 / 108)
    assert row["ms"] > 0


def test_arguments_are_checked():
    content = convolution_model().SerializeToString()
    with pytest.raises(ValueError, match="threads must be between 1 and 1024"):
        InferenceSession(content, threads=0)
    with pytest.raises(ValueError, match="kernels 'amx' cannot run here"):
        InferenceSession(content, kernels="amx")


def test_arrays_that_are_read_only_run():
    session = InferenceSession(convolution_model().SerializeToString(), threads=2)
    for n in (1, 4):
        x = images(n)
        fixed = np.frombuffer(x.tobytes(), np.float32).reshape(x.shape)
        np.testing.assert_array_equal(session.run(None, {"input": fixed})[0], session.run(None, {"input": x})[0])
