"""Only for the process that starts workers, which imports this before it starts any: signals to all leave it standing.

Were it to end, its workers would count as dead. What it starts has the signals as ever, until a worker ignores them.
"""

import os
import signal

_STOPS = (signal.SIGTERM, signal.SIGHUP)  # SIGINT it ignores already


def _set(handler: signal.Handlers) -> None:
    for number in _STOPS:
        signal.signal(number, handler)


_set(signal.SIG_IGN)
os.register_at_fork(after_in_child=lambda: _set(signal.SIG_DFL))
