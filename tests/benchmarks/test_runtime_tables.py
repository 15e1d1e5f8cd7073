"""The tables of results/runtime.jsonl: of the newest run at each batch size, on all cores."""

import json
from pathlib import Path
from typing import Any

from benchmarks.runtime_tables import runtime_table, speed_block


def row(run: str, model: str, batch: int, ratio: float, **more: Any) -> dict[str, Any]:
    measured = {"ms": 2.0, "ms_min": 1.5, "ratio": ratio, "ratio_q1": ratio - 0.1, "ratio_q3": ratio + 0.1, "n": 5}
    about = {
        "run": run,
        "device_name": "a CPU",
        "cpu": "a CPU",
        "cores": 2,
        "threads": 2,
        "python": "3.11",
        "load": 0.1,
    }
    about |= {"acdc": "0.1", "commit": "abc", "load_seconds": 0.5, "difference": 1e-7, "flops": 0.18}
    return {**about, **measured, "model": model, "batch": batch, "engine": "acdc-runtime", **more}


def test_the_newest_run_at_each_batch_size_is_shown(tmp_path: Path) -> None:
    rows = [
        row("2026-01-01", "net", 1, 2.0),
        row("2026-01-01", "net", 16, 3.0),
        row("2026-01-02", "net", 1, 2.5),
        row("2026-01-02", "net", 1, 1.2, engine="acdc-runtime-avx2"),
        row("2026-01-02", "net", 1, 9.0, threads=1),
    ]
    (tmp_path / "runtime.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    shown = speed_block(tmp_path).splitlines()
    assert shown[0] == "| network | batch 1 | batch 16 | batch 1, AVX2 alone | batch 16, AVX2 alone |"
    assert shown[2] == "| net | 2.50 (2.40–2.60) | 3.00 (2.90–3.10) | 1.20 (1.10–1.30) |  |"


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    assert speed_block(tmp_path) == "Not measured yet.\n"


def test_memory_and_problems_have_their_cells() -> None:
    rows = [row("2026-01-01", "net", 1, 2.0, peak_bytes=100 << 20)]
    rows.append({k: v for k, v in row("2026-01-01", "net", 1, 2.0).items() if k not in ("ms", "ratio")})
    rows[1] |= {"engine": "torch", "problem": "its process was killed by SIGKILL"}
    _, header, cells, _ = runtime_table(rows)
    assert all(len(c) == len(header) for c in cells)
    assert cells[0][header.index("memory")] == "100 MB"
    assert cells[1][header.index("ms")] == "its process was killed by SIGKILL"
