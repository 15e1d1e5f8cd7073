"""Engines take turns on one file, and what they say is compared."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from acdc.errors import ArgumentError
from acdc.serving import engines, timing
from acdc.serving.engines import Engine, EngineMissing


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_PAUSE", 0.0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    node = helper.make_node("Relu", ["input"], ["output"])
    sizes = ["batch", 4]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in ("input", "output")]
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "relu", ends[:1], ends[1:])), path)
    return path


def engine(name: str, answer, turns: list[str]) -> Engine:
    def start(path: Path, threads: int, example: np.ndarray):
        def run(x: np.ndarray) -> np.ndarray:
            turns.append(name)
            return answer(x)

        return run

    return Engine(name, "numpy", "", start)


def test_engines_take_turns_and_are_compared(model: Path) -> None:
    turns: list[str] = []
    same = engine("onnxruntime", lambda x: np.maximum(x, 0), turns)
    other = engine("acdc-runtime", lambda x: np.maximum(x, 0) * 2, turns)
    (table,) = timing.compare_engines(model, [same, other], batches=[3], threads=[1], rounds=4)
    base, doubled = table
    assert [t.engine for t in table] == ["onnxruntime", "acdc-runtime"]
    assert [len(t.ms) for t in table] == [4, 4]
    assert len(turns) == 2 + 4 * 2 * 4, "one run of each to warm up; then four rounds of two turns, of four runs each"
    for start in range(2, len(turns), 8):
        assert {turns[start], turns[start + 4]} == {"onnxruntime", "acdc-runtime"}
        assert len({*turns[start : start + 4]}) == len({*turns[start + 4 : start + 8]}) == 1
    assert base.ratios == [1.0] * 4
    assert base.difference == 0
    assert doubled.difference == pytest.approx(1.0)
    assert not doubled.agrees
    assert doubled.record()["n"] == 4


def test_an_engine_that_cannot_run_says_why_and_the_others_go_on(model: Path) -> None:
    def refuse(path: Path, threads: int, example: np.ndarray):
        raise EngineMissing("no such thing here")

    def crash(path: Path, threads: int, example: np.ndarray):
        raise RuntimeError("broken")

    turns: list[str] = []
    chosen = [
        Engine("torch", "numpy", "", refuse),
        Engine("openvino", "numpy", "", crash),
        engine("onnxruntime", lambda x: x, turns),
    ]
    (table,) = timing.compare_engines(model, chosen, batches=[1], threads=[1], rounds=2)
    assert [t.problem for t in table] == ["no such thing here", "RuntimeError: broken", ""]
    assert table[0].record() == {"engine": "torch", "batch": 1, "threads": 1, "problem": "no such thing here"}
    assert len(turns) == 1 + 2 * 4


def test_batches_that_a_model_does_not_take_are_refused() -> None:
    with pytest.raises(ArgumentError, match="takes batches of 2 alone"):
        timing.example([2, 3], 1)
    with pytest.raises(ArgumentError, match="only the first size"):
        timing.example(["batch", "length"], 1)


def test_engines_are_picked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="expected some of acdc-runtime"):
        engines.pick("tensorflow")
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"not installed; pip install \./runtime"):
        engines.pick("acdc-runtime")
    assert engines.pick(None) == []


def test_torch_runs_the_file(model: Path) -> None:
    from acdc.serving.torch_graph import TorchGraph

    x = np.array([[-1, 0, 1, 2]], np.float32)
    run = engines.ENGINES["torch"].open(model, 1, x)
    assert np.array_equal(run(x), np.maximum(x, 0))
    assert TorchGraph(model).source == "input"
