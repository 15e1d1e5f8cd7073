"""Training of several runs: side by side, each in its own process with its own log, or one seed after another."""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acdc.errors import UsageError
from acdc.io import write_json
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import read_object, require
from acdc.runs.quality import quality_of
from acdc.runs.records import RunResult
from acdc.train import stopping
from acdc.train.hardware import cores
from acdc.train.resume import resume_command
from acdc.train.stopping import StopRequest

if TYPE_CHECKING:
    from acdc.train.prepare import RunOptions

TrainSeed = Callable[[Recipe, Path, StopRequest], int]
"""Trains one seed in its folder, unless asked to stop, and returns the exit code."""


@dataclass(frozen=True)
class Job:
    """A run to train in its own folder, started by `acdc train --resume`."""

    name: str
    folder: Path
    settings: tuple[str, ...] = ()  # for this run alone; they come after those for all

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def done(self) -> bool:
        return RunFolder(self.folder).complete

    @property
    def resumable(self) -> bool:
        """Return True if there is a checkpoint to resume from."""
        return checkpoint.any_in(RunFolder(self.folder).checkpoints)


def read_jobs(text: str) -> int:
    """Read the number of runs to train at the same time from the command line."""
    if not text.isdigit() or not 0 < int(text) < 1000:
        raise UsageError([f"--jobs {text}: expected the number of runs to train at a time, for example --jobs 3"])
    return int(text)


def make_folder(recipe: Recipe, path: Path) -> None:
    """Create a folder from which `acdc train --resume` starts this recipe; leave one that has begun as it is."""
    path.mkdir(parents=True, exist_ok=True)
    if not RunFolder(path).begun:
        write_json(RunFolder(path).config, {"recipe": recipe.to_dict()})


@dataclass(frozen=True)
class Ended:
    """The outcome of several runs."""

    code: int  # 0 if all ended well
    stopped: bool  # by a signal, with jobs left


def run_all(jobs: Sequence[Job], options: "RunOptions", at_once: int, resume_hint: str) -> Ended:
    """Train every job that has no result yet, `at_once` of them at a time.

    A signal is passed on, so that each job that is training leaves a checkpoint; so is a closed output pipe. A job
    that fails does not stop the others. A second Ctrl-C kills all of them at once.
    """
    waiting, running, worst = [job for job in jobs if not job.done], {}, 0
    threads = max(1, cores() // at_once)
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    with stopping.listening("stopping all runs; those already training leave a checkpoint") as stop:
        passed_on = False
        try:
            while running or (waiting and not stop):
                while waiting and len(running) < at_once and not stop:
                    job = waiting.pop(0)
                    with job.log.open("a") as log:
                        running[job] = subprocess.Popen(_command(options, job), stdout=log, stderr=log, env=environment)
                if stop and not passed_on:
                    passed_on = True
                    for process in running.values():
                        process.send_signal(signal.SIGTERM)
                for job, process in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[job]
                        worst = worst or (1 if code < 0 else code)  # below 0: killed by a signal
                        stopping.tell(
                            f"{job.name}: {_describe_end(job, code, stop)} ({_count_done(jobs)} of {len(jobs)})", stop
                        )
                time.sleep(0.2)
        except KeyboardInterrupt:
            for process in running.values():
                process.kill()
                process.wait()
            return Ended(stopped_at_once(jobs, resume_hint, [*running]), True)
    if stop and not all(job.done for job in jobs):
        return Ended(stopped(stop, jobs, resume_hint), True)
    return Ended(worst, False)


def _describe_end(job: Job, code: int, stop: stopping.StopRequest) -> str:
    if not code:
        return "done"
    if stop:
        return f"stopped, {'with' if job.resumable else 'without'} a checkpoint"
    return f"ended with code {code}, see {job.log}"


def _count_done(jobs: Sequence[Job]) -> int:
    return sum(job.done for job in jobs)


def stopped(stop: stopping.StopRequest, jobs: Sequence[Job], resume_hint: str, first: bool = True) -> int:
    """Return the exit code of several runs that were asked to stop; the first process prints how to resume."""
    reason = stopping.Stopped(stop.signum or signal.SIGTERM)  # where another process was asked
    if first:
        stopping.complain(f"acdc: {reason}. {describe_progress(jobs)}: {resume_hint}")
    return reason.exit_code


def stopped_at_once(jobs: Sequence[Job], resume_hint: str, killed: Sequence[Job] = (), first: bool = True) -> int:
    """Return the exit code after a second Ctrl-C, which leaves no time for checkpoints."""
    if first:
        stopping.complain(f"acdc: Stopped at once. {describe_progress(jobs, killed)}: {resume_hint}")
    return 130


def describe_progress(jobs: Sequence[Job], killed: Sequence[Job] = ()) -> str:
    """Describe how many jobs finished or have a checkpoint, and what the killed ones lost."""
    done, kept = _count_done(jobs), sum(job.resumable and not job.done for job in jobs)
    if not done + kept:
        return "No run has a checkpoint yet. Start again with"
    lost = " and ".join(
        f"what {job.name} trained since its checkpoint" if job.resumable else f"all that {job.name} trained"
        for job in killed
        if not job.done
    )
    runs = f"{done} of {len(jobs)} runs finished, {kept} {'has' if kept == 1 else 'have'} a checkpoint"
    return f"{runs}. {f'Lost: {lost}. ' if lost else ''}Resume with"


def _command(options: "RunOptions", job: Job) -> list[str]:
    command = [sys.executable, "-m", "acdc", "train", "--resume", str(job.folder), "--device", options.device.type]
    if options.root is not None:
        command += ["--data", options.root]
    if options.workers is not None:
        command += ["--workers", str(options.workers)]
    if not options.report:
        command.append("--no-report")
    command += [part for text in (*options.settings, *job.settings) for part in ("--set", text)]
    return command + [part for name in options.log for part in ("--log", name)]


def train_seeds(recipe: Recipe, options: "RunOptions", out: Path, at_once: int, train: TrainSeed) -> int:
    """Train every seed that has no result yet; then print mean ± standard deviation over all of them."""
    seeds, first, hint = recipe.run.seeds, options.world.first, resume_command(out, options.world.size)
    run = RunFolder(out)
    jobs = {seed: Job(f"seed {seed}", run.seed(seed).path) for seed in seeds}
    remaining = [seed for seed, job in jobs.items() if not job.done]

    def begin() -> None:
        config = read_object(run.config) or {"command": "train"}
        write_json(run.config, {**config, "recipe": recipe.to_dict(), "root": options.absolute_root})
        for seed in remaining:
            make_folder(recipe.with_seed(seed), jobs[seed].folder)

    options.world.on_rank_zero(begin)
    if at_once > 1:
        print(f"{len(remaining)} seeds, {at_once} at a time; the output of each is in {out}/seed-N.log", flush=True)
        code = run_all(list(jobs.values()), options, at_once, hint).code
    else:
        code = _train_in_turn(jobs, recipe, options, train, hint)
    if not code and first:
        _summarise(out, seeds)
    return code


def _train_in_turn(jobs: dict[int, Job], recipe: Recipe, options: "RunOptions", train: TrainSeed, hint: str) -> int:
    world = options.world
    with stopping.listening() as stop:
        for seed, job in jobs.items():
            if job.done:
                continue
            if world.any(bool(stop), options.device):  # requested while the previous seed was being measured
                return stopped(stop, list(jobs.values()), hint, world.first)
            if world.first:
                print(f"\nseed {seed}", flush=True)
            try:
                if code := train(recipe.with_seed(seed), job.folder, stop):
                    return code
            except KeyboardInterrupt:  # before it trains, when it cannot yet say what is lost
                return stopped_at_once(list(jobs.values()), hint, first=world.first)
    return 0


def _summarise(out: Path, seeds: tuple[int, ...]) -> None:
    results = [require(RunResult, RunFolder(out).seed(seed).result) for seed in seeds]
    models, quality = [], quality_of(results[0].models[0])
    print(f"\n{quality.name.capitalize()}, mean ± standard deviation over seeds {', '.join(map(str, seeds))}")
    for same in zip(*(result.models for result in results), strict=True):
        values = [quality.of(row) for row in same]
        mean, std = statistics.fmean(values), statistics.stdev(values)
        models.append({"model": same[0].model, quality.key: mean, "std": std, "values": values})
        print(f"  {same[0].model:<24} {quality.scaled(mean):.2f} ± {quality.scaled(std):.2f}{quality.symbol}")
    write_json(RunFolder(out).result, {"seeds": list(seeds), "models": models})
