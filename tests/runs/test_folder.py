"""Run folders: numbered, never written over, all or nothing."""

import ast
import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import acdc
from acdc.core import result
from acdc.runs import folder as names
from acdc.runs.folder import ComparisonFolder, RunFolder, Trimmed, claim, trim_metrics, why_not
from acdc.runs.records import CellRecord, Comparison, EpochRow

ROW = EpochRow(
    run="acdc",
    epoch=3,
    step=8,
    phase="compressed",
    kind="sparse",
    loss=0.5,
    train_accuracy=0.75,
    test_accuracy=0.5,
    test_loss=0.7,
    sparsity=0.9,
    flops=1000,
    lr=0.1,
    seconds=1.5,
    eval_seconds=0.5,
)

STAGES = {"dense": range(2), "acdc": range(4), "finetune": range(2, 4)}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_folders_are_numbered_after_the_highest() -> None:
    assert [claim(None, "digits") for _ in range(2)] == [Path("runs/digits-0001"), Path("runs/digits-0002")]
    Path("runs/digits-0041").mkdir()
    Path("runs/digits-best").mkdir()
    Path("runs/cifar-0099").mkdir()
    assert claim(None, "digits") == Path("runs/digits-0042")


def test_a_number_taken_in_the_meantime_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    claim(None, "digits")
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))  # as another run would have seen it a moment ago
    assert claim(None, "digits") == Path("runs/digits-0002")


def test_a_folder_given_is_made_with_its_parents() -> None:
    assert claim(Path("a/b/c"), "digits") == Path("a/b/c")
    assert Path("a/b/c").is_dir()


def test_what_can_become_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("new", "new/deep", "empty"):
        assert why_not(tmp_path / name) is None
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty" / ".config.json.tmp").touch()
    assert why_not(tmp_path / "empty") is None, "a run was killed while it wrote its first file"


def test_what_cannot(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    assert "not empty" in (why_not(tmp_path / "full") or "")
    assert "is a file" in (why_not(tmp_path / "full" / "x") or "")
    assert "is not writable" in (why_not(tmp_path / "full" / "x" / "run") or "")
    assert "cannot be read" in (why_not(tmp_path / ("x" * 5000)) or "")


def test_metrics_are_one_object_a_line(tmp_path: Path) -> None:
    RunFolder(tmp_path).append(ROW)
    RunFolder(tmp_path).append(ROW)
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first == second
    assert (first["run"], first["phase"], first["kind"], first["step"]) == ("acdc", "compressed", "sparse", 8)


def test_what_a_checkpoint_does_not_know_of_is_dropped(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    for run, epoch in (("dense", 0), ("dense", 1), ("acdc", 0), ("acdc", 1), ("acdc", 2)):
        RunFolder(tmp_path).append(replace(ROW, run=run, epoch=epoch))
    with file.open("a") as end:
        end.write('{"run": "acdc", "epo')  # a crash in the middle of a line
    assert trim_metrics(tmp_path, STAGES, 1, 2) == Trimmed(dropped=1)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(row["run"], row["epoch"]) for row in rows] == [("dense", 0), ("dense", 1), ("acdc", 0), ("acdc", 1)]
    assert not (tmp_path / "phases.jsonl").exists()
    assert trim_metrics(tmp_path, STAGES, -1, 0) == Trimmed(dropped=4)
    assert file.read_text() == ""


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"run": "acdc"}', "epoch is missing"),
        ('{"run": "acdc", "epoch": "0"}', 'epoch = "0": expected a whole number'),
        ('{"run": ["acdc"], "epoch": 0}', "run = […]: expected text"),
        ('{"run": "acdc", "epoch": true}', "epoch = true: expected a whole number"),
        ('{"run": "acdc", "epoch": -1}', "epoch = -1: expected a whole number, from 0"),
        (
            json.dumps(asdict(replace(ROW, run="rigl"))),
            'run = "rigl": expected one of its stages, dense, acdc',
        ),
    ],
)
def test_a_line_of_no_run_is_refused_before_anything_changes(tmp_path: Path, line: str, complaint: str) -> None:
    metrics, phases = tmp_path / "metrics.jsonl", tmp_path / "phases.jsonl"
    RunFolder(tmp_path).append(ROW)
    with metrics.open("a") as end:
        end.write(f"{line}\n")
    RunFolder(tmp_path).append(ROW)
    before = metrics.read_bytes()
    with pytest.raises(ValueError, match=re.escape(complaint)):
        trim_metrics(tmp_path, STAGES, 0, 0)
    assert metrics.read_bytes() == before
    metrics.write_text(json.dumps(asdict(ROW)) + "\n")
    phases.write_text('{"run": "acdc"}\n')
    with pytest.raises(ValueError, match=r"phases.jsonl line 1: index is missing; restore the run's own file"):
        trim_metrics(tmp_path, STAGES, 0, 0)
    assert len(metrics.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    "line", [b'{"run": "acdc", "epo', b"\xff\xfe", b"\0\0\0", b"[" * 100_000, b"[]", b"null", b"3"]
)
def test_only_the_last_line_may_be_cut_short(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "metrics.jsonl"
    RunFolder(tmp_path).append(ROW)
    whole = file.read_bytes()
    file.write_bytes(whole + line)
    assert trim_metrics(tmp_path, {"acdc": range(3, 6)}, 0, 4) == Trimmed(0)
    assert file.read_bytes() == whole
    file.write_bytes(line + b"\n" + whole)
    with pytest.raises(ValueError, match=r"metrics.jsonl line 1: it cannot be read .*; restore the run's own file"):
        trim_metrics(tmp_path, {"acdc": range(3, 6)}, 0, 4)


def test_epochs_that_are_missing_before_the_checkpoint_are_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for name, epoch in (("dense", 1), ("acdc", 0), ("acdc", 3), ("finetune", 3)):
        run.append(replace(ROW, run=name, epoch=epoch))
    trimmed = trim_metrics(tmp_path, STAGES, 2, 3)
    assert trimmed == Trimmed(dropped=1, missing={"dense": [0], "acdc": [1, 2], "finetune": [2]})
    said = "metrics.jsonl lacks 4 epochs from before the checkpoint (dense 1; acdc 2, 3; finetune 3)"
    assert (trimmed.warning() or "").startswith(said)
    run.metrics.unlink()
    assert sum(map(len, trim_metrics(tmp_path, STAGES, 1, 4).missing.values())) == 6
    assert trim_metrics(tmp_path, STAGES, -1, 0).warning() is None, "without a checkpoint all are trained again"


@pytest.mark.parametrize(
    ("damage", "restored"),
    [
        (lambda text: text, False),
        (lambda text: text + b'{"run": "acdc", "epo', False),  # a crash in the middle of a line
        (lambda text: text + text, False),  # epochs after the checkpoint, which run again
        (lambda text: text[:-1], True),
        (lambda text: text.split(b"\n", 1)[1], True),
        (lambda text: text.replace(b'"epoch": 3', b'"epoch": 2', 1), True),
        (lambda text: b"", True),
    ],
    ids=["intact", "half a line more", "lines more", "a byte less", "a line less", "another number", "empty"],
)
def test_a_checkpoint_s_lines_replace_what_is_damaged(tmp_path: Path, damage: Any, restored: bool) -> None:
    run, lines = RunFolder(tmp_path), {"metrics": "", "phases": ""}
    for epoch in (3, 4):
        lines["metrics"] += run.append(replace(ROW, epoch=epoch))["metrics"]
    whole = run.metrics.read_bytes()
    assert run.lines() == lines
    run.metrics.write_bytes(found := damage(whole))
    assert run.restore_lines(lines) == (["metrics.jsonl"] if restored else [])
    assert run.metrics.read_bytes() == whole
    aside = tmp_path / "metrics.jsonl.damaged"
    assert (aside.read_bytes() if aside.exists() else None) == (found if restored else None)
    assert not run.phases.exists()


def test_what_a_comparison_writes_is_what_it_reads(tmp_path: Path) -> None:
    folder = ComparisonFolder(tmp_path)
    assert folder.read() is None
    cell = CellRecord(variant="long", method="acdc", settings=("train.epochs=9",), sparsity=0.9, seed=3)
    written = Comparison(
        recipe="digits", epochs=12, commands=("again",), runs={"long": {"a": [1]}}, cells={"long": cell}
    )
    folder.write(written)
    keys = ["recipe", "epochs", "started", "commands", "runs", "cells"]
    content = json.loads(folder.file.read_text())
    assert list(content) == keys
    assert list(content["cells"]["long"]) == ["variant", "method", "settings", "sparsity", "seed"]
    folder.file.write_text(json.dumps(content | {"later": 1}))
    read = folder.read()
    assert read is not None
    assert replace(read, settings={}) == written
    folder.write(replace(read, epochs=13))
    assert json.loads(folder.file.read_text()) == content | {"later": 1, "epochs": 13}, "keys of another version stay"
    assert folder.runs() == []
    (tmp_path / "long").mkdir()
    assert folder.runs() == [tmp_path / "long"]


def test_the_name_of_a_file_is_written_once() -> None:
    """As a string of its own: texts that people read may mention it."""
    run, source = RunFolder(Path()), Path(acdc.__file__).parent
    paths = [getattr(run, name) for name, value in vars(RunFolder).items() if isinstance(value, property)]
    files = {path.name for path in paths if isinstance(path, Path)}
    files |= {ComparisonFolder(Path()).file.name}
    of_a_result = {result.SPARSE, result.DENSE, result.MASKS}  # acdc.Result.save writes them, too
    files |= {names.BASELINE, names.FINETUNED, names.PREDICTIONS, *of_a_result}
    assert len(files) == 18
    spelled = [
        (node.value, str(path.relative_to(source)))
        for path in sorted(source.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and node.value in files
    ]
    elsewhere = dict.fromkeys(of_a_result, "core/result.py") | {"vocabulary.json": "data/vocabulary.py"}
    places = [(name, elsewhere.get(name, "runs/folder.py")) for name in files]
    assert sorted(spelled) == sorted(places)
