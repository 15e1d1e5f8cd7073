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

import os
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from acdc.io import append_json_line, write_bytes
from acdc.measure.dynamics import PhaseEnd
from acdc.runs.json_files import RecordError, read_lines
from acdc.runs.records import EpochRow


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


def trim_metrics(folder: Path, stages: Sequence[str], stage: int, epochs: int) -> int:
    """Drop what a checkpoint after `epochs` epochs of stage number `stage` does not know of: it will run again.

    Return the number of epochs dropped. A line that no run of these stages wrote raises a ValueError, before anything
    changes; only the last line may be cut short, by a crash.
    """
    dropped, kept = 0, dict[Path, list[bytes]]()
    for path, kind in ((folder / "metrics.jsonl", EpochRow), (folder / "phases.jsonl", PhaseEnd)):
        lines = read_lines(kind, path)
        if lines is None:
            continue
        if cut := [error for number, error in lines.cut.items() if number < lines.count]:
            raise cut[0]
        if other := [row.run for row in lines.checked() if row.run not in stages]:
            raise RecordError(path, f'run = "{other[0]}": expected one of its stages, {", ".join(stages)}')
        both = zip(lines.records, lines.texts, strict=True)
        kept[path] = [text + b"\n" for row, text in both if (stages.index(row.run), row.epoch) < (stage, epochs)]
        if kind is EpochRow:
            dropped = len(lines.records) - len(kept[path])
    for path, texts in kept.items():
        write_bytes(path, b"".join(texts))
    return dropped


def append(path: Path, row: Any) -> None:
    """One line, on disk when this returns: an interrupted run keeps every epoch it finished."""
    append_json_line(path, asdict(row))
