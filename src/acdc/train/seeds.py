"""Several seeds by one command: each in a folder of its own, one after the other or several at a time."""

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from acdc.cli import common
from acdc.io import write_json
from acdc.recipes.schema import Recipe
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import read_object, require
from acdc.runs.records import RunResult
from acdc.train import stopping
from acdc.train.pool import Job, prepare, run_all, stopped, stopped_at_once
from acdc.train.stopping import StopRequest

if TYPE_CHECKING:
    from acdc.train.place import Place

One = Callable[[Recipe, Path, StopRequest], int]
"""Trains one seed in its folder, unless asked to stop, and gives the exit code."""


def train_all(recipe: Recipe, place: "Place", out: Path, jobs: int, one: One) -> int:
    """Every seed that has no result yet; then mean ± standard deviation over all of them."""
    seeds, first, hint = recipe.run.seeds, place.world.first, common.resume(out, place.world.size)
    jobs_of = {seed: Job(f"seed {seed}", RunFolder(out).seed(seed).path) for seed in seeds}
    left = [seed for seed, job in jobs_of.items() if not job.done]

    def begin() -> None:
        config = read_object(RunFolder(out).config) or {"command": "train"}
        write_json(RunFolder(out).config, {**config, "recipe": recipe.to_dict(), "root": place.whole_root})
        for seed in left:
            prepare(recipe.with_seed(seed), jobs_of[seed].folder)

    place.world.on_rank_zero(begin)
    if jobs > 1:
        print(f"{len(left)} seeds, {jobs} at a time; each one's output is in {out}/seed-N.log", flush=True)
        code = run_all(list(jobs_of.values()), place, jobs, hint).code
    else:
        code = _in_turn(jobs_of, recipe, place, one, hint)
    if not code and first:
        _summarise(out, seeds)
        if place.report:
            print(common.report_of(out))
    return code


def _in_turn(jobs_of: dict[int, Job], recipe: Recipe, place: "Place", one: One, hint: str) -> int:
    world = place.world
    with stopping.listening() as stop:
        for seed, job in jobs_of.items():
            if job.done:
                continue
            if world.any(bool(stop), place.device):  # asked for while the seed before was measured
                return stopped(stop, list(jobs_of.values()), hint, world.first)
            if world.first:
                print(f"\nseed {seed}", flush=True)
            try:
                if code := one(recipe.with_seed(seed), job.folder, stop):
                    return code
            except KeyboardInterrupt:  # before it trains, and can say what is lost itself
                return stopped_at_once(list(jobs_of.values()), hint, first=world.first)
    return 0


def _summarise(out: Path, seeds: tuple[int, ...]) -> None:
    results = [require(RunResult, RunFolder(out).seed(seed).result) for seed in seeds]
    models = []
    print(f"\nTest accuracy, mean ± standard deviation over seeds {', '.join(map(str, seeds))}")
    for same in zip(*(result.models for result in results), strict=True):
        values = [row.test_accuracy for row in same]
        mean, std = statistics.fmean(values), statistics.stdev(values)
        models.append({"model": same[0].model, "test_accuracy": mean, "std": std, "values": values})
        print(f"  {same[0].model:<24} {100 * mean:.2f} ± {100 * std:.2f} %")
    write_json(RunFolder(out).result, {"seeds": list(seeds), "models": models})
