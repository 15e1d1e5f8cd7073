"""On PYTHONPATH, this makes a machine seem to advertise AMX and not have it: the bf16 probe dies of SIGILL.

Python imports it as it starts. `PYTHONPATH=tests/crashing_bf16 make test` shows that the tests pass on such a machine.
"""

import os
import signal
import sys

if "-c" in sys.orig_argv and "bfloat16" in sys.orig_argv[-1] and "ONEDNN_MAX_CPU_ISA" not in os.environ:
    os.kill(os.getpid(), signal.SIGILL)
