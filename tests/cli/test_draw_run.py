"""docs/draw_run.py draws what a run folder holds."""

import json
import runpy
from pathlib import Path

import pytest

from acdc.train.rows import Row
from tests.train.test_folder import ROW

SCRIPT = Path(__file__).parents[2] / "docs" / "draw_run.py"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    kinds = ["dense", "sparse", "dense", "sparse"]
    names = ["warm-up", "compressed", "decompressed", "final compressed"]
    rows = [vars(ROW) | {"run": "dense", "epoch": e, "kind": "dense", "phase": "dense"} for e in range(4)]
    for epoch, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        rows.append(vars(ROW) | {"epoch": epoch, "kind": kind, "phase": name, "sparsity": 0.9 * (kind == "sparse")})
    rows[-1]["test_accuracy"] = 1.0  # the logarithm of its error does not exist
    models = [{"test_accuracy": a, "sparsity": s, "flops_ratio": 1 - s} for a, s in ((0.97, 0), (0.91, 0.8), (0.95, 0))]
    config = {"dataset": "digits", "recipe": {"train": {"epochs": 4}, "run": {"seeds": [7]}}, "data": {"test": 400}}
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "result.json").write_text(json.dumps({"models": models}))
    return tmp_path


def test_the_figure_states_the_finding_and_stays_small(run: Path) -> None:
    script = runpy.run_path(str(SCRIPT))
    script["main"](run, run / "figure.svg")
    first = (run / "figure.svg").read_bytes()
    assert first.startswith(b"<?xml")
    assert len(first) < 100_000
    script["main"](run, run / "figure.svg")
    assert (run / "figure.svg").read_bytes() == first, "the same run gives the same file"
    result, config = (json.loads((run / name).read_text()) for name in ("result.json", "config.json"))
    assert script["title"](result) == "80 % of the weights pruned: 91.00 % test accuracy (dense baseline 97.00 %)"
    assert "seed 7" in script["subtitle"](config, result)
    assert "0.20x" in script["subtitle"](config, result)


def test_compressed_phases_are_those_of_the_metrics(run: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    acdc = [row for row in rows if row["run"] == "acdc"]
    assert runpy.run_path(str(SCRIPT))["compressed_phases"](acdc) == [([1], "compressed"), ([3], "final compressed")]
    assert set(acdc[0]) == set(Row.__dataclass_fields__)
