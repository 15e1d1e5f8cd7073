"""Requests to stop: by SIGTERM (schedulers), SIGINT (Ctrl-C) or SIGHUP (a lost terminal), after a checkpoint.

So is a run whose output nobody reads any more, as in `acdc train | head`: other programs end by SIGPIPE then, and what
is shown is why one is watched. Python turns that signal into an error of the write, which `showing` turns into a
request; a terminal that is lost gives another such error.
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
_GONE = (errno.EPIPE, errno.EIO)  # who read a pipe, and a terminal
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(Exception):  # noqa: N818  # nothing went wrong
    """The run was asked to stop and did, after writing a checkpoint."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(why(signum))

    @property
    def exit_code(self) -> int:
        """Return a shell's code for a process that a signal ended: 130 for Ctrl-C, 143 for SIGTERM, 141 for SIGPIPE."""
        return 128 + self.signum


def why(signum: int) -> str:
    """Return a sentence that says what stopped the run."""
    return "Stopped: the output pipe was closed" if signum == _UNREAD else f"Stopped by {signal.Signals(signum).name}"


class StopRequest:
    """Set by a signal, read between steps."""

    def __init__(self) -> None:
        self.signum: int | None = None

    def __bool__(self) -> bool:
        return self.signum is not None


def tell(text: str, stop: StopRequest) -> None:
    """Print a line, or ask to stop where nobody reads it."""
    with showing(stop):
        print(text, flush=True)


@contextmanager
def showing(stop: StopRequest) -> Iterator[None]:
    """Write to stdout inside; where whoever read it has gone, ask to stop, and write to nowhere from then on."""
    try:
        yield
    except OSError as error:
        if error.errno not in _GONE:
            raise
        _to_nowhere(sys.stdout)
        stop.signum = stop.signum or _UNREAD


def complain(text: str) -> None:
    """Print on stderr, to whoever is still there."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _to_nowhere(sys.stderr)


def _to_nowhere(stream: TextIO) -> None:
    """Redirect a stream: else Python complains once more as it ends, and exits with a code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _under_nohup(number: signal.Signals) -> bool:
    return number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def listening(notice: str = "stopping after this step, with a checkpoint") -> Iterator[StopRequest]:
    """Turn signals into a request for as long as this lasts. A second Ctrl-C stops at once, without a checkpoint.

    SIGHUP that whoever started this process has it ignore, as nohup does, stays ignored. Not so SIGINT, which shells
    without job control have everything they start with & ignore: there a stop asked for would be lost.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # signals belong to the main thread
        return

    def asked(signum: int, frame: Any) -> None:
        if request and signum == signal.SIGINT:
            raise KeyboardInterrupt
        request.signum = signum
        with contextlib.suppress(RuntimeError):  # this may come in the middle of a write there, which takes no other
            complain(f"\nacdc: {notice} (Ctrl-C again: at once, without)")

    before = {number: signal.signal(number, asked) for number in _SIGNALS if not _under_nohup(number)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
