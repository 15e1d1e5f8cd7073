"""Facts about this machine: versions and hardware to report beside every number, and whether its bf16 kernels run.

Some virtual machines advertise AMX, through cpuid and the operating system, but raise SIGILL at its first instruction.
oneDNN then picks AMX kernels for bf16 products, and the process dies without a message; so a child process tries them.
oneDNN avoids AMX if ONEDNN_MAX_CPU_ISA says so before torch is imported: this module itself does not import torch.
"""

import importlib.metadata
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LIBRARIES = ("acdc-torch", "torch", "numpy", "scikit-learn", "safetensors")
BF16_REMEDY = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
"""The environment variable that keeps oneDNN from using AMX, and its value."""

_BF16_PROBE = """
import torch
from torch.nn import functional as F
square = torch.ones(64, 64, dtype=torch.bfloat16)
assert (square @ square).sum().item() == 64**3
weight = torch.ones(32, 16, 3, 3, requires_grad=True)
with torch.autocast("cpu", torch.bfloat16):
    F.conv2d(torch.ones(4, 16, 8, 8), weight).sum().backward()
"""


def describe(device: "torch.device") -> dict[str, Any]:
    """Return versions and hardware, for config.json."""
    import torch

    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    hardware = {"device": device.type, "cpu": _cpu(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    if device.type == "cuda":
        hardware["gpu"] = torch.cuda.get_device_name(device)
    return {"versions": versions, "hardware": hardware, "platform": f"{platform.system()} {platform.machine()}"}


def cores() -> int:
    """Return how many cores this process may use; if the system does not say, as on macOS, all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


# bf16 on a CPU


@cache
def bf16_crash() -> str | None:
    """Return how bf16 kernels fail on this CPU ("SIGILL"), or None if they run. The first call takes some seconds."""
    return _failure({})


@cache
def bf16_remedy_works() -> bool:
    """Return True if bf16 kernels run with the remedy in the environment."""
    return _failure(dict([BF16_REMEDY])) is None


def bf16_advice(*, begun: bool = False) -> str:
    """Return what happened and what to type if bf16 kernels crash. A run that has begun keeps its precision."""
    name, value = BF16_REMEDY
    happened = f"torch's bf16 kernels crash on this CPU ({bf16_crash()}; it may advertise AMX without having it)"
    if begun:
        return f"{happened}; a run must continue in its own precision: put {name}={value} before the command"
    if not bf16_remedy_works():
        return f"{happened}; use fp32: add --set train.precision=fp32"
    return f"{happened}; put {name}={value} before the command, or add --set train.precision=fp32"


def _failure(changes: Mapping[str, str]) -> str | None:
    environment = {**os.environ, **changes}
    probe = subprocess.run(
        [sys.executable, "-c", _BF16_PROBE], env=environment, capture_output=True, text=True, check=False
    )
    if probe.returncode == 0:
        return None
    if probe.returncode < 0:
        return signal.Signals(-probe.returncode).name
    return (probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"])[-1]
