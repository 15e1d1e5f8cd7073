"""A run's folder: claimed before training, never written over.

config.json        what was run, on what
metrics.jsonl      one line for each epoch and run, written as it ends: the source of every figure
phases.jsonl       one line for each phase: what is zero where, and how the mask moved
predictions.safetensors  every model's logits on the test images, where they are not too many
checkpoints/       the state of the run, to go on from
logs.json          what other services that log the run call it
*.safetensors      the models
report.html        one page that shows what happened
result.json        the final table; there once the run is complete
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from acdc.files import write_bytes


def why_not(out: Path) -> str | None:
    """Why `out` cannot become a run folder, or None. Creates nothing."""
    try:
        if out.exists() and not out.is_dir():
            return "it is a file, and a run needs a folder of its own"
        if out.is_dir() and any(out.iterdir()):
            return "the folder exists and is not empty, and runs are never overwritten"
        nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    except OSError as error:
        return f"it cannot be looked into ({error.strerror})"
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return f"nothing can be written in {nearest}"
    return None


def claim(out: Path | None, name: str) -> Path:
    """Make `out`, or the next free of runs/NAME-0001, runs/NAME-0002 and so on."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        return out
    runs = Path("runs")
    runs.mkdir(exist_ok=True)
    taken = [int(path.name[len(name) + 1 :]) for path in runs.glob(f"{name}-*") if path.name[len(name) + 1 :].isdigit()]
    for number in count(max(taken, default=0) + 1):
        folder = runs / f"{name}-{number:04}"
        try:
            folder.mkdir()
        except FileExistsError:  # another run has just taken it
            continue
        return folder
    raise AssertionError("count() does not end")


def lock(folder: Path) -> int | None:
    """Hold the folder for this process until the handle is closed, or the process ends. None where another holds it."""
    try:
        import fcntl
    except ImportError:  # Windows, which opens no folders either: nothing is held
        return os.open(os.devnull, os.O_RDONLY)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_text(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def trim_metrics(folder: Path, stages: Sequence[str], stage: int, epochs: int) -> int:
    """Drop what a checkpoint after `epochs` epochs of stage number `stage` does not know of: it will run again.

    Return the number of epochs dropped. A line that no run of these stages wrote raises a ValueError, before anything
    changes; only the last line may be cut short, by a crash.
    """
    kept: dict[Path, list[bytes]] = {}
    dropped = 0
    for path in (folder / "metrics.jsonl", folder / "phases.jsonl"):
        if not path.exists():
            continue
        kept[path], lines = [], path.read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                if number == len(lines):  # cut short by a crash
                    continue
                row = None
            place = _place(row, stages)
            if place is None:
                raise ValueError(
                    f'{path} line {number}: expected an object with "run" as one of {", ".join(stages)} and "epoch" as '
                    f"a number from 0, and received {line[:60]!r}; put the run's own file back, or delete the line"
                )
            if place < (stage, epochs):
                kept[path].append(line)
            elif path.name == "metrics.jsonl":
                dropped += 1
    for path, lines in kept.items():
        write_bytes(path, b"".join(line + b"\n" for line in lines))
    return dropped


def _place(row: Any, stages: Sequence[str]) -> tuple[int, int] | None:
    """Return a row's stage, by number, and its epoch; None for what is no row of these stages."""
    if not isinstance(row, dict) or row.get("run") not in stages:
        return None
    epoch = row.get("epoch")
    return (stages.index(row["run"]), epoch) if type(epoch) is int and epoch >= 0 else None


def append(path: Path, row: Any) -> None:
    """One line, on disk when this returns: an interrupted run keeps every epoch it finished."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(row), allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
