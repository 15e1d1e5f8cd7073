"""Several seeds by one command: each in a folder of its own, one after the other or several at a time."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from acdc.cli.errors import UsageError
from acdc.train import folder, stopping
from acdc.train.recipe import Recipe

if TYPE_CHECKING:
    from acdc.cli.train import Place


def read_jobs(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1000:
        raise UsageError([f"--jobs {text}: expected the number of seeds to train at the same time; type --jobs 3"])
    return int(text)


def train_all(recipe: Recipe, place: "Place", out: Path, jobs: int, one: Callable[[Recipe, Path], int]) -> int:
    """Every seed that has no result yet; then mean ± standard deviation over all of them."""
    seeds, first = recipe.run.seeds, place.world.first
    if first and not (out / "config.json").is_file():
        folder.write_json(out / "config.json", {"command": "train", "recipe": recipe.to_dict()})
    left = [seed for seed in seeds if not (out / f"seed-{seed}" / "result.json").is_file()]
    for seed in left if first else ():
        inner = out / f"seed-{seed}"
        inner.mkdir(exist_ok=True)
        if not (inner / "config.json").is_file():
            folder.write_json(inner / "config.json", {"recipe": recipe.with_seed(seed).to_dict()})
    place.world.wait()
    if jobs > 1 and place.world.size > 1:
        raise UsageError([f"--jobs {jobs}: not under torchrun, where each seed uses every process; leave --jobs out"])
    code = _together(left, place, out, jobs) if jobs > 1 else _in_turn(left, recipe, out, one, first)
    if not code and first:
        _summarise(out, seeds)
    return code


def _in_turn(left: list[int], recipe: Recipe, out: Path, one: Callable[[Recipe, Path], int], first: bool) -> int:
    for seed in left:
        if first:
            print(f"\nseed {seed}", flush=True)
        if code := one(recipe.with_seed(seed), out / f"seed-{seed}"):
            return code
    return 0


def _together(left: list[int], place: "Place", out: Path, jobs: int) -> int:
    """A process for each seed, writing to seed-N.log; a signal is passed on to all, so each leaves a checkpoint."""
    print(f"{len(left)} seeds, {jobs} at a time; each one's output is in {out}/seed-N.log", flush=True)
    waiting, running, worst = list(left), {}, 0
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    with stopping.listening() as stop:
        told = False
        while waiting or running:
            while waiting and len(running) < jobs and not stop:
                seed = waiting.pop(0)
                log = (out / f"seed-{seed}.log").open("a")
                running[seed] = subprocess.Popen(
                    _command(place, out / f"seed-{seed}"), stdout=log, stderr=log, env=environment
                )
                log.close()
            if stop and not told:
                told = True
                for process in running.values():
                    process.send_signal(signal.SIGTERM)
            for seed, process in list(running.items()):
                if (code := process.poll()) is not None:
                    del running[seed]
                    worst = worst or code
                    print(f"seed {seed}: {'done' if not code else f'ended with code {code}'}", flush=True)
            if stop and not running:
                break
            time.sleep(0.2)
    if stop:
        print(f"acdc: stopped, each seed with a checkpoint; go on with: acdc train --resume {out}", file=sys.stderr)
        return 128 + (stop.signum or signal.SIGTERM)
    return worst


def _command(place: "Place", inner: Path) -> list[str]:
    command = [sys.executable, "-m", "acdc", "train", "--resume", str(inner), "--device", place.device.type]
    if place.root is not None:
        command += ["--data", place.root]
    if place.workers is not None:
        command += ["--workers", str(place.workers)]
    return command + [part for name in place.log for part in ("--log", name)]


def _summarise(out: Path, seeds: tuple[int, ...]) -> None:
    results = [folder.read_json(out / f"seed-{seed}" / "result.json")["models"] for seed in seeds]
    models = []
    print(f"\nTest accuracy, mean ± standard deviation over seeds {', '.join(map(str, seeds))}")
    for same in zip(*results, strict=True):
        values = [row["test_accuracy"] for row in same]
        mean, std = statistics.fmean(values), statistics.stdev(values)
        models.append({"model": same[0]["model"], "test_accuracy": mean, "std": std, "values": values})
        print(f"  {same[0]['model']:<24} {100 * mean:.2f} ± {100 * std:.2f} %")
    folder.write_json(out / "result.json", {"seeds": list(seeds), "models": models})
