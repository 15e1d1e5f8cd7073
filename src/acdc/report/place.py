"""Where a run ran, and how long an epoch took there: measured, as against FLOPs in theory."""

import statistics
from typing import Any

from acdc.report.read import Run


def epoch_seconds(run: Run) -> dict[str, float]:
    """Median time of an epoch of each kind of the main stage."""
    kinds: dict[str, list[float]] = {}
    for row in run.stage(run.main):
        kinds.setdefault(row.kind, []).append(row.seconds)
    return {kind: statistics.median(seconds) for kind, seconds in kinds.items()}


def environment(run: Run) -> dict[str, Any]:
    """Hardware, versions and how it ran, as config.json has them."""
    hardware, versions = run.config.hardware, run.config.versions
    threads = f"{hardware.get('cores', '?')} cores, {hardware.get('threads', '?')} threads"
    found = {
        "GPU": hardware.get("gpu"),
        "CPU": f"{hardware['cpu']} ({threads})" if "cpu" in hardware else None,
        "platform": run.config.platform,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "processes": run.config.processes,
        "execution": "; ".join(run.config.execution),
        "started": run.config.started,
        "resumed": len(run.config.resumed),
    }
    return {key: value for key, value in found.items() if value}
