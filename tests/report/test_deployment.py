"""Sizes and measured speed on the page of a run: what is there is shown, and what is not leaves no trace."""

import json
from pathlib import Path

import pytest
import torch

from acdc.report import deployment, tables
from acdc.report.compose import compose
from acdc.report.read import read
from acdc.report.write import make
from acdc.runs.speed import save_speed
from acdc.sparsity import packed

ABOUT = {"run": "2026-11-18T04:00:00Z", "cpu": "a processor", "cores": 2, "load": 0.5, "more": "ignored"}


def timed(engine: str, threads: int, ms: float, ratio: float | None = None, batch: int = 1) -> dict[str, object]:
    row = {
        "engine": engine,
        "batch": batch,
        "threads": threads,
        "n": 10,
        "ms": ms,
        "ms_q1": ms * 0.9,
        "ms_q3": ms * 1.1,
    }
    if ratio is None:
        return row
    return {**row, "ratio": ratio, "ratio_q1": ratio - 0.1, "ratio_q3": ratio + 0.1, "difference": 1e-6}


@pytest.fixture
def deployed(run: Path) -> Path:
    """A run whose sparse model is packed, exported as ONNX, shrunk, and measured."""
    weight = torch.where(torch.arange(10_000) % 10 == 0, torch.arange(10_000.0) + 1, 0.0)
    packed.save({"fc.weight": weight}, run / "sparse.safetensors")
    (run / "exports").mkdir()
    (run / "exports" / "sparse.onnx").write_bytes(bytes(40_700))
    (run / "exports" / "sparse-shrunk.onnx").write_bytes(bytes(30_000))
    (run / "exports" / ".sparse.onnx.tmp").write_bytes(bytes(3))
    rows = [timed("onnxruntime", 1, 4.0, 1.0), timed("acdc-runtime", 1, 2.0, 2.0), timed("acdc-runtime", 2, 1.25, 2.4)]
    rows += [timed("acdc-runtime", 2, 9.0, 3.0, batch=16)]
    rows.append({"engine": "torch", "batch": 1, "threads": 1, "problem": "node 'a' is a Resize"})
    save_speed(run, run / "exports" / "sparse.onnx", ABOUT, rows)
    return run


def test_sizes_are_those_of_the_files(deployed: Path) -> None:
    table = tables.sizes(read(deployed))
    assert table is not None
    size = (deployed / "sparse.safetensors").stat().st_size
    assert [row[0] for row in table.rows] == [
        "dense fp32",
        "sparse.safetensors",
        "exports/sparse.onnx",
        "exports/sparse-shrunk.onnx",
    ]
    assert [row[3] for row in table.rows] == ["1.000x", f"{size / 40_000:.3f}x", "1.018x", "0.750x"]
    assert "without dead channels" in table.rows[3][1]


def test_measured_speed_is_on_the_card_and_in_a_table(deployed: Path) -> None:
    report = compose([read(deployed)])
    (card,) = [card for card in report.cards if card.role == "sparse"]
    words = "1.25 ms for one image, 2.40x ONNX Runtime (2 threads, exports/sparse.onnx)"
    assert ("measured", words) in card.rows
    (table,) = [table for table in report.tables if table.name == "speed"]
    assert table.rows[1][1:6] == ["acdc-runtime", "1", "1", "2 (1.8–2.2)", "2.00x (1.90–2.10)"]
    assert len(table.rows) == 4
    assert "torch could not run exports/sparse.onnx: node 'a' is a Resize." in table.note
    assert "a processor, 2 cores, load 0.5 before, 2026-11-18T04:00:00Z" in table.note


@pytest.mark.parametrize("kind", ["html", "md"])
def test_every_format_has_both_tables(kind: str, deployed: Path) -> None:
    path, _ = make([deployed], kind=kind)
    text = path.read_text()
    assert "Measured speed" in text
    assert "exports/sparse-shrunk.onnx" in text


def test_json_holds_every_number(deployed: Path) -> None:
    path, _ = make([deployed], kind="json")
    (run,) = json.loads(path.read_text())["runs"]
    assert {file["name"]: file["bytes"] for file in run["files"]}["exports/sparse.onnx"] == 40_700
    (table,) = run["speed"]
    assert (table["model"], table["bytes"], table["cpu"]) == ("exports/sparse.onnx", 40_700, "a processor")
    assert table["rows"][2]["ratio"] == 2.4


def test_measuring_again_replaces_only_the_same_model(deployed: Path) -> None:
    save_speed(deployed, deployed / "exports" / "sparse-shrunk.onnx", ABOUT, [timed("acdc-runtime", 1, 1.5)])
    save_speed(deployed, deployed / "exports" / "sparse.onnx", ABOUT, [timed("acdc-runtime", 1, 3.0)])
    assert [(table.model, len(table.rows)) for table in read(deployed).speed.models] == [
        ("exports/sparse-shrunk.onnx", 1),
        ("exports/sparse.onnx", 1),
    ]
    found = deployment.fastest(read(deployed))
    assert found is not None
    assert found[1].ms == 1.5


def test_where_nothing_was_measured_nothing_is_shown(run: Path) -> None:
    found = read(run)
    assert (tables.sizes(found), tables.speed(found), deployment.fastest(found)) == (None, None, None)
    assert not any(label == "measured" for card in compose([found]).cards for label, _ in card.rows)


def test_a_damaged_record_is_noted_and_the_rest_shown(deployed: Path) -> None:
    content = json.loads((deployed / "speed.json").read_text())
    content["models"][0]["rows"][0]["ms"] = "fast"
    (deployed / "speed.json").write_text(json.dumps(content))
    found = read(deployed)
    assert tables.speed(found) is None
    assert any("speed.json: models[0].rows[0].ms" in note for note in found.notes)
    assert tables.sizes(found) is not None
