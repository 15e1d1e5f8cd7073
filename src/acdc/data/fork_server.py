"""The signal set-up of the process that starts workers, which imports this module before it starts any.

The run started that process with signals blocked, and all that it starts inherits this. Workers keep them blocked;
other people's processes, which signals may end, get them unblocked before they run.
"""

import multiprocessing
import signal
from multiprocessing.util import register_after_fork

from acdc.data.workers import STOPS, Worker


def _unblock(_: object) -> None:
    if not isinstance(multiprocessing.current_process(), Worker):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


register_after_fork(_unblock, _unblock)
