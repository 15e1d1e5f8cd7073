"""Kept comparisons of methods, and their tables."""

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from acdc.cli import main
from benchmarks import comparisons, pages
from tests.cli import in_process


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("compared") / "out"
    words = f"compare-methods digits --epochs 4 --methods acdc,static,dense --sparsities 0.9 --seeds 0,1 --out {out}"
    sets = ["--set", "run.recalibrate=true", "--set", "train.batch_size=256"]
    with pytest.MonkeyPatch.context() as monkeypatch:
        in_process.patch(monkeypatch)
        assert main([*words.split(), *sets]) == 0
    return out


def test_a_comparison_is_kept_without_weights_and_places(compared: Path, tmp_path: Path) -> None:
    target = comparisons.keep(compared, "small", tmp_path, "abc123")
    found = json.loads((target / "result.json").read_text())
    assert (found["commit"], found["missing"], len(found["runs"])) == ("abc123", [], 6)
    acdc = next(one for one in found["methods"] if one["method"] == "acdc")
    assert len(acdc["values"]) == len(acdc["recalibrated"]) == 2
    assert "</svg>" in (target / "frontier.svg").read_text()
    with tarfile.open(fileobj=io.BytesIO((target / "runs.tar.xz").read_bytes())) as archive:
        names = archive.getnames()
        config = archive.extractfile("acdc-90-seed0/config.json")
        assert config is not None
        assert "root" not in json.load(config)
        log = archive.extractfile("acdc-90-seed0.log")
        assert log is not None
        text = log.read().decode()
        assert "folder: acdc-90-seed0" in text
        assert str(compared) not in text
    assert not [name for name in names if name.endswith((".safetensors", ".pt"))]
    assert {"comparison.json", "acdc-90-seed0/metrics.jsonl", "acdc-90-seed0.log"} <= set(names)
    _, header, rows, note = comparisons.comparison_table("small", found)
    assert [len(row) for row in rows] == [len(header)] * 3
    assert "abc123" in note
    assert "Not trained" not in note


def test_one_method_alone_is_kept_without_a_frontier(compared: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(compared, alone)
    for folder in [*alone.glob("acdc-*-seed?"), *alone.glob("dense-seed?")]:
        shutil.rmtree(folder)
    target = comparisons.keep(alone, "alone", tmp_path / "results")
    assert sorted(path.name for path in target.iterdir()) == ["result.json", "runs.tar.xz"]
    assert len(comparisons.comparison_table("alone", comparisons.read_all(tmp_path / "results")["alone"])[2]) == 1


def test_a_kept_comparison_may_grow_and_not_shrink(compared: Path, tmp_path: Path) -> None:
    less = tmp_path / "less"
    shutil.copytree(compared, less)
    (less / "static-90-seed1" / "result.json").unlink()
    target = comparisons.keep(less, "small", tmp_path)
    assert json.loads((target / "result.json").read_text())["missing"] == ["static-90-seed1"]
    assert "Not trained yet: at 90 % Static (seed 1)." in comparisons.note(comparisons.read_all(tmp_path)["small"])
    comparisons.keep(compared, "small", tmp_path)
    with pytest.raises(FileExistsError, match=r"holds static-90-seed1, which .* does not"):
        comparisons.keep(less, "small", tmp_path)
    with pytest.raises(FileNotFoundError, match="no complete run"):
        comparisons.keep(tmp_path / "nothing", "other", tmp_path)


def test_agreement_outlives_the_predictions_it_was_counted_from(compared: Path, tmp_path: Path) -> None:
    """A kept comparison that is unpacked to grow has none."""
    comparisons.keep(compared, "small", tmp_path, note="Ended elsewhere.")
    before = comparisons.read_all(tmp_path)["small"]["methods"]
    assert any("agreement_with_dense" in one for one in before)
    unpacked = tmp_path / "unpacked"
    shutil.copytree(compared, unpacked, ignore=shutil.ignore_patterns("predictions.safetensors"))
    comparisons.keep(unpacked, "small", tmp_path)
    again = comparisons.read_all(tmp_path)["small"]
    assert again["methods"] == before
    assert "fractions of dense. Ended elsewhere." in comparisons.note(again), "so does what was noted"


def test_what_the_support_did_is_read_from_what_was_kept(compared: Path, tmp_path: Path) -> None:
    comparisons.keep(compared, "small", tmp_path)
    _, header, rows, note = comparisons.support("small", "acdc-90", tmp_path)
    assert [row[header.index("phase")] for row in rows][-1] == "final compressed"
    assert rows[-1][header.index("ever kept")].endswith("%")
    assert "2 seeds" in note
    with pytest.raises(FileNotFoundError, match="has no run gmp-90"):
        comparisons.support("small", "gmp-90", tmp_path)


def test_the_readme_has_a_row_for_each_method(compared: Path, tmp_path: Path) -> None:
    assert pages._frontier(tmp_path, tmp_path) == ""
    comparisons.keep(compared, "frontier", tmp_path / "results")
    block = pages._frontier(tmp_path / "results", tmp_path)
    assert "](results/comparisons/frontier/frontier.svg)" in block
    assert "| 90% zeros |" in block
    assert {line.split(" | ")[0] for line in block.splitlines()[2:5]} == {"| AC/DC", "| Static", "| dense"}
    assert "zeros: none" in block


def test_zeros_that_training_found_stand_in_the_nearest_column(tmp_path: Path) -> None:
    def one(name: str, asked: float | None, sparsity: float) -> dict[str, Any]:
        return {"name": name, "asked": asked, "sparsity": sparsity, "values": [0.9], "training": 0.5}

    methods = [one("AC/DC", 0.9, 0.9), one("AC/DC", 0.95, 0.95), one("STR-1", None, 0.896), one("STR-2", None, 0.943)]
    kept = {"recipe": "r", "epochs": 1, "methods": methods, "missing": [], "commit": "c", "started": "2026-01-01"}
    folder = tmp_path / "comparisons" / "frontier"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({**kept, "hardware": ["g"], "torch": ["2"]}))
    lines = pages._frontier(tmp_path, tmp_path).splitlines()
    assert "| STR-1 | 90.00 (0.50x), zeros: 89.6% | – |" in lines
    assert "| STR-2 | – | 90.00 (0.50x), zeros: 94.3% |" in lines


def test_what_is_missing_is_told_by_title_and_sparsity() -> None:
    names = ["one_shot-90-seed0", "STR-4e-4-seed0", "rigl-90-seed1", "rigl-90-seed2", "rigl-95-seed0", "dense-seed0"]
    names += ["mine-95-seed1", "other-95-seed0"]
    trained = [{"name": "RigL", "asked": 0.9}, {"name": "dense", "asked": None}, {"name": "mine", "asked": 0.95}]
    told = comparisons.describe_missing({"missing": names, "methods": trained})
    assert told == (
        "at 90 % one-shot, RigL (seed 1 and 2); STR-4e-4, dense (seed 0), other-95; at 95 % RigL, mine (seed 1)"
    )
