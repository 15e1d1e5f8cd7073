"""Engines take turns on one file, and what they say is compared."""

import itertools
import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from acdc.errors import ArgumentError
from acdc.serving import engines, timing
from acdc.serving.engine_process import Worker
from tests.serving.fakes import fake, notes, refusing


@pytest.fixture
def model(tmp_path: Path) -> Path:
    node = helper.make_node("Relu", ["input"], ["output"])
    sizes = ["batch", 4]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name in ("input", "output")]
    path = tmp_path / "relu.onnx"
    onnx.save(helper.make_model(helper.make_graph([node], "relu", ends[:1], ends[1:])), path)
    return path


def runs(model: Path) -> list[list[str]]:
    return [line.split()[1:] for line in notes(model) if line.startswith("run ")]


def pids(model: Path) -> list[int]:
    return [int(line.split()[2]) for line in notes(model) if line.startswith("pid ")]


def test_engines_take_turns_while_the_others_are_stopped(model: Path) -> None:
    chosen = [fake("onnxruntime"), fake("acdc-runtime", factor=2), fake("torch")]
    (table,) = timing.compare_engines(model, chosen, batches=[3], threads=[1], rounds=3)
    base, doubled, _ = table
    assert [t.engine for t in table] == ["onnxruntime", "acdc-runtime", "torch"]
    assert [len(t.ms) for t in table] == [3, 3, 3]
    turns = [name for name, _ in itertools.groupby(run[0] for run in runs(model)[3:])]
    assert sorted(turns[:3]) == sorted(turns[-3:]) == ["acdc-runtime", "onnxruntime", "torch"]
    assert all(run[1] == "TT" for run in runs(model)[3:]), "both others were stopped in every timed run"
    assert base.ratios == [1.0] * 3
    assert base.difference == 0
    assert doubled.difference == pytest.approx(1.0)
    assert not doubled.agrees
    assert doubled.record()["n"] == 3
    assert (doubled.record()["peak_bytes"] or 0) > 1 << 20
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids(model))


def test_an_engine_that_cannot_run_says_why_and_the_others_go_on(model: Path) -> None:
    chosen = [refusing("torch"), fake("openvino", raises=1), fake("onnxruntime"), fake("acdc-runtime", dies=3)]
    (table,) = timing.compare_engines(model, chosen, batches=[1], threads=[1], rounds=2)
    problems = ["no such thing here", "RuntimeError: broken", "", "its process was killed by SIGKILL"]
    assert [t.problem for t in table] == problems
    assert table[0].record() == {"engine": "torch", "batch": 1, "threads": 1, "problem": "no such thing here"}
    assert table[2].ratios == [1.0, 1.0]


def test_without_the_base_there_are_times_and_no_ratios(model: Path) -> None:
    chosen = [fake("onnxruntime", dies=2), fake("acdc-runtime")]
    (table,) = timing.compare_engines(model, chosen, batches=[1], threads=[1], rounds=2)
    assert table[0].problem == "its process was killed by SIGKILL"
    assert len(table[1].ms) == 2
    assert table[1].ratios == []
    assert "ratio" not in table[1].record()


def test_an_interrupt_leaves_no_process(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Worker) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "turn", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(timing.compare_engines(model, [fake("onnxruntime"), fake("torch")], [1], [1], rounds=2))
    assert len(pids(model)) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids(model))


def test_a_killed_parent_leaves_no_process(model: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from acdc.serving.engine_process import Worker; import numpy as np\n"
        "from tests.serving.fakes import fake\n"
        "if __name__ == '__main__':\n"
        "    worker = Worker(fake('torch'), Path(sys.argv[1]), 1, np.ones((1, 4), np.float32))\n"
        "    worker.open(); print('stopped', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "stopped\n"
        (pid,) = pids(model)
        worker = os.pidfd_open(pid)
        parent.kill()
    ended, _, _ = select.select([worker], [], [], 60)
    os.close(worker)
    assert ended, "the stopped process ends with its parent"


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
    with pytest.raises(ArgumentError, match=r"not installed; make an environment .* set ACDC_DEEPSPARSE_PYTHON=DIR"):
        engines.pick("deepsparse")
    monkeypatch.setenv("ACDC_DEEPSPARSE_PYTHON", "python3")
    assert [engine.name for engine in engines.pick(None)] == ["deepsparse"]


def test_an_engine_may_have_an_environment_of_its_own(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our packages it sees acdc alone: not tests, which the interpreter of these tests finds in its folder."""
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("ACDC_TORCH_PYTHON", sys.executable)
    monkeypatch.setenv("ACDC_OPENVINO_PYTHON", "/nowhere/python")
    monkeypatch.setenv("ACDC_ACDC_RUNTIME_PYTHON", sys.executable)
    chosen = [engines.ENGINES["torch"], engines.ENGINES["openvino"], fake("acdc-runtime")]
    (table,) = timing.compare_engines(model, chosen, batches=[1], threads=[1], rounds=1)
    assert len(table[0].ms) == 1
    assert table[1].problem == "/nowhere/python cannot be started: No such file or directory"
    assert table[2].problem == "ModuleNotFoundError: No module named 'tests'"


def test_torch_runs_the_file(model: Path) -> None:
    from acdc.serving.torch_graph import TorchGraph

    x = np.array([[-1, 0, 1, 2]], np.float32)
    run = engines.ENGINES["torch"].open(model, 1, x)
    assert np.array_equal(run(x), np.maximum(x, 0))
    assert TorchGraph(model).source == "input"
