"""The folders of runs and comparisons: every file by name, claimed before training, never overwritten.

config.json              what was run, on what
metrics.jsonl            one line for each epoch and stage, written when it ends: the source of every figure
phases.jsonl             one line for each phase: what is zero where, and how the mask changed
predictions.safetensors  every model's logits on the test images, if they are not too many
checkpoints/             the state of the run, to resume from
logs.json                the run's name in other services that log it
labels.json              which training images have random labels, if any do
vocabulary.json          the tokens of a language model
*.safetensors            the models and the masks; sparse models and masks are packed (acdc.load reads them)
exports/                 what `acdc export` wrote
speed.json               how fast engines run what was exported, if `acdc bench` has measured it
agreement.json           how far models agree, if `acdc compare --json` wrote it there
report.html              one page that shows what happened
result.json              the final table; exists once the run is complete
*.damaged                checkpoints, metrics or phases that were damaged, under another name

A folder of several seeds holds a run in each of seed-0, seed-1 and so on. A comparison's has a run in each of its
folders, and comparison.json, which says what they compare.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from acdc.core.result import MASKS
from acdc.data.vocabulary import VOCABULARY
from acdc.io import append_json_line, temporary_name, write_bytes, write_json
from acdc.measure.dynamics import PhaseEnd
from acdc.runs.json_files import RecordError, read, read_lines
from acdc.runs.records import Comparison, EpochRow, as_json

BASELINE = "baseline.safetensors"
FINETUNED = "finetuned.safetensors"
PREDICTIONS = "predictions.safetensors"
DAMAGED = ".damaged"  # the suffix of a file that was skipped, and is no longer read


@dataclass(frozen=True)
class RunFolder:
    """The files of a run."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def phases(self) -> Path:
        return self.path / "phases.jsonl"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    @property
    def logs(self) -> Path:
        return self.path / "logs.json"

    @property
    def labels(self) -> Path:
        return self.path / "labels.json"

    @property
    def vocabulary(self) -> Path:
        return self.path / VOCABULARY

    @property
    def agreement(self) -> Path:
        return self.path / "agreement.json"

    @property
    def speed(self) -> Path:
        return self.path / "speed.json"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    @property
    def predictions(self) -> Path:
        return self.path / PREDICTIONS

    @property
    def masks(self) -> Path:
        return self.path / MASKS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def begun(self) -> bool:
        """Return True if the folder holds a run, or one about to start."""
        return self.config.is_file()

    @property
    def complete(self) -> bool:
        return self.result.is_file()

    def models(self) -> list[str]:
        """Return the names of the model files."""
        return [path.name for path in sorted(self.path.glob("*.safetensors")) if path.name not in (MASKS, PREDICTIONS)]

    def seed(self, seed: int) -> "RunFolder":
        """Return the folder of one of several seeds."""
        return RunFolder(self.path / f"seed-{seed}")

    def seeds(self) -> list["RunFolder"]:
        """Return the folders of several seeds, in their order."""
        paths = (path for path in self.path.glob("seed-*") if path.is_dir())
        return [RunFolder(path) for path in sorted(paths, key=lambda path: (len(path.name), path.name))]

    def append(self, row: EpochRow, phase_end: PhaseEnd | None = None) -> dict[str, str]:
        """Write an epoch that has ended, and the phase that ended with it; return the lines, by file, once on disk."""
        lines = {self.metrics.stem: append_json_line(self.metrics, as_json(row))}
        if phase_end is not None:
            lines[self.phases.stem] = append_json_line(self.phases, asdict(phase_end))
        return lines

    def lines(self) -> dict[str, str]:
        """Return the text of the files that `append` writes to, by their names without ending."""
        return {path.stem: path.read_text(encoding="utf-8") if path.exists() else "" for path in self._appended}

    @property
    def _appended(self) -> tuple[Path, Path]:
        return self.metrics, self.phases

    def restore_lines(self, lines: Mapping[str, str]) -> list[str]:
        """Give the files that `append` writes to the lines of a checkpoint; return the names of those that lacked any.

        What comes after these lines is dropped: it will run again. A file that holds others is renamed.
        """
        restored = []
        for path in self._appended:
            known, found = lines[path.stem].encode(), path.read_bytes() if path.is_file() else b""
            if found == known:
                continue
            if not found.startswith(known):
                restored.append(path.name)
                self._set_aside(path)
            write_bytes(path, known)
        return restored

    def set_lines_aside(self) -> None:
        """Rename the files that `append` writes to."""
        for path in self._appended:
            self._set_aside(path)

    def _set_aside(self, path: Path) -> None:
        if path.exists():
            path.replace(path.with_name(f"{path.name}{DAMAGED}"))


@dataclass(frozen=True)
class ComparisonFolder:
    """The folder of `acdc compare-methods`."""

    path: Path

    @property
    def file(self) -> Path:
        return self.path / "comparison.json"

    def read(self) -> Comparison | None:
        """Return the comparison, or None if the folder does not hold one."""
        return read(Comparison, self.file)

    def write(self, comparison: Comparison) -> None:
        """Write the comparison, including keys of another version that were read."""
        content: dict[str, Any] = asdict(comparison)
        write_json(self.file, {**content.pop("settings"), **content})

    def runs(self) -> list[Path]:
        """Return the folders of the runs, in the order they joined."""
        comparison = self.read()
        return [self.path / name for name in comparison.runs if (self.path / name).is_dir()] if comparison else []


# Claiming


def why_not(out: Path) -> str | None:
    """Return why `out` cannot become a run folder, or None. Creates nothing.

    A run that was killed while it wrote its very first file has left no run behind.
    """
    unfinished = temporary_name(RunFolder(out).config).name
    try:
        if out.exists() and not out.is_dir():
            return "it is a file, but a run needs its own folder"
        if out.is_dir() and any(path.name != unfinished for path in out.iterdir()):
            return "the folder is not empty, and runs are never overwritten"
        nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return f"{nearest} is not writable"
    return None


def claim(out: Path | None, name: str) -> Path:
    """Create `out`, or the next free folder of runs/NAME-0001, runs/NAME-0002 and so on."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        return out
    runs = Path("runs")
    runs.mkdir(exist_ok=True)
    used = [int(path.name[len(name) + 1 :]) for path in runs.glob(f"{name}-*") if path.name[len(name) + 1 :].isdigit()]
    for number in count(max(used, default=0) + 1):
        folder = runs / f"{name}-{number:04}"
        try:
            folder.mkdir()
        except FileExistsError:  # another run has just taken it
            continue
        return folder
    raise AssertionError("count() does not end")


def lock(folder: Path) -> int | None:
    """Lock the folder for this process until the handle is closed or the process ends; None if another holds it."""
    try:
        import fcntl
    except ImportError:  # Windows, which cannot open folders either: nothing is locked
        return os.open(os.devnull, os.O_RDONLY)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


# Resuming


@dataclass(frozen=True)
class Trimmed:
    """The epochs of metrics.jsonl that will run again, and those that are missing and will not."""

    dropped: int
    missing: dict[str, list[int]] = field(default_factory=dict)  # by stage, counted from 0

    def warning(self) -> str | None:
        """Return a warning if epochs are missing."""
        if not self.missing:
            return None
        named = "; ".join(
            f"{stage} {', '.join(str(epoch + 1) for epoch in epochs[:5])}{' and more' if len(epochs) > 5 else ''}"
            for stage, epochs in self.missing.items()
        )
        total = sum(map(len, self.missing.values()))
        return (
            f"metrics.jsonl lacks {total} {'epoch' if total == 1 else 'epochs'} from before the checkpoint "
            f"({named}), which reports will not show. To include them, stop this run, restore its own metrics.jsonl "
            "and resume again"
        )


def trim_metrics(out: Path, stages: Mapping[str, range], stage: int, epochs: int) -> Trimmed:
    """Drop what came after a checkpoint at `epochs` epochs of stage number `stage`: it will run again.

    `stages` are the epochs of each stage, in the order they run. A line that no run of these stages wrote raises a
    RecordError before anything changes; only the last line may be truncated, by a crash.
    """
    folder, order = RunFolder(out), list(stages)
    dropped, kept, there = 0, dict[Path, list[bytes]](), set[tuple[str, int]]()
    for path, kind in ((folder.metrics, EpochRow), (folder.phases, PhaseEnd)):
        lines = read_lines(kind, path)
        if lines is None:
            continue
        if cut := [error for number, error in lines.cut.items() if number < lines.count]:
            raise cut[0]
        if other := [row.run for row in lines.checked() if row.run not in stages]:
            raise RecordError(path, f'run = "{other[0]}": expected one of its stages, {", ".join(stages)}')
        both = zip(lines.records, lines.texts, strict=True)
        kept[path] = [text + b"\n" for row, text in both if (order.index(row.run), row.epoch) < (stage, epochs)]
        if kind is EpochRow:
            dropped = len(lines.records) - len(kept[path])
            there = {(row.run, row.epoch) for row in lines.records}
    for path, texts in kept.items():
        write_bytes(path, b"".join(texts))
    missing = {
        name: [epoch for epoch in planned if (index, epoch) < (stage, epochs) and (name, epoch) not in there]
        for index, (name, planned) in enumerate(stages.items())
    }
    return Trimmed(dropped, {name: gaps for name, gaps in missing.items() if gaps})
