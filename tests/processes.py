"""Starts Python programs that need torch without the seconds its import takes: forked from a server that has it.

    done = run([sys.executable, "-m", "acdc", "train", ...], env=..., cwd=...)
    process = Process([sys.executable, "-m", "acdc", "train", ...], stdout=PIPE)

Both take the commands, and give the results, that subprocess.run and subprocess.Popen do (in text, and always with one
thread). A program so started ends as any other, through the interpreter's own end, and when nobody holds its Process
any more. Tests of how a program starts use subprocess.

The server (process_server.py) belongs to the process of pytest that started it and ends with it.
"""

import contextlib
import functools
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess, Popen, TimeoutExpired  # Popen: tests replace subprocess.Popen
from typing import IO, Any

from tests.process_server import Request

# What runs import sooner or later.
_PRELOADED = (
    "torch._dynamo", "torch.distributed.fsdp", "sklearn.datasets", "matplotlib.figure",
    "matplotlib.backends.backend_svg", "PIL.Image", "acdc.cli.train", "acdc.cli.compare_methods", "acdc.report.write",
    "acdc.train.experiment",
)  # fmt: skip


class Process:
    """A program that runs, with as much of subprocess.Popen's interface as tests use."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = True,
        start_new_session: bool = False,
        server: "Server | None" = None,
    ) -> None:
        assert text
        self.args = [str(part) for part in command]
        self.returncode: int | None = None
        request = Request(
            self.args, dict(os.environ if env is None else env), str(cwd or Path.cwd()), start_new_session
        )
        control = (server or shared_server()).control
        with contextlib.ExitStack() as theirs:
            self._status, reply = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            theirs.callback(reply.close)
            null = theirs.enter_context(Path(os.devnull).open("r+b", buffering=0)).fileno()
            self.stdout, out = _stream(stdout, 1, null, theirs)
            self.stderr, errors = _stream(stderr, 2, null, theirs)
            socket.send_fds(control, [json.dumps(asdict(request)).encode()], [reply.fileno(), null, out, errors])
        self.pid = int(self._status.recv(64))

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def poll(self) -> int | None:
        with contextlib.suppress(TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._status.recv(64))
            except (TimeoutError, BlockingIOError):
                raise TimeoutExpired(self.args, timeout or 0) from None
            self._status.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        texts = {1: "", 2: ""}

        def read(number: int, stream: IO[str]) -> None:
            with stream:
                texts[number] = stream.read()

        streams = ((number, stream) for number, stream in ((1, self.stdout), (2, self.stderr)) if stream is not None)
        readers = [threading.Thread(target=read, args=pair, daemon=True) for pair in streams]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return texts[1], texts[2]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str | Path], *, timeout: float | None = None, stdout: int | IO[Any] = PIPE, **options: Any
) -> CompletedProcess[str]:
    process = Process(command, stdout=stdout, stderr=PIPE, **options)
    try:
        out, errors = process.communicate(timeout)
    finally:
        process.kill()
    return CompletedProcess(process.args, process.wait(), out, errors)


class Server:
    """The process that programs are forked from, with these modules imported."""

    def __init__(self, preloaded: Sequence[str] = _PRELOADED, python: str | Path = sys.executable) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = Popen(
                [python, "-m", "tests.process_server", str(theirs.fileno()), *preloaded],
                cwd=Path(__file__).parents[1],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                pass_fds=[theirs.fileno()],
            )

    def stop(self) -> None:
        """End it, and with it whatever it still runs."""
        self.control.close()
        self._process.wait()


@functools.cache
def shared_server() -> Server:
    """The one of this process of pytest, started when it is first needed."""
    return Server()


def stop() -> None:
    """End the shared server, if there is one."""
    if shared_server.cache_info().currsize:
        shared_server().stop()
        shared_server.cache_clear()


def _stream(
    wanted: int | IO[Any] | None, own: int, null: int, theirs: contextlib.ExitStack
) -> tuple[IO[str] | None, int]:
    """Our end of a pipe, if one is wanted, and the descriptor for the program."""
    if wanted == PIPE:
        ours, other = os.pipe()
        theirs.callback(os.close, other)
        return os.fdopen(ours, "r", encoding="utf-8"), other
    if wanted is None or wanted == DEVNULL:
        return None, own if wanted is None else null
    return None, wanted if isinstance(wanted, int) else wanted.fileno()
