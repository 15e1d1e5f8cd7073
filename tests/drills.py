"""Fire drills: disturb training runs at random moments until they end, and compare them with ones that were left alone.

    python tests/drills.py [--methods acdc,rigl,snfs] [--processes 1,2] [--kills 6] [--epochs 12] [--seed 0]

One process is killed by SIGKILL and SIGTERM in turns. Of two under torchrun one rank is killed by SIGKILL, either of
them in turns, every other time after the other rank was paused by SIGSTOP and went on by SIGCONT. After each kill the
run goes on with `acdc train --resume`. At the end every model file must have the same bytes, and every row of
metrics.jsonl and phases.jsonl the same numbers, as the run that never stopped. `make test` runs a shorter one
(tests/test_drills.py).
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143}
SETTINGS = {
    "acdc": (),
    "rigl": ("method.name=rigl", "method.schedule=", "method.every=10st", "run.baseline=false"),
    "snfs": ("method.name=snfs", "method.schedule=", "run.baseline=false"),
}


@dataclass(frozen=True)
class Drill:
    folder: Path
    kills: int
    epochs: int
    seed: int
    method: str = "acdc"
    processes: int = 1
    launch: Callable[..., Any] = subprocess.Popen  # or tests.processes.Process, which need not import torch each time

    @property
    def killed(self) -> Path:
        return self.folder / "killed"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self, *arguments: str) -> Any:
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self.processes), "-m"]
        command = [sys.executable, "-m", *(launcher if self.processes > 1 else ()), "acdc", "train", "--device", "cpu"]
        with self.log.open("ab") as out:
            return self.launch(
                [*command, "--no-report", *arguments],
                stdout=out,
                stderr=out,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )

    def begin(self, out: Path) -> Any:
        settings = [part for text in (*SETTINGS[self.method], "run.checkpoint_every=9st") for part in ("--set", text)]
        return self.start("--epochs", str(self.epochs), "--out", str(out), *settings)

    def go_on(self) -> Any:
        began = (self.killed / "config.json").exists()
        return self.start("--resume", str(self.killed)) if began else self.begin(self.killed)


def drill(given: Drill) -> list[str]:
    """Return what differs in the end. Print each kill as it happens."""
    alone, killed = given.folder / "alone", given.killed
    if code := given.begin(alone).wait():
        return [f"the run that was left alone ended with code {code}:\n{given.log.read_text()}"]
    rows = _numbers(alone / "metrics.jsonl")
    epoch = statistics.fmean(_seconds(alone / "metrics.jsonl"))
    rng, problems = random.Random(given.seed), []
    for number in range(given.kills):
        process = given.go_on()
        _wait_for_epochs(process, killed, rng.randint(1, max(1, len(rows) // (given.kills + 1))))
        time.sleep(rng.uniform(0.0, 1.0) * epoch)
        kill = _kill_a_rank if given.processes > 1 else _kill
        told, wrong = kill(process, number)
        print(f"  {told} after {_epochs(killed)} epochs: exit code {process.returncode}", flush=True)
        if (killed / "result.json").exists():
            break
        problems += wrong
    if not (killed / "result.json").exists() and (code := given.go_on().wait()):
        return [*problems, f"the last resume ended with code {code}:\n{given.log.read_text()[-2000:]}"]
    return problems + _differences(alone, killed)


def _kill(process: Any, number: int) -> tuple[str, list[str]]:
    sent = (signal.SIGKILL, signal.SIGTERM)[number % 2]
    process.send_signal(sent)
    code = process.wait()
    return sent.name, [] if code == CODES[sent] else [f"{sent.name} gave exit code {code}, expected {CODES[sent]}"]


def _kill_a_rank(process: Any, number: int) -> tuple[str, list[str]]:
    """Kill rank 0 and rank 1 in turns: twice at once, then twice after a pause of the other rank, and so on."""
    rank = number % 2
    ranks = _ranks(process.pid)
    if len(ranks) < 2:  # it has just ended
        process.wait()
        return "nothing", []
    told = f"SIGKILL of rank {rank}"
    if number % 4 >= 2:
        told = f"SIGSTOP and SIGCONT of rank {1 - rank}, {told}"
        os.kill(ranks[1 - rank], signal.SIGSTOP)
        while _state(ranks[1 - rank]) not in "TZX":
            time.sleep(0.01)
        time.sleep(0.3)  # the other waits for it meanwhile
        os.kill(ranks[1 - rank], signal.SIGCONT)
    os.kill(ranks[rank], signal.SIGKILL)
    code = process.wait()
    return told, [] if code else [f"{told} gave exit code 0, and no result.json"]


def _ranks(launcher: int) -> dict[int, int]:
    """The processes that a launcher started, by their rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    found = {}
    for child in children.read_text().split() if children.exists() else ():
        try:
            settings = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        found |= {int(text.removeprefix(b"RANK=")): int(child) for text in settings if text.startswith(b"RANK=")}
    return found


def _state(process: int) -> str:
    """T where a process is stopped, X where there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def _differences(alone: Path, killed: Path) -> list[str]:
    problems = [f"{path.name} is left half-written" for path in killed.rglob("*.tmp")]
    for file in sorted(alone.glob("*.safetensors")):
        if not (killed / file.name).exists() or (killed / file.name).read_bytes() != file.read_bytes():
            problems.append(f"{file.name} differs")
    for name in ("metrics.jsonl", "phases.jsonl"):
        if _numbers(alone / name) != _numbers(killed / name):
            problems.append(f"{name} differs")
    return problems


def _epochs(folder: Path) -> int:
    file = folder / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def _wait_for_epochs(process: Any, folder: Path, more: int) -> None:
    """Wait until the run has finished so many more, or has ended."""
    enough = _epochs(folder) + more
    while process.poll() is None and _epochs(folder) < enough:
        time.sleep(0.02)


def _numbers(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def _seconds(path: Path) -> list[float]:
    return [json.loads(line)["seconds"] for line in path.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--methods", default=",".join(SETTINGS), help=f"some of {', '.join(SETTINGS)} (default all)")
    parser.add_argument("--processes", default="1,2", help="how many each run has (default 1,2: each in turn)")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failed = False
    for processes in map(int, options.processes.split(",")):
        for method in options.methods.split(","):
            several = f", {processes} processes" if processes > 1 else ""
            print(f"{method}{several}: {options.kills} kills in {options.epochs} epochs", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                given = Drill(Path(folder), options.kills, options.epochs, options.seed, method, processes)
                problems = drill(given)
            for problem in problems:
                print(f"  FAILED: {problem}", file=sys.stderr)
            print("  the drill failed" if problems else "  the killed run is the run that was left alone", flush=True)
            failed |= bool(problems)
    return failed


if __name__ == "__main__":
    sys.exit(main())
