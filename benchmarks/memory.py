"""Peak memory of one selection, beyond the weights.

On a GPU the allocator counts it. On the CPU a fresh process makes the weights, resets the kernel's record of its
largest resident set (clear_refs, Linux), selects once and reads the record: `python -m benchmarks.memory METHOD SIZE`.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.record import ROOT, Row
from benchmarks.rivals import METHODS, Prepared, count_kept, kept_of, make_weights, round_size

_WARM_UP = 1 << 17
_UNKNOWN = 100  # bytes a weight that no method should need; where as much is free, there is nothing to check
_PROBE = 4_000_000


def measure(method: str, size: int) -> Row:
    """Measure peak bytes and survivors of `method` on the CPU, in its own process; {"skipped": reason} if it died."""
    command = [sys.executable, "-m", "benchmarks.memory", method, str(size)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if child.returncode in (-signal.SIGINT, 130):
        raise KeyboardInterrupt
    if child.returncode < 0:
        return {"skipped": f"killed by signal {-child.returncode} while its memory was measured"}
    if child.returncode:
        return {"skipped": f"failed: {(child.stderr.strip().splitlines() or ['no message'])[-1]}"}
    return json.loads(child.stdout.splitlines()[-1])


def why_not(method: str, size: int, device: torch.device) -> str | None:
    """Return why this much would not fit beside the weights, judging by a small selection; None if it fits."""
    free = available(device)
    weights = 4 * size if device.type == "cpu" else 0  # the measuring process makes its own
    if weights + _UNKNOWN * size < free:
        return None
    small = min(size, round_size(_PROBE))
    if device.type == "cpu":
        probe = measure(method, small)
    else:
        prepared = METHODS[method](make_weights(small, device), kept_of(small))
        probe = measure_cuda(prepared, small)
    if "skipped" in probe:
        return probe["skipped"]
    if probe["peak_bytes"] is None:
        return None
    each = probe["peak_bytes"] / small
    needed = weights + each * size * 1.1
    if needed < free:
        return None
    return (
        f"needs about {needed / 1e9:.1f} GB ({each:.0f} bytes per weight beyond the weights), {free / 1e9:.1f} GB free"
    )


def measure_cuda(prepared: Prepared, size: int) -> Row:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    masks = prepared()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return {"peak_bytes": peak, "kept": count_kept(masks)}


def available(device: torch.device) -> int:
    """Return the free bytes on the device; for the CPU what the kernel reports, or the container's limit if less."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = _kilobytes("/proc/meminfo", "MemAvailable") * 1024
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def _kilobytes(path: str, key: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise OSError(f"{path} has no {key}")


def _measure_here(method: str, size: int) -> Row:
    cpu = torch.device("cpu")
    prepare = METHODS[method]
    small = round_size(_WARM_UP)
    prepare(make_weights(small, cpu), kept_of(small))()  # lazy imports and thread pools must not count
    return measure_call(prepare(make_weights(size, cpu), kept_of(size)))


def measure_call(prepared: Prepared) -> Row:
    """Measure the peak of a call on the CPU in this process, which must have made all that is not to count."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        before, start = (_kilobytes("/proc/self/status", key) for key in ("VmRSS", "VmHWM"))
    except OSError:  # no such record here
        return {"peak_bytes": None, "kept": count_kept(prepared())}
    masks = prepared()
    peak = _kilobytes("/proc/self/status", "VmHWM")
    assert start - before < 16_384, f"the record was not reset: {start} kB, and {before} kB resident"
    return {"peak_bytes": (peak - before) * 1024, "kept": count_kept(masks)}


if __name__ == "__main__":
    try:
        print(json.dumps(_measure_here(sys.argv[1], int(sys.argv[2]))))
    except KeyboardInterrupt:
        sys.exit(130)
