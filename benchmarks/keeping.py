"""Packing of runs for results/, without weights and without a machine's paths."""

import io
import json
import re
import shutil
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from acdc.io import write_json
from acdc.runs.json_files import require
from acdc.runs.records import RunConfig

FILES = ("metrics.jsonl", "phases.jsonl", "result.json")
ARCHIVE = "runs.tar.xz"
_PLACE = re.compile(r"(?<![\w.:/~-])/(?:[^\s/'\"()]+/)+")  # an absolute path, up to its last part


def settings_of(run: Path) -> dict[str, Any]:
    """Return config.json without the path of the data on the machine that ran."""
    config = require(RunConfig, run / "config.json")
    return {key: value for key, value in config.settings.items() if key != "root"}


def log_of(run: Path) -> str | None:
    """Return a run's log, from its folder, or from beside it if several ran at a time."""
    for file in (run / "run.log", run.with_name(f"{run.name}.log")):
        if file.is_file():
            return without_places(file.read_text(encoding="utf-8", errors="replace"), run.name)
    return None


def without_places(log: str, run: str) -> str:
    """Shorten paths in a log: they begin at the run's folder, or are only a file name if they lead elsewhere."""
    for place in set(re.findall(rf"^folder: (/.*/){re.escape(run)}$", log, flags=re.MULTILINE)):
        log = log.replace(f"{place}{run}", run)  # by what the log itself says: a path may have spaces
    inside = f"/{run}/"
    return _PLACE.sub(lambda found: inside[1:] + found[0].partition(inside)[2] if inside in found[0] else "", log)


def copy_run(source: Path, target: Path, commit: str | None = None) -> None:
    """Copy a run's small files to a new folder, with the commit of the code that ran, if given."""
    target.mkdir(parents=True)
    for name in (*FILES, "agreement.json"):
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)
    if log := log_of(source):
        (target / "run.log").write_text(log, encoding="utf-8")
    config = settings_of(source)
    write_json(target / "config.json", {**config, "commit": commit} if commit else config)


def pack(target: Path, runs: Mapping[str, Path], more: Mapping[str, bytes] | None = None) -> None:
    """Pack every run's settings, metrics, phases, result and log by name. The same runs give the same file."""
    with tarfile.open(target, "w:xz") as archive:
        for name, content in (more or {}).items():
            _add(archive, name, content)
        for name, run in runs.items():
            _add(archive, f"{name}/config.json", json.dumps(settings_of(run), indent=2).encode())
            for file in FILES:
                if (run / file).is_file():
                    _add(archive, f"{name}/{file}", (run / file).read_bytes())
            if log := log_of(run):
                _add(archive, f"{name}.log", log.encode())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


def where(runs: Iterable[Path], commit: str | None) -> dict[str, Any]:
    """Return the hardware and versions of runs, and when the first began."""
    configs = [settings_of(run) for run in runs]
    return {
        "commit": commit or "an unknown commit",
        "hardware": sorted({config["hardware"].get("gpu") or config["hardware"]["cpu"] for config in configs}),
        "torch": sorted({config["versions"]["torch"] for config in configs}),
        "started": min(config["started"] for config in configs)[:10],
    }


def place(details: Mapping[str, Any]) -> str:
    """Format what `where` returned as the note below a table."""
    hardware, torch = (", ".join(details[key]) for key in ("hardware", "torch"))
    return f"{hardware}; torch {torch}; acdc at {details['commit']}; {details['started']}."
