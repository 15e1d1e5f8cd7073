"""Engines in processes of their own, of which one runs at a time: the others are stopped by the operating system.

Threads of an engine may go on spinning after a run, waiting for the next; beside another engine's they would halve its
speed. A stopped process holds no core. It cannot outlive its parent either: the kernel kills it then.
"""

import contextlib
import ctypes
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from acdc.serving.engines import Engine, EngineMissing, Run

_SILENCE = 900.0  # seconds after which an engine that does not answer is given up
_RUNS = (3, 25)  # at least and at most so many runs in a turn, of which the median counts
_TURN = 0.08  # seconds of runs in a turn where more than the fewest fit
_PR_SET_PDEATHSIG = 1
_PROGRAM = """
import sys
from multiprocessing.connection import Connection
from acdc.serving.engine_process import serve
serve(Connection(int(sys.argv[1])), int(sys.argv[2]))
"""


class WorkerLost(Exception):  # noqa: N818
    """An engine failed, or its process ended; the text says how."""


@dataclass(frozen=True)
class Opened:
    """What a process says once its engine has opened the file and run it."""

    output: np.ndarray
    seconds: float  # for both, without importing the engine


@dataclass(frozen=True)
class Turn:
    ms: float  # the median of some runs, after one that is not timed
    peak: int | None  # bytes the process has held at most so far


class Worker:
    """One engine in a process that only runs between `open` or `turn` being called and returning."""

    def __init__(self, engine: Engine, path: Path, threads: int, x: np.ndarray) -> None:
        # A program of its own, which imports nothing but the engine: its memory is the engine's. A fork would also
        # inherit locks and threads of this process.
        self._pipe, theirs = Pipe()
        command = [engine.python or sys.executable, "-c", _PROGRAM, str(theirs.fileno()), str(os.getpid())]
        self._folder = tempfile.TemporaryDirectory()
        places = [p for p in sys.path if p]
        if engine.python:  # its own packages, and of ours acdc alone
            Path(self._folder.name, "acdc").symlink_to(Path(__file__).parents[1])
            places = [self._folder.name]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        try:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            self._pipe.close()
            self._folder.cleanup()
            raise WorkerLost(f"{engine.python} cannot be started: {error.strerror}") from None
        finally:
            theirs.close()
        try:
            with contextlib.suppress(ConnectionError):  # _answer says what became of it
                self._pipe.send((engine, path, threads, x))
        except BaseException:
            self.end()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self) -> Opened:
        """Wait until the engine has run once, then stop it. Raises WorkerLost when it cannot."""
        answer = self._answer()
        self._stop()
        return answer

    def turn(self) -> Turn:
        """Let the engine run some times, then stop it again. Raises WorkerLost when its process has ended."""
        with contextlib.suppress(ProcessLookupError, ConnectionError):  # _answer says what became of it
            os.kill(self.pid, signal.SIGCONT)
            self._pipe.send(None)
        answer = self._answer()
        self._stop()
        return answer

    def end(self) -> None:
        """Kill the process, stopped or not, and wait until it is gone."""
        self._process.kill()
        self._process.wait()
        self._pipe.close()
        self._folder.cleanup()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(_SILENCE):
                raise WorkerLost(f"its process did not answer within {_SILENCE:g} seconds")
            answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise WorkerLost(f"its process {_ending(self._process.wait())}") from None
        if isinstance(answer, str):
            raise WorkerLost(answer)
        return answer

    def _stop(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the next turn finds out
            os.kill(self.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # the signal needs a moment to arrive


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def serve(pipe: Connection, parent: int) -> None:
    """Open the file, then run it whenever the parent says so: the life of a worker's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with_parent(parent)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no further processes
    try:
        engine, path, threads, x = pipe.recv()
        for name in engine.needs:
            import_module(name)
        start = time.perf_counter()
        run = engine.open(path, threads, x)
        output = np.asarray(run(x))  # plans, compiles, fills caches
        pipe.send(Opened(output, time.perf_counter() - start))
        while True:
            pipe.recv()
            pipe.send(Turn(_time(run, x), _peak()))
    except EOFError:
        return
    except EngineMissing as error:
        pipe.send(str(error))
    except Exception as error:  # another project's engine: whatever it raises is its answer
        pipe.send(f"{type(error).__name__}: {error}".splitlines()[0][:200])


def _time(run: Run, x: np.ndarray) -> float:
    """Return the median milliseconds of a run, once the engine's own threads and caches are warm."""
    run(x)
    ms: list[float] = []
    begin = time.perf_counter()
    while len(ms) < _RUNS[0] or (len(ms) < _RUNS[1] and time.perf_counter() - begin < _TURN):
        start = time.perf_counter()
        run(x)
        ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(ms)


def _peak() -> int | None:
    """Return the most bytes this process has held so far, None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when the parent ends: a stopped process would wait for ever."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)
