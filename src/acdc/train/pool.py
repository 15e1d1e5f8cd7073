"""Several runs at the same time, each a process of its own that writes to its own log."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from acdc.errors import UsageError
from acdc.io import write_json
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint
from acdc.runs.folder import RunFolder
from acdc.train import stopping
from acdc.train.hardware import cores

if TYPE_CHECKING:
    from acdc.train.place import Place


@dataclass(frozen=True)
class Job:
    name: str
    folder: Path
    settings: tuple[str, ...] = ()  # of its own, that it goes on with; they come after those of all

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def done(self) -> bool:
        return RunFolder(self.folder).complete

    @property
    def kept(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return checkpoint.any_in(RunFolder(self.folder).checkpoints)


def read_jobs(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1000:
        raise UsageError([f"--jobs {text}: expected the number of runs to train at the same time; type --jobs 3"])
    return int(text)


def prepare(recipe: Recipe, inner: Path) -> None:
    """A folder from which `acdc train --resume` starts this recipe. One that has begun is left as it is."""
    inner.mkdir(parents=True, exist_ok=True)
    if not RunFolder(inner).begun:
        write_json(RunFolder(inner).config, {"recipe": recipe.to_dict()})


@dataclass(frozen=True)
class Ended:
    code: int  # 0 if all ended well
    stopped: bool  # by a signal, with jobs left


def run_all(jobs: Sequence[Job], place: "Place", at_once: int, resume_hint: str) -> Ended:
    """Every job that has no result yet. A signal is passed on, so that each that trains leaves a checkpoint; so is it
    where nobody reads what is printed here any more.

    A job that fails does not stop the others. A second Ctrl-C ends all of them at once.
    """
    waiting, running, worst = [job for job in jobs if not job.done], {}, 0
    threads = max(1, cores() // at_once)
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    with stopping.listening("stopping what runs; what trains already leaves a checkpoint") as stop:
        told = False
        try:
            while running or (waiting and not stop):
                while waiting and len(running) < at_once and not stop:
                    job = waiting.pop(0)
                    with job.log.open("a") as log:
                        running[job] = subprocess.Popen(_command(place, job), stdout=log, stderr=log, env=environment)
                if stop and not told:
                    told = True
                    for process in running.values():
                        process.send_signal(signal.SIGTERM)
                for job, process in list(running.items()):
                    if (code := process.poll()) is not None:
                        del running[job]
                        worst = worst or (1 if code < 0 else code)  # below 0: killed by a signal
                        stopping.tell(f"{job.name}: {_ended(job, code, stop)} ({_done(jobs)} of {len(jobs)})", stop)
                time.sleep(0.2)
        except KeyboardInterrupt:
            for process in running.values():
                process.kill()
                process.wait()
            return Ended(stopped_at_once(jobs, resume_hint, [*running]), True)
    if stop and not all(job.done for job in jobs):
        return Ended(stopped(stop, jobs, resume_hint), True)
    return Ended(worst, False)


def _ended(job: Job, code: int, stop: stopping.StopRequest) -> str:
    if not code:
        return "done"
    if stop:
        return f"stopped, {'with' if job.kept else 'without'} a checkpoint"
    return f"ended with code {code}, see {job.log}"


def _done(jobs: Sequence[Job]) -> int:
    return sum(job.done for job in jobs)


def stopped(stop: stopping.StopRequest, jobs: Sequence[Job], resume_hint: str, first: bool = True) -> int:
    """The exit code of several runs that were asked to stop; the first process says how to go on."""
    asked = stopping.Stopped(stop.signum or signal.SIGTERM)  # where another process was asked
    if first:
        stopping.complain(f"acdc: stopped {asked}; {left(jobs)}: {resume_hint}")
    return asked.exit_code


def stopped_at_once(jobs: Sequence[Job], resume_hint: str, killed: Sequence[Job] = (), first: bool = True) -> int:
    """As `stopped`, by a second Ctrl-C, which left no time for checkpoints."""
    if first:
        stopping.complain(f"acdc: stopped at once; {left(jobs, killed)}: {resume_hint}")
    return 130


def left(jobs: Sequence[Job], killed: Sequence[Job] = ()) -> str:
    """What there is of them by now, and what is lost of those that were ended as they trained."""
    done, kept = _done(jobs), sum(job.kept and not job.done for job in jobs)
    if not done + kept:
        return "no run has come to a checkpoint; begin again with"
    lost = " and ".join(
        f"what {job.name} trained since its checkpoint" if job.kept else f"all that {job.name} trained"
        for job in killed
        if not job.done
    )
    said = f"of {len(jobs)} runs {done} done and {kept} more with a checkpoint"
    return f"{said}{f'; lost is {lost}' if lost else ''}; go on with"


def _command(place: "Place", job: Job) -> list[str]:
    command = [sys.executable, "-m", "acdc", "train", "--resume", str(job.folder), "--device", place.device.type]
    if place.root is not None:
        command += ["--data", place.root]
    if place.workers is not None:
        command += ["--workers", str(place.workers)]
    if not place.report:
        command.append("--no-report")
    command += [part for text in (*place.settings, *job.settings) for part in ("--set", text)]
    return command + [part for name in place.log for part in ("--log", name)]
