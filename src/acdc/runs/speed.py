"""speed.json of a run's folder: how fast engines ran its exported models when `acdc bench` timed them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acdc.io import write_json
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import read
from acdc.runs.records import SpeedFile, SpeedTable
from acdc.typed_data import decode


def save_speed(run: Path, model: Path, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Path:
    """Keep the rows that were measured for a model of this run, in place of earlier ones for the same file.

    `about` says when and on what machine (`run`, `cpu`, `cores`, `load`).
    """
    folder = RunFolder(run)
    name = Path(os.path.relpath(model, run)).as_posix()
    table = decode(SpeedTable, {**about, "model": name, "bytes": model.stat().st_size, "rows": list(rows)})
    earlier = read(SpeedFile, folder.speed) or SpeedFile()
    tables = [*(one for one in earlier.models if one.model != name), table]
    write_json(folder.speed, asdict(SpeedFile(models=tuple(tables))))
    return folder.speed
