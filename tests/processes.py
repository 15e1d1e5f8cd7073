"""Starts Python programs that need torch without the seconds its import takes: forked from a server that has it.

    done = run([sys.executable, "-m", "acdc", "train", ...], env=..., cwd=...)
    process = Process([sys.executable, "-m", "acdc", "train", ...], stdout=PIPE)

Both take the commands, and give the results, that subprocess.run and subprocess.Popen do (in text, and always with one
thread). A program so started ends as any other, through the interpreter's own end, and when nobody holds its Process
any more. Tests of how a program starts use subprocess.

The server belongs to the process of pytest that started it and ends with it. It runs no operation of torch: a fork
after threads have begun would hang.
"""

import contextlib
import functools
import gc
import io
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, PIPE, CompletedProcess, TimeoutExpired
from typing import IO, Any

# What runs import sooner or later.
_PRELOADED = (
    "torch._dynamo", "torch.distributed", "sklearn.datasets", "matplotlib.figure", "matplotlib.backends.backend_svg",
    "PIL.Image", "acdc.cli.train", "acdc.cli.compare_methods", "acdc.report.write", "acdc.train.experiment",
)  # fmt: skip
_LARGEST = 1 << 20  # bytes of a request, most of which is the environment


@dataclass(frozen=True)
class Request:
    """A program to become, with standard streams 0, 1 and 2 as passed beside it."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    start_new_session: bool


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


def run(command: Sequence[str | Path], *, timeout: float | None = None, **options: Any) -> CompletedProcess[str]:
    process = Process(command, **({"stdout": PIPE, "stderr": PIPE} | options))
    try:
        out, errors = process.communicate(timeout)
    finally:
        process.kill()
    return CompletedProcess(process.args, process.wait(), out, errors)


class Server:
    """The process that programs are forked from, with these modules imported."""

    def __init__(self, preloaded: Sequence[str] = _PRELOADED) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.processes", str(theirs.fileno()), *preloaded],
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


# The server's side


def _serve(control: socket.socket) -> tuple[Request, list[int]] | None:
    """Fork a process for each request. Return in such a process, with its request; or None when pytest has ended."""
    running: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells of its end
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    text, fds, *_ = socket.recv_fds(control, _LARGEST, 4)
                    if not text:
                        for pid, _ in running.values():
                            os.kill(pid, signal.SIGKILL)
                        return None
                    pid = os.fork()
                    if not pid:
                        for end, (_, held) in running.items():
                            os.close(end)
                            held.close()
                        os.close(fds[0])
                        control.close()
                        return Request(**json.loads(text)), fds[1:]
                    for fd in fds[1:]:
                        os.close(fd)
                    reply, end = socket.socket(fileno=fds[0]), os.pidfd_open(pid)
                    running[end] = pid, reply
                    selector.register(end, selectors.EVENT_READ)
                    selector.register(reply, selectors.EVENT_READ, pid)
                    reply.send(str(pid).encode())
                elif isinstance(key.fileobj, socket.socket):  # nobody holds its Process any more
                    os.kill(key.data, signal.SIGKILL)
                    selector.unregister(key.fileobj)
                else:
                    pid, reply = running.pop(end := key.fd)
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(BrokenPipeError), reply:
                        selector.unregister(end)
                        with contextlib.suppress(KeyError):
                            selector.unregister(reply)
                        reply.send(str(code).encode())
                    os.close(end)


def _become(request: Request, streams: Sequence[int]) -> None:
    """Be the program, as far as this process can still be told what Python reads as it starts."""
    if request.start_new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _output(1, "strict")
    sys.stderr = _output(2, "backslashreplace", line_buffering=True)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    if filters := request.env.get("PYTHONWARNINGS"):
        assert filters == "error", "the only filter that tests set"
        warnings.simplefilter("error")
    program, arguments = request.command[1], request.command[2:]
    sys.orig_argv = request.command
    if program == "-m":
        sys.argv, sys.path[0] = arguments, request.cwd
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = [program, *arguments], str(Path(program).parent)
        runpy.run_path(program, run_name="__main__")


def _output(fd: int, errors: str, line_buffering: bool = False) -> io.TextIOWrapper:
    binary = open(fd, "wb", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(binary, "utf-8", errors, line_buffering=line_buffering or os.isatty(fd))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, whose end is this one's
    descriptor, *preloaded = sys.argv[1:]
    for name in preloaded:
        import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "no thread is running that a fork would lose"
    gc.freeze()
    if request := _serve(socket.socket(fileno=int(descriptor))):
        _become(*request)
