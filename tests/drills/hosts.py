"""The programs that drills disturb: how each starts and goes on, what its checkpoints are, and what must be equal."""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.data.texts import folder as write_texts
from tests.processes import Process, Server

ROOT = Path(__file__).resolve().parents[2]
HF_PYTHON = ROOT / ".venv-integrations" / "bin" / "python"
_CLOCKS = ("seconds", "per_second")
_TEXT = (
    "model.layers=1", "model.width=16", "model.heads=2", "model.context=12", "data.length=12", "data.steps=12",
    "train.batch_size=6", "train.epochs=8", "run.checkpoint_every=3st",
)  # fmt: skip
_METHODS = {
    "acdc": ("train.epochs=8",),
    "rigl": ("train.epochs=8", "method.name=rigl", "method.schedule=", "method.every=10st", "run.baseline=false"),
    "snfs": ("train.epochs=8", "method.name=snfs", "method.schedule=", "run.baseline=false"),
}


@dataclass
class Host:
    """A program that trains in a folder: `arguments` begin a run there, and `again`, if given, resume it."""

    name: str
    arguments: Callable[[Path], Sequence[str | Path]]
    again: Callable[[Path], Sequence[str | Path]] | None
    checkpoints: str  # a pattern; each is a file, or a folder of files
    done: str  # the file that exists once a run is complete
    processes: int = 1
    lines: tuple[str, ...] = ()  # files with a line for each epoch
    env: dict[str, str] = field(default_factory=dict)
    server: Server | None = None  # where it is forked from, other than the shared one

    def start(self, folder: Path, log: Path) -> Process:
        resumes = self.again is not None and (folder / "config.json").exists()
        arguments = self.again(folder) if resumes and self.again else self.arguments(folder)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes)]
        command = [sys.executable, *(launcher if self.processes > 1 else ()), *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **self.env}
        with log.open("ab") as out:
            return Process(command, stdout=out, stderr=out, env=env, cwd=ROOT, server=self.server)

    def newest_first(self, folder: Path) -> list[Path]:
        """Return its checkpoints, the one written last first: those with higher numbers may be left from before."""
        found = (path for path in folder.glob(self.checkpoints) if files_of(path))
        return sorted(found, key=lambda path: max(file.stat().st_mtime_ns for file in files_of(path)), reverse=True)

    def progress(self, folder: Path) -> dict[Path, int]:
        """Return when its checkpoints, and the files with a line for each epoch, were last written."""
        changed = {}
        for path in (*folder.glob(self.checkpoints), *(folder / name for name in (*self.lines, self.done))):
            with contextlib.suppress(OSError):  # it is gone
                changed[path] = path.stat().st_mtime_ns
        return changed

    def complete(self, folder: Path) -> bool:
        return (folder / self.done).exists()

    def differences(self, alone: Path, disturbed: Path) -> list[str]:
        """Return what a disturbed run has other than the one that was left alone."""
        problems = [f"{path.relative_to(disturbed)} is left half-written" for path in disturbed.rglob("*.tmp")]
        models = [path.relative_to(alone) for path in alone.rglob("*.safetensors")]
        assert models, "there is something to compare"
        for name in models:
            if self.checkpoints.split("-")[0] in name.parts[0]:
                continue  # a checkpoint's: the end of the run has the same
            if not (disturbed / name).exists() or (disturbed / name).read_bytes() != (alone / name).read_bytes():
                problems.append(f"{name} differs")
        for name in self.lines or (self.done,):
            if _numbers(alone / name) != _numbers(disturbed / name):
                problems.append(f"{name} differs")
        return problems


def files_of(checkpoint: Path) -> list[Path]:
    return [checkpoint] if checkpoint.is_file() else sorted(path for path in checkpoint.rglob("*") if path.is_file())


def _numbers(path: Path) -> list[Any]:
    """Return the rows of a file without clocks."""
    if not path.exists():
        return ["there is no such file"]
    text = path.read_text()
    rows = map(json.loads, text.splitlines()) if path.suffix == ".jsonl" else json.loads(text)
    return [_without_clocks(row) for row in rows]


def _without_clocks(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_clocks(inner) for key, inner in value.items() if not key.endswith(_CLOCKS)}


def _acdc(name: str, recipe: str, settings: Sequence[str], more: Sequence[str] = (), processes: int = 1) -> Host:
    sets = [part for text in settings for part in ("--set", text)]
    common = [*(() if processes > 1 else ("-m",)), "acdc", "train"]
    if processes > 1:
        common = ["-m", *common]
    tail = ["--device", "cpu", "--no-report"]
    return Host(
        name,
        lambda folder: [*common, recipe, *tail, *more, "--out", folder, *sets],
        lambda folder: [*common, *tail, "--resume", folder],
        checkpoints="checkpoints/*.pt",
        done="result.json",
        processes=processes,
        lines=("metrics.jsonl", "phases.jsonl"),
    )


def build(name: str, place: Path) -> Host:
    """Return a host by its name, with what it needs in a folder that no fault touches."""
    if name in NAMES_OF_METHODS:
        return _acdc(name, "digits", (*_METHODS[NAMES_OF_METHODS[name]], "run.checkpoint_every=9st"))
    if name == "text":
        host = _acdc(name, "text-quick", _TEXT, ("--data", str(write_texts(place / "text", 200, 20))))
        host.env["ACDC_CACHE"] = str(place / "cache")
        return host
    if name == "ddp":
        return _acdc(name, "digits", (*_METHODS["acdc"], "run.checkpoint_every=9st"), processes=2)
    if name == "fsdp":
        script = ROOT / "tests" / "distributed" / "kill_sharded_script.py"
        return Host(name, lambda folder: [script, folder, "-1", "4"], None, "step-*", "losses.json", processes=2)
    assert name == "huggingface", name
    server = Server(("torch", "transformers.trainer", "tests.integrations.hf_models"), HF_PYTHON)
    arguments: Callable[[Path], Sequence[str | Path]] = lambda folder: ["-m", "tests.drills.hf_run", folder]  # noqa: E731
    return Host(name, arguments, None, "checkpoint-*", "log.json", server=server)


NAMES_OF_METHODS = {"images": "acdc", "images, RigL": "rigl", "images, SNFS": "snfs"}
NAMES = (*NAMES_OF_METHODS, "text", "ddp", "huggingface", "fsdp")
