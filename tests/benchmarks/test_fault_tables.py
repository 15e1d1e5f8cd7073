"""The table of faults shows the newest drill, and says what failed and what was not run."""

import json
from pathlib import Path

from benchmarks import fault_tables

ROW = {
    "run": "2026-11-18T07:00:00Z", "cpu": "a CPU", "cores": 2, "torch": "2.13.0", "transformers": "5.0",
    "python": "3.11", "acdc": "0.1.0", "commit": "abc", "seed": 7, "runs": 3,
}  # fmt: skip


def write(results: Path, *rows: tuple[str, str, int, int], run: str = ROW["run"]) -> None:
    with (results / "faults.jsonl").open("a") as file:
        for host, kind, count, recovered in rows:
            row = {**ROW, "run": run, "host": host, "kind": kind, "count": count, "recovered": recovered}
            file.write(json.dumps(row) + "\n")


def test_each_host_s_newest_drill_is_shown(tmp_path: Path) -> None:
    assert fault_tables.block(tmp_path) == ""
    write(tmp_path, ("text", "SIGKILL", 90, 0), ("text", "SIGINT", 9, 0), run="2026-11-17T07:00:00Z")
    write(tmp_path, ("text", "SIGKILL", 4, 4), ("images", "SIGKILL", 5, 5), ("images", "disk full", 2, 2))
    head, _, full, kill, total, runs, _, note = fault_tables.block(tmp_path).splitlines()
    assert head == "| fault | `acdc train`, images | `acdc train`, text | all |"
    assert full == "| disk full | 2 | – | 2 |"
    assert kill == "| SIGKILL | 5 | 4 | 9 |"
    assert total == "| all | 7 | 4 | **11** |"
    assert runs == "| runs | 3 | 3 | 6 |"
    assert "Every run ended equal. Not run: the same, RigL, " in note
    assert "--seed 7" in note


def test_failures_are_shown(tmp_path: Path) -> None:
    write(tmp_path, ("text", "SIGKILL", 4, 3))
    text = fault_tables.block(tmp_path)
    assert "| SIGKILL | 4 (3 ended equal) |" in text
    assert "1 faults in runs that did not end equal" in text
    assert "Every run" not in text
