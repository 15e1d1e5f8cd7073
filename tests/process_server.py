"""The server that tests.processes forks programs from: `python -m tests.process_server DESCRIPTOR MODULE...`

It imports the modules, reads requests from the socket of this descriptor, forks a process for each, and tells on the
socket that came with a request the process's number and, when it has ended, its exit code. It runs no operation of
torch: a fork after threads have begun would hang.
"""

import contextlib
import gc
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

_LARGEST = 1 << 20  # bytes of a request, most of which is the environment


@dataclass(frozen=True)
class Request:
    """A program to become, with standard streams 0, 1 and 2 as passed beside it."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    start_new_session: bool


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
                elif isinstance(key.fileobj, socket.socket):
                    if key.fileobj.fileno() != -1:  # or it has ended, and that was seen just now
                        os.kill(key.data, signal.SIGKILL)  # nobody holds its Process any more
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
