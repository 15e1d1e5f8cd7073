"""Measurements as JSON lines, each with the hardware, versions, commit and date it was taken with."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import acdc
from acdc.train.hardware import cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"

Row = dict[str, Any]


def environment(device: torch.device, commit: str | None) -> Row:
    """Return what every line of one run shares; `run` distinguishes runs."""
    return {
        "run": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model(),
        "cpu": cpu_model(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),  # 1-minute load before the run: near 0 on a quiet machine
        "torch": torch.__version__,
        "python": platform.python_version(),
        "acdc": acdc.__version__,
        "commit": commit or git_commit(),
    }


def cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def git_commit() -> str | None:
    """Return the commit of the code that runs, marked if src or benchmarks differ from it; None outside a checkout."""

    def git(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "src", "benchmarks")
        return git("rev-parse", "--short=10", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def append(path: Path, rows: Iterable[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
