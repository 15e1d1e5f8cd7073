"""Whether torch's bf16 kernels run on this CPU: tried in a child process, since the wrong answer is a crash.

Some virtual machines advertise AMX, by cpuid and by the system's own word, and die of SIGILL at its first instruction.
oneDNN then picks AMX kernels for bf16 products, and the process ends without a message. oneDNN stays clear of AMX if
ONEDNN_MAX_CPU_ISA says so before torch is imported. This module imports no torch, so that tests can ask in time.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache

REMEDY = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
"""The environment variable that keeps oneDNN from using AMX, and its value."""

_PROBE = """
import torch
from torch.nn import functional as F
square = torch.ones(64, 64, dtype=torch.bfloat16)
assert (square @ square).sum().item() == 64**3
weight = torch.ones(32, 16, 3, 3, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    F.conv2d(torch.ones(4, 16, 8, 8), weight).sum().backward()
"""


@cache
def crash_on_cpu() -> str | None:
    """Return how bf16 kernels fail on this CPU ("SIGILL"), or None if they run. The first call takes some seconds."""
    return _failure({})


@cache
def remedy_works() -> bool:
    """Return whether they run with the remedy in the environment."""
    return _failure(dict([REMEDY])) is None


def advice(*, begun: bool = False) -> str:
    """What happened and what to type, for a CPU whose bf16 kernels crash. A run that has begun keeps its precision."""
    name, value = REMEDY
    happened = f"torch's bf16 kernels crash on this CPU ({crash_on_cpu()}; it may advertise AMX and not have it)"
    if begun:
        return f"{happened}; a run goes on in its own precision: type {name}={value} before the command"
    if not remedy_works():
        return f"{happened}; use fp32: type --set train.precision=fp32"
    return f"{happened}; type {name}={value} before the command, or --set train.precision=fp32"


def _failure(changes: Mapping[str, str]) -> str | None:
    environment = {**os.environ, **changes}
    probe = subprocess.run([sys.executable, "-c", _PROBE], env=environment, capture_output=True, text=True, check=False)
    if probe.returncode == 0:
        return None
    if probe.returncode < 0:
        return signal.Signals(-probe.returncode).name
    return (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
