"""What is done to a run: each fault takes the run, and returns what went wrong besides, which must be nothing.

A fault that ends the process waits for its end; the next start is that of the drill.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.drills.disk import Disk
from tests.drills.hosts import Host, files_of
from tests.processes import Process
from tests.waiting import HANG

_SKIPPED, _NONE = "Skipped a checkpoint", "no intact checkpoint"


@dataclass
class Run:
    """A run that is being disturbed."""

    host: Host
    folder: Path
    log: Path
    random: Random
    disk: Disk | None
    process: Process | None = None
    said: int = 0  # bytes in the log when the process started
    expected: tuple[str, ...] = ()  # what the next process has to say, as far as it gets

    @property
    def alive(self) -> Process:
        assert self.process is not None
        return self.process

    def start(self) -> None:
        self.said = self.log.stat().st_size if self.log.exists() else 0
        self.process = self.host.start(self.folder, self.log)

    def text(self) -> str:
        """Return what the last process has said so far."""
        return self.log.read_bytes()[self.said :].decode(errors="replace") if self.log.exists() else ""

    def ended(self, kind: str, *codes: int) -> list[str]:
        """Wait for the end, which must have one of these codes; none: any but 0. A complete run may have ended well."""
        code = self.alive.wait(HANG)
        problems = []
        if not (code == 0 and self.host.complete(self.folder)) and (code not in codes if codes else code == 0):
            problems.append(f"{kind}: exit code {code}, expected {' or '.join(map(str, codes)) or 'another than 0'}")
        if self.host.again is not None and self.host.processes == 1 and "Traceback" in self.text():
            problems.append(f"{kind}: a traceback")
        return [f"{problem}\n{self.text()[-3000:]}" for problem in problems]


# Signals


def kill(run: Run) -> list[str]:
    """SIGKILL every process of it."""
    victims = [run.alive.pid, *ranks(run.alive.pid).values()]
    for pid in victims:
        _send(pid, signal.SIGKILL)
    problems = run.ended("kill", -9)
    while any(_state(pid) not in "ZX" for pid in victims):
        time.sleep(0.01)
    return problems


def terminate(run: Run) -> list[str]:
    run.alive.send_signal(signal.SIGTERM)
    return run.ended("SIGTERM", *((143, -15) if run.host.processes == 1 else ()))  # -15 before it listens


def interrupt(run: Run) -> list[str]:
    run.alive.send_signal(signal.SIGINT)
    return run.ended("SIGINT", *((130, -2) if run.host.again and run.host.processes == 1 else ()))


def pause(run: Run) -> list[str]:
    """SIGSTOP one process, and SIGCONT it after a while; it goes on."""
    pid = run.random.choice([*ranks(run.alive.pid).values()] or [run.alive.pid])
    _pause(pid, run.random.uniform(0.05, 0.5))
    return []


def drop_rank(run: Run) -> list[str]:
    """SIGKILL one of two ranks, every other time while the other is just back from a pause."""
    found = ranks(run.alive.pid)
    if len(found) < 2:  # it has just ended, or not yet begun
        return kill(run)
    victim = run.random.choice([0, 1])
    if run.random.random() < 0.5:
        _pause(found[1 - victim], 0.2)
    _send(found[victim], signal.SIGKILL)
    return run.ended(f"rank {victim} killed")


# Disks


def fill_disk(run: Run) -> list[str]:
    disk = run.disk
    assert disk is not None
    disk.fill(run.random.choice([0, run.random.randrange(200_000)]))
    try:
        return _fails(run, "disk full")
    finally:
        disk.make_room()


def read_only(run: Run) -> list[str]:
    disk = run.disk
    assert disk is not None
    disk.read_only()
    try:
        return _fails(run, "read-only")
    finally:
        disk.writable()


def _fails(run: Run, kind: str) -> list[str]:
    """Wait for the process to notice; every third time start another one meanwhile, which must fail as well."""
    problems = run.ended(kind)
    if not run.host.complete(run.folder) and run.random.random() < 0.3:
        run.start()
        problems += run.ended(f"{kind} at the start")
    acdc = run.host.again is not None and run.host.processes == 1
    reasons = ("No space left on device", "Read-only file system", "disk may be full")
    if acdc and not run.host.complete(run.folder) and not any(reason in run.text() for reason in reasons):
        problems.append(f"{kind}: the reason is not named:\n{run.text()[-2000:]}")
    return problems


# Files


def corrupt(run: Run) -> list[str]:
    """Kill it and change bytes of its newest checkpoint."""
    return kill(run) + _damage_newest(run, _overwrite)


def truncate(run: Run) -> list[str]:
    """Kill it and cut its newest checkpoint short."""
    return kill(run) + _damage_newest(run, _cut)


def delete(run: Run) -> list[str]:
    """Kill it and delete its newest checkpoint, or a file of it."""
    problems = kill(run)
    checkpoints = run.host.newest_first(run.folder)
    if checkpoints and not run.host.complete(run.folder):
        run.random.choice(files_of(checkpoints[0])).unlink()
    return problems


def corrupt_all(run: Run) -> list[str]:
    """Kill it and damage every checkpoint: it has to start over."""
    problems = kill(run)
    found = run.host.newest_first(run.folder)
    if run.host.complete(run.folder):
        return problems
    for checkpoint in found:
        run.random.choice([_overwrite, _cut])(run.random.choice(files_of(checkpoint)), run.random)
    if found:
        run.expected = (_SKIPPED, _NONE) if run.host.again else (_SKIPPED,)
    return problems


def damage_lines(run: Run) -> list[str]:
    """Kill it and damage the end of metrics.jsonl or phases.jsonl."""
    problems = kill(run)
    path = run.folder / run.random.choice(run.host.lines)
    if path.exists() and path.stat().st_size and not run.host.complete(run.folder):
        size = path.stat().st_size
        how = run.random.randrange(4)
        with path.open("r+b") as file:
            if how == 0:
                file.truncate(run.random.randrange(size))
            elif how == 1:
                file.seek(run.random.randrange(size))
                file.write(run.random.randbytes(100))
            elif how == 2:
                file.seek(0, os.SEEK_END)
                file.write(run.random.randbytes(100))
            else:
                file.seek(-min(size, 600), os.SEEK_END)
                file.write(bytes(min(size, 600)))
    return problems


def _damage_newest(run: Run, how: Callable[[Path, Random], None]) -> list[str]:
    checkpoints = run.host.newest_first(run.folder)
    if checkpoints and not run.host.complete(run.folder):
        how(run.random.choice(files_of(checkpoints[0])), run.random)
        run.expected = (_SKIPPED,)
    return []


def _overwrite(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 1, 100])):
        if content:
            content[random.randrange(len(content))] ^= random.randrange(1, 256)
    path.write_bytes(content or b"more")


def _cut(path: Path, random: Random) -> None:
    size = path.stat().st_size
    os.truncate(path, random.choice([0, random.randrange(size), size - 1]) if size else 1)


# Processes


def ranks(launcher: int) -> dict[int, int]:
    """Return the processes that a launcher started, by their rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    found = {}
    try:
        pids = children.read_text().split()
    except OSError:
        return found
    for child in pids:
        try:
            settings = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:  # it has just ended
            continue
        found |= {int(text.removeprefix(b"RANK=")): int(child) for text in settings if text.startswith(b"RANK=")}
    return found


def _pause(pid: int, seconds: float) -> None:
    _send(pid, signal.SIGSTOP)
    while _state(pid) not in "TZX":
        time.sleep(0.01)
    time.sleep(seconds)  # the others wait for it meanwhile
    _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _state(pid: int) -> str:
    """Return T where a process is stopped, X where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


Fault = Callable[[Run], list[str]]
KINDS: dict[str, Fault] = {
    "SIGKILL": kill,
    "SIGTERM": terminate,
    "SIGINT": interrupt,
    "SIGSTOP, SIGCONT": pause,
    "one rank killed": drop_rank,
    "disk full": fill_disk,
    "folder read-only": read_only,
    "newest checkpoint corrupted": corrupt,
    "newest checkpoint cut short": truncate,
    "newest checkpoint deleted": delete,
    "all checkpoints damaged": corrupt_all,
    "end of metrics damaged": damage_lines,
}
ON_A_DISK = ("disk full", "folder read-only")


def kinds_for(host: Host, disk: bool) -> list[str]:
    """Return the faults that can happen to a host."""
    left_out = set() if disk else set(ON_A_DISK)
    left_out |= set() if host.processes > 1 else {"one rank killed"}
    left_out |= set() if host.lines else {"end of metrics damaged"}
    return [kind for kind in KINDS if kind not in left_out]
