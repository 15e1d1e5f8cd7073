"""Engines for tests, of functions that a worker's process can import. They leave what they saw beside the model."""

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np

from acdc.serving.engines import Engine, EngineMissing, Run


def _note(path: Path, line: str) -> None:
    with path.with_suffix(".notes").open("a") as notes:
        notes.write(line + "\n")


def notes(path: Path) -> list[str]:
    found = path.with_suffix(".notes")
    return found.read_text().splitlines() if found.exists() else []


def _state(pid: int) -> str:
    """Return the system's letter for a process: R or S where it may run, T where it is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _open(
    path: Path, threads: int, example: np.ndarray, name: str, factor: float = 1.0, dies: int = 0, raises: int = 0
) -> Run:
    _note(path, f"pid {name} {os.getpid()}")
    runs = 0

    def run(x: np.ndarray) -> np.ndarray:
        nonlocal runs
        runs += 1
        pids = [int(line.split()[2]) for line in notes(path) if line.startswith("pid ")]
        others = "".join(_state(pid) for pid in pids if pid != os.getpid() and Path(f"/proc/{pid}").exists())
        _note(path, f"run {name} {others}")
        if runs == dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if runs == raises:
            raise RuntimeError("broken\nsecond line")
        return np.maximum(x, 0) * np.float32(factor)

    return run


def _refuse(path: Path, threads: int, example: np.ndarray) -> Run:
    raise EngineMissing("no such thing here")


def fake(name: str, factor: float = 1.0, dies: int = 0, raises: int = 0) -> Engine:
    """Return an engine that takes the ReLU times a factor, and is killed or raises in its n-th run."""
    return Engine(name, ("numpy",), "", partial(_open, name=name, factor=factor, dies=dies, raises=raises))


def refusing(name: str) -> Engine:
    return Engine(name, ("numpy",), "", _refuse)
