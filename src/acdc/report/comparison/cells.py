"""A run's place in a comparison: what comparison.json, one folder up, says of it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acdc import methods

FILE = "comparison.json"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One method, or a variant of it, at one sparsity, for one seed."""

    variant: str  # the method's own name where it is none
    method: str
    epochs: int  # of the dense training that costs are set against
    settings: tuple[str, ...] = ()  # of the variant

    @property
    def title(self) -> str:
        return title(self.variant)


def title(method: str) -> str:
    """As people write it; variants and dense training as they were typed."""
    return methods.find(method).title() if method in methods.names() else method


def of(run: Path) -> Cell | None:
    held = read(run.resolve().parent)
    said = held.get("cells", {}).get(run.resolve().name)
    try:
        return Cell(
            variant=said["variant"],
            method=said["method"],
            epochs=int(held["epochs"]),
            settings=tuple(said.get("settings", ())),
        )
    except (KeyError, TypeError, ValueError):  # no comparison, or not one of this acdc's
        return None


def read(folder: Path) -> dict[str, Any]:
    """comparison.json of a comparison's folder; nothing where it is none."""
    try:
        held = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}


def runs(folder: Path) -> list[Path]:
    """The run folders of a comparison, in the order they joined it."""
    return [folder / name for name in read(folder).get("runs", {}) if (folder / name).is_dir()]


def last_words(run: Path) -> str:
    """How the run's log ends: why it stopped, if it said so."""
    try:
        lines = run.with_name(f"{run.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its log ends: {said[:200]}" if said else ""
