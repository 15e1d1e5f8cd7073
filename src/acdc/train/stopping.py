"""Requests to stop after a checkpoint: by SIGTERM (schedulers), SIGINT (Ctrl-C) or SIGHUP (a lost terminal).

A run also stops when nobody reads its output any more, as in `acdc train | head`: other programs end by SIGPIPE then.
Python turns that signal into an error of the write, which `showing` turns into a request; a lost terminal causes
another such error.
"""

import contextlib
import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_UNREAD = getattr(signal, "SIGPIPE", signal.SIGTERM)
_GONE = (errno.EPIPE, errno.EIO)  # errors of a closed pipe and of a lost terminal
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """A run that stopped on request, after writing a checkpoint."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(why(signum))

    @property
    def exit_code(self) -> int:
        """Return the shell's exit code for a signal's victim: 130 for Ctrl-C, 143 for SIGTERM, 141 for SIGPIPE."""
        return 128 + self.signum


def why(signum: int) -> str:
    """Return a sentence that says what stopped the run."""
    return "Stopped: the output pipe was closed" if signum == _UNREAD else f"Stopped by {signal.Signals(signum).name}"


class StopRequest:
    """A flag that a signal sets, and that is read between steps."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def __bool__(self) -> bool:
        return self.signum is not None


def tell(text: str, stop: StopRequest) -> None:
    """Print a line, or request a stop if nobody reads it."""
    with showing(stop):
        print(text, flush=True)


@contextmanager
def showing(stop: StopRequest) -> Iterator[None]:
    """Guard writes to stdout: if its reader is gone, request a stop, and discard further output."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
        _to_nowhere(sys.stdout)
        stop.signum = stop.signum or _UNREAD


def complain(text: str) -> None:
    """Print to stderr, ignoring a closed pipe."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _to_nowhere(sys.stderr)


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a stream; otherwise Python would complain again at exit, and use its own exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _under_nohup(number: signal.Signals) -> bool:
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def listening(notice: str = "stopping after this step, with a checkpoint") -> Iterator[StopRequest]:
    """Turn signals into a request inside this context. A second Ctrl-C stops at once, without a checkpoint.

    If the parent process made this one ignore SIGHUP, as nohup does, it stays ignored. Not so SIGINT, which shells
    without job control make everything ignore that they start with &: there a request to stop would be lost.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # signals belong to the main thread
        return

    def asked(signum: int, frame: Any) -> None:
        if request and signum == signal.SIGINT:
            raise KeyboardInterrupt
        request.signum = signum
        with contextlib.suppress(RuntimeError):  # this may interrupt a write to stderr, which allows no other
            complain(f"\nacdc: {notice} (press Ctrl-C again to stop at once, without a checkpoint)")

    before = {number: signal.signal(number, asked) for number in _SIGNALS if not _under_nohup(number)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
