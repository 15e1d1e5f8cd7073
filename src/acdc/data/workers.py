"""Image-reading processes that survive signals sent to a whole run, even while they start.

Ctrl-C and schedulers signal every process. Python needs a second to start in a new one, so a handler set there comes
too late. But signals that a process blocks are blocked in its children from their first instruction: the run blocks the
signals while it starts the server that workers are forked from. Where there is no such server, on Windows, this module
is of no use.
"""

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Worker(ForkServerProcess):
    """A class that distinguishes our processes from others started by the same server; see fork_server.py."""


class _Context(ForkServerContext):
    Process = Worker


def context() -> ForkServerContext:
    """Return the context for a DataLoader, starting the server unless it is already running."""
    multiprocessing.set_forkserver_preload(["acdc.data.fork_server", "__main__", "acdc.data.jpeg"])
    for begin in (resource_tracker.ensure_running, forkserver.ensure_running):  # the first may unblock them again
        with _blocked():
            begin()
    return _Context()


@contextmanager
def _blocked() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
