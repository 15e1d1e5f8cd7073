"""Fire drills: kill a training run at random moments until it ends, and compare it with one that was left alone.

    python tests/drills.py [--kills 6] [--epochs 12] [--seed 0]

SIGKILL and SIGTERM take turns. After each the run goes on with `acdc train --resume`. At the end every model file must
have the same bytes, and every row of metrics.jsonl and phases.jsonl the same numbers, as the run that never stopped.
Takes about a minute on two cores; `make test` runs a shorter one (tests/test_drills.py).
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CODES = {signal.SIGKILL: -9, signal.SIGTERM: 143}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "acdc", "train", "--device", "cpu", *arguments]


def run(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(arguments, stdout=out, stderr=out, env={**os.environ, "OMP_NUM_THREADS": "1"})


def drill(folder: Path, kills: int, epochs: int, seed: int) -> list[str]:
    """What differs in the end. Prints each kill as it happens."""
    alone, killed, log = folder / "alone", folder / "killed", folder / "log"
    settings = ["--epochs", str(epochs), "--set", "run.checkpoint_every=9st"]
    start = time.monotonic()
    code = run(command("--out", str(alone), *settings), log).wait()
    seconds = time.monotonic() - start
    if code:
        return [f"the run that was left alone ended with code {code}:\n{log.read_text()}"]
    rng, first = random.Random(seed), command("--out", str(killed), *settings)
    problems = []
    for number in range(kills):
        arguments = command("--resume", str(killed)) if (killed / "config.json").exists() else first
        process = run(arguments, log)
        _wait_for_an_epoch(process, killed)
        time.sleep(rng.uniform(0.0, 0.5) * seconds / kills)
        sent = (signal.SIGKILL, signal.SIGTERM)[number % 2]
        process.send_signal(sent)
        code = process.wait()
        done = len((killed / "metrics.jsonl").read_text().splitlines()) if (killed / "metrics.jsonl").exists() else 0
        print(f"{sent.name} after {done} epochs: exit code {code}", flush=True)
        if (killed / "result.json").exists():
            break
        if code != CODES[sent]:
            problems.append(f"{sent.name} gave exit code {code}, expected {CODES[sent]}")
        if list(killed.glob("*.tmp")):
            problems.append("a half-written file is left")
    if not (killed / "result.json").exists():
        code = run(command("--resume", str(killed)), log).wait()
        if code:
            return [*problems, f"the last resume ended with code {code}:\n{log.read_text()[-2000:]}"]
    for file in sorted(alone.glob("*.safetensors")):
        if (killed / file.name).read_bytes() != file.read_bytes():
            problems.append(f"{file.name} differs")
    for name in ("metrics.jsonl", "phases.jsonl"):
        if _numbers(alone / name) != _numbers(killed / name):
            problems.append(f"{name} differs")
    return problems


def _wait_for_an_epoch(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until the run has finished one more, or has ended."""

    def finished() -> int:
        file = folder / "metrics.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    before = finished()
    while process.poll() is None and finished() <= before:
        time.sleep(0.02)


def _numbers(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if "seconds" not in key} for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        problems = drill(Path(folder), options.kills, options.epochs, options.seed)
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    print("the killed run is the run that was left alone" if not problems else "the drill failed")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
