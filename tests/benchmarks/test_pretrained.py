"""The benchmark of pruning a trained net: what a row holds, and that a fine-tuning is measured once."""

from pathlib import Path

import pytest
from benchmarks.record import read

from benchmarks import pretrained


def test_a_trained_net_is_pruned_by_each_variant_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    typed = ["--problems", "encoder", "--sparsities", "0.8", "--seeds", "0", "--jobs", "1", "--results", str(file)]
    assert pretrained.main([*typed, "--variants", "magnitude", "--commit", "none"]) == 0
    assert pretrained.main([*typed, "--variants", "magnitude", "default", "--commit", "none"]) == 0
    rows = {row["variant"]: row for row in read(file)}
    assert len(read(file)) == len(rows) == 2, "none was measured twice"
    assert rows["default"]["dense"] == rows["magnitude"]["dense"] > 50
    assert rows["default"]["zeros"] == pytest.approx(0.8, abs=1e-3)
    assert rows["magnitude"]["score"] < rows["default"]["score"] < rows["default"]["dense"]
    _, header, (cells,), note = pretrained.table(rows.values())
    assert dict(zip(header, cells, strict=True))["GMP"] == "–"
    assert note.endswith("over 1 seed")


def test_images_are_asked_for() -> None:
    with pytest.raises(SystemExit):
        pretrained.main(["--problems", "vit"])
