"""Only for the process that starts workers, which imports this before it starts any.

The run has started it with signals blocked, and so are they in all it starts. Workers leave them so; processes of
another's, which may be ended by them, have them as ever before they run.
"""

import multiprocessing
import signal
from multiprocessing.util import register_after_fork

from acdc.data.workers import STOPS, Worker


def _unblock(_: object) -> None:
    if not isinstance(multiprocessing.current_process(), Worker):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


register_after_fork(_unblock, _unblock)
