"""One drill: a host's run that is left alone, and runs that are disturbed again and again until they end like it."""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired

from tests.drills.disk import Disk
from tests.drills.faults import KINDS, Run, kill, kinds_for
from tests.drills.hosts import Host
from tests.waiting import HANG

_EARLY = 0.15  # the share of faults that come at any time after the start, also before the first step
_RARE = "all checkpoints damaged"  # so often a run would seldom end


@dataclass
class Tally:
    """Faults of one kind: how many, in how many of them the run ended as it had to, and the seconds they took."""

    count: int = 0
    recovered: int = 0
    seconds: float = 0.0


@dataclass
class Outcome:
    tallies: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    runs: int = 0
    problems: list[str] = field(default_factory=list)


def drill(
    host: Host,
    folder: Path,
    *,
    faults: int,
    seed: int,
    per_run: int = 10,
    disk: Disk | None = None,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Disturb runs of this host until there were so many faults. `folder` is one that no fault touches."""
    alone, log = folder / "alone", folder / "log"
    outcome = Outcome()
    began = time.monotonic()
    if host.start(_empty(alone), log).wait(HANG) or not host.complete(alone):
        outcome.problems.append(f"the run that was left alone failed:\n{log.read_text()[-3000:]}")
        return outcome
    typical = time.monotonic() - began
    random = Random(f"{seed} {host.name}")
    kinds = _kinds(random, kinds_for(host, disk is not None))
    left = faults
    while left > 0:
        place = _empty((disk.path if disk else folder) / f"{host.name.replace(', ', '-')}-{outcome.runs}")
        run = Run(host, place, folder / f"log-{outcome.runs}", random, disk)
        done: list[tuple[str, float]] = []
        problems: list[str] = []
        try:
            problems += disturb(run, kinds, min(left, per_run), typical, done, say)
            problems += finish(run, alone, say)
        except (TimeoutError, TimeoutExpired):
            problems.append(f"it hangs:\n{run.text()[-3000:]}")
            kill(run)
        for kind, seconds in done:
            tally = outcome.tallies[kind]
            tally.count, tally.seconds = tally.count + 1, tally.seconds + seconds
            tally.recovered += not problems
        left -= len(done)
        outcome.runs += 1
        outcome.problems += [f"{host.name}, run {outcome.runs}: {problem}" for problem in problems]
        say(f"  {host.name}, run {outcome.runs}: {len(done)} faults, " + ("FAILED" if problems else "ended equal"))
        for problem in problems:
            say(f"  FAILED: {problem}")
        shutil.rmtree(place)
        if not done and outcome.runs > 2 * faults:
            outcome.problems.append(f"{host.name}: runs end before a fault meets them")
            break
    return outcome


def disturb(
    run: Run,
    kinds: Iterator[str],
    faults: int,
    typical: float,
    done: list[tuple[str, float]],
    say: Callable[[str], None],
) -> list[str]:
    """Disturb one run; add each fault that met a process, with its seconds, to `done`; return what went wrong."""
    problems: list[str] = []
    while len(done) < faults:
        began = time.monotonic()
        if run.process is None or run.process.poll() is not None:
            if run.host.complete(run.folder):
                break
            run.start()
            problems += _get_on(run, typical)
        else:  # after a pause
            _wait_for_progress(run, 1)
        if run.alive.poll() is not None:
            if run.alive.wait() and not run.host.complete(run.folder):
                problems.append(f"a start ended with code {run.alive.returncode}:\n{run.text()[-3000:]}")
                break
            continue
        kind = next(kinds)
        before = run.host.progress(run.folder)
        newest = max(before, key=lambda path: before[path]).name if before else "the start"
        problems += KINDS[kind](run)
        code = run.alive.poll()
        if run.host.complete(run.folder):  # it had just ended
            break
        done.append((kind, time.monotonic() - began))
        say(f"    {kind}: after {newest}" + ("" if code is None else f", exit code {code}"))
    return problems


def finish(run: Run, alone: Path, say: Callable[[str], None]) -> list[str]:
    """Let a run end undisturbed; return what differs from the one that was left alone."""
    problems = []
    if run.process is not None and run.process.wait(HANG) == 0 and not run.host.complete(run.folder):
        return [f"exit code 0, but it is not complete:\n{run.text()[-3000:]}"]
    if not run.host.complete(run.folder):
        run.start()
        code, complete = run.alive.wait(HANG), run.host.complete(run.folder)
        problems = _unsaid(run)
        # torch aborted a rank once that had nothing left to do but end; its models were there.
        if not complete or (code and run.host.again is not None):
            return [*problems, f"the last start ended with code {code}:\n{run.text()[-3000:]}"]
        if code:
            say(f"  note: exit code {code} after the run was complete:\n{run.text()[-3000:]}")
    return problems + run.host.differences(alone, run.folder)


def _get_on(run: Run, typical: float) -> list[str]:
    """Wait for a random moment; return what the process should have said by then, and has not."""
    if not run.expected and run.random.random() < _EARLY:
        end = time.monotonic() + run.random.uniform(0, 0.4 * typical)
        while run.alive.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        return []
    _wait_for_progress(run, 1)
    problems = _unsaid(run)
    _wait_for_progress(run, run.random.randrange(8))
    end = time.monotonic() + run.random.uniform(0, 0.02 * typical)
    while run.alive.poll() is None and time.monotonic() < end:
        time.sleep(0.001)
    return problems


def _unsaid(run: Run) -> list[str]:
    _wait(lambda: run.alive.poll() is not None or all(text in run.text() for text in run.expected))
    missing = [text for text in run.expected if text not in run.text()]
    run.expected = ()
    return [f"it did not say {text!r}:\n{run.text()[-2000:]}" for text in missing]


def _wait_for_progress(run: Run, times: int) -> None:
    """Wait until it has got on so many times, or has ended."""
    for _ in range(times):
        before = run.host.progress(run.folder)
        _wait(lambda before=before: run.alive.poll() is not None or run.host.progress(run.folder) != before)


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + HANG
    while not until():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


def _kinds(random: Random, kinds: Sequence[str]) -> Iterator[str]:
    """Yield all kinds in random order, again and again."""
    turn = 0
    while True:
        shuffled = [kind for kind in kinds if kind != _RARE or turn % 2 == 0]
        random.shuffle(shuffled)
        yield from shuffled
        turn += 1


def _empty(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
