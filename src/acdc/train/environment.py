"""Versions and hardware, to stand beside every number."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = ("acdc-torch", "torch", "numpy", "scikit-learn", "safetensors")


def describe(device: torch.device) -> dict[str, Any]:
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
    """That this process may use; all there are where the system does not say, as on macOS and Windows."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
