"""Fire drills: disturb training runs at random moments until they end, and compare them with ones that were left alone.

    python -m tests.drills [--hosts "images;text"] [--faults 330] [--seed 0] [--record results/faults.jsonl]

Every host trains a tiny model once undisturbed. Then its runs are killed, stopped, paused, run into a full disk and a
read-only folder, and lose or find damaged what they have written, at random moments; each time they go on. At the end
models, masks, twins and metrics must have the same bits as the run that was left alone. `make drills` runs all of it,
`make test` a shorter one (tests/test_drills.py).
"""

import argparse
import contextlib
import functools
import importlib.metadata
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from benchmarks.record import append, environment

from tests import processes
from tests.drills import disk
from tests.drills.drill import drill
from tests.drills.faults import KINDS, ON_A_DISK
from tests.drills.hosts import HF_PYTHON, NAMES, build

_SHARES = {"images": 8, "images, RigL": 2, "images, SNFS": 2, "text": 6, "ddp": 3, "huggingface": 6, "fsdp": 5}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--hosts", default="all", help=f"some of {'; '.join(NAMES)}, separated by ; (default all)")
    parser.add_argument("--faults", type=int, default=330, help="in all, shared out among the hosts (default 330)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="append the counts to this file of JSON lines")
    options = parser.parse_args()
    wanted = NAMES if options.hosts == "all" else tuple(options.hosts.split(";"))
    say = functools.partial(print, flush=True)
    not_run = {name: why for name in wanted if (why := _why_not(name))}
    hosts = [name for name in wanted if name not in not_run]
    total, problems, rows = sum(_SHARES[name] for name in hosts), [], []
    shared = {**environment(torch.device("cpu"), None), **_versions(), "seed": options.seed}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through what must be unmounted
    with contextlib.ExitStack() as stack:
        room = None if (why := disk.why_not()) else stack.enter_context(disk.mounted())
        if why:
            not_run |= {f"{kind} (all hosts)": why for kind in ON_A_DISK}
        stack.callback(processes.stop)
        for name in hosts:
            faults, began = round(options.faults * _SHARES[name] / total), time.monotonic()
            say(f"{name}: {faults} faults, seed {options.seed}")
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            outcome = drill(build(name, place), place, faults=faults, seed=options.seed, disk=room, say=say)
            problems += outcome.problems
            say(f"  {outcome.runs} runs in {time.monotonic() - began:.0f} s")
            new = [
                {**shared, "benchmark": "faults", "host": name, "kind": kind, "count": tally.count}
                | {"recovered": tally.recovered, "seconds": round(tally.seconds, 1), "runs": outcome.runs}
                for kind in KINDS
                if (tally := outcome.tallies.get(kind))
            ]
            rows += new
            if options.record:
                append(options.record, new)
    count, recovered = (sum(row[key] for row in rows) for key in ("count", "recovered"))
    say(f"{count} faults, {recovered} of them in runs that ended equal; hosts: {', '.join(hosts) or 'none'}")
    for name, why in not_run.items():
        say(f"NOT RUN: {name}: {why}")
    for problem in problems:
        print(f"FAILED: {problem}", file=sys.stderr)
    return 1 if problems or not rows else 0


def _why_not(name: str) -> str | None:
    if name not in NAMES:
        return f"there is no such host; choose from {'; '.join(NAMES)}"
    if name == "huggingface" and not HF_PYTHON.exists():
        return "it needs transformers in .venv-integrations: make .venv-integrations/.ready"
    return None


def _versions() -> dict[str, str]:
    versions = {"scikit-learn": importlib.metadata.version("scikit-learn")}
    if HF_PYTHON.exists():
        ask = [HF_PYTHON, "-c", "import importlib.metadata as m; print(m.version('transformers'))"]
        versions["transformers"] = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return versions


if __name__ == "__main__":
    sys.exit(main())
