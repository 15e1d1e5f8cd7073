"""The benchmark of dropout in sparse nets: which nets have it, what a row holds, that a run is measured once."""

from pathlib import Path

import pytest
from benchmarks.record import read
from torch import nn

from benchmarks import dropout


def test_a_net_is_trained_by_each_variant_once(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    typed = ["--problems", "tabular", "--epochs", "2", "--seeds", "0", "--jobs", "1", "--results", str(file)]
    typed += ["--sparsities", "0.9", "--commit", "none"]
    assert dropout.main([*typed, "--variants", "kept"]) == 0
    assert dropout.main([*typed, "--variants", "kept", "default"]) == 0
    rows = {row["variant"]: row for row in read(file)}
    assert len(read(file)) == len(rows) == 2, "none was measured twice"
    assert rows["kept"]["config"].get("dropout") is None
    assert rows["default"]["config"]["dropout"] == "scaled"
    assert rows["kept"]["score"] != rows["default"]["score"] > 15
    _, header, (cells,), _ = dropout.table(rows.values())
    shown = dict(zip(header, cells, strict=True))
    assert shown["GMP"] == "–"
    assert shown["default"] == f"{rows['default']['score']:.1f} ({rows['default']['recalibrated']:.1f})"


def test_dense_training_has_one_row_for_all_sparsities(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    typed = ["--problems", "dropout", "--epochs", "1", "--seeds", "0", "--jobs", "1", "--results", str(file)]
    assert dropout.main([*typed, "--variants", "dense", "--commit", "none"]) == 0
    (row,) = read(file)
    assert row["sparsity"] == 0


@pytest.mark.parametrize("problem", ["tabular", "dropout"])
def test_nets_have_dropout_after_each_hidden_layer(problem: str) -> None:
    drops = [m.p for m in dropout.problem_of(problem, None).new_model().modules() if isinstance(m, nn.Dropout)]
    assert drops == [dropout.RATES[problem]] * (3 if problem == "tabular" else 2)


def test_images_are_asked_for() -> None:
    with pytest.raises(SystemExit):
        dropout.main(["--problems", "wide"])
