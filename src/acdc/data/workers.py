"""Processes that read images and are never ended by a signal that is sent to all of a run, not even as they begin.

Ctrl-C and schedulers signal every process. Python needs a second to begin in a new one, and a handler that is set there
comes too late. What a process blocks, those it starts have blocked from their first instruction on: the run blocks the
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
    """Tells our processes from those that others start from the same server; see fork_server.py."""


class _Context(ForkServerContext):
    Process = Worker


def context() -> ForkServerContext:
    """Return the context for a DataLoader; start the server, unless somebody has started it already."""
    multiprocessing.set_forkserver_preload(["acdc.data.fork_server", "__main__", "acdc.data.jpeg"])
    for begin in (resource_tracker.ensure_running, forkserver.ensure_running):  # the first may unblock as it returns
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
