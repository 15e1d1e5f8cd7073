"""The benchmark of dense twins: what a row holds, and that a run is measured once."""

from pathlib import Path

import pytest
from benchmarks.record import read

from benchmarks import twins


def test_a_twin_is_fine_tuned_over_the_rest_of_the_run(tmp_path: Path) -> None:
    file = tmp_path / "twins.jsonl"
    typed = ["--problems", "mlp", "--epochs", "8", "--results", str(file), "--commit", "none"]
    assert twins.main([*typed, "--seeds", "0", "--variants", "paper", "dense"]) == 0
    assert twins.main([*typed, "--seeds", "0"]) == 0
    rows = {row["variant"]: row for row in read(file)}
    assert len(read(file)) == len(rows) == len(twins.VARIANTS), "none was measured twice"
    assert rows["dense"]["training"] == 1
    assert rows["default"]["twin_epoch"] < rows["default, twin late"]["twin_epoch"] == 7
    for name in ("paper", "default", "default, twin late"):
        row = rows[name]
        assert row["finetuned_training"] <= 1
        assert row["finetuned"] > 90, "a dense model"
    saved = 1 - rows["default, twin late"]["finetuned_training"]
    assert saved > 0.1, "the compressed phases before the late twin count as such"
    _, _, cells, note = twins.table(rows.values())
    assert [line[2] for line in cells] == [name for name in twins.VARIANTS if name != "dense"]
    assert cells[0][-1] == f"{rows['dense']['accuracy']:.2f}"
    assert "over 1 seed;" in note


def test_images_are_asked_for() -> None:
    with pytest.raises(SystemExit):
        twins.main(["--problems", "cifar"])
