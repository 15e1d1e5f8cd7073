"""acdc bench: the table it prints, the lines it keeps, and what it refuses."""

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from acdc.cli import main
from acdc.serving import engines
from tests.serving.fakes import fake


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("input", "output")]
    graph = helper.make_graph([helper.make_node("Relu", ["input"], ["output"])], "relu", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph), tmp_path / "relu.onnx")
    return tmp_path / "relu.onnx"


def test_a_table_is_printed_and_kept(model: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    known = {n: fake(n) for n in ("onnxruntime", "acdc-runtime")}
    monkeypatch.setattr(engines, "ENGINES", known)
    kept = tmp_path / "bench.jsonl"
    typed = ["bench", str(model), "--batch", "1,2", "--threads", "1", "--rounds", "3", "--json", str(kept)]
    assert main([*typed, "--engines", "acdc-runtime,onnxruntime"]) == 0
    out = capsys.readouterr().out
    assert "batch 1, threads 1" in out
    assert "batch 2, threads 1" in out
    assert out.count("acdc-runtime") == 2
    rows = [json.loads(line) for line in kept.read_text().splitlines()]
    assert [(r["engine"], r["batch"], r["n"]) for r in rows] == [
        (e, b, 3) for b in (1, 2) for e in ("acdc-runtime", "onnxruntime")
    ]
    assert all(r["difference"] == 0 and r["model"] == "relu.onnx" for r in rows)


def test_a_run_is_exported_measured_and_remembered(model: Path, tmp_path: Path, capsys, monkeypatch) -> None:
    known = {n: fake(n) for n in ("onnxruntime", "acdc-runtime")}
    monkeypatch.setattr(engines, "ENGINES", known)
    run = tmp_path / "run"
    sets = ["--set", "run.baseline=false", "--set", "run.finetune=false"]
    assert main(["train", "--no-report", "--epochs", "4", "--out", str(run), *sets]) == 0
    capsys.readouterr()
    typed = ["--batch", "1", "--threads", "1", "--rounds", "2", "--engines", "acdc-runtime,onnxruntime"]
    assert main(["bench", str(run), *typed]) == 0
    assert f"kept in {run / 'speed.json'}; acdc report {run} shows it" in capsys.readouterr().out
    first = (run / "exports" / "sparse.onnx").stat()
    assert main(["bench", str(run / "exports" / "sparse.onnx"), *typed]) == 0
    assert (run / "exports" / "sparse.onnx").stat().st_mtime_ns == first.st_mtime_ns, "it is not exported again"
    (table,) = json.loads((run / "speed.json").read_text())["models"]
    assert table["model"] == "exports/sparse.onnx"
    assert [row["engine"] for row in table["rows"]] == ["acdc-runtime", "onnxruntime"]
    assert main(["bench", str(model), *typed]) == 0
    assert not (model.parent / "speed.json").exists(), "it belongs to no run"


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["none.onnx"], "there is no such file or folder"),
        (["FOLDER"], "holds no run (no config.json)"),
        (["MODEL", "--batch", "0"], "--batch 0: expected whole numbers from 1"),
        (["MODEL", "--rounds", "1,2"], "--rounds 1,2: expected"),
        (["MODEL", "--engines", "magic"], "expected some of acdc-runtime"),
    ],
)
def test_mistakes_are_refused(typed: list[str], message: str, model: Path, capsys) -> None:
    names = {"MODEL": str(model), "FOLDER": str(model.parent)}
    assert main(["bench", *[names.get(t, t) for t in typed]]) == 2
    assert message in capsys.readouterr().err
