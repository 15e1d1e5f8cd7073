"""A run's place in a comparison: what comparison.json, one folder up, says of it."""

from dataclasses import dataclass
from pathlib import Path

from acdc import methods
from acdc.runs.folder import ComparisonFolder
from acdc.runs.records import Comparison


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
    held, here = read(run.resolve().parent), run.resolve().name
    if held is None or here not in held.cells:
        return None
    cell = held.cells[here]
    return Cell(variant=cell.variant, method=cell.method, epochs=held.epochs, settings=cell.settings)


def read(folder: Path) -> Comparison | None:
    """comparison.json of a comparison's folder; None where it is none."""
    return ComparisonFolder(folder).read()


def runs(folder: Path) -> list[Path]:
    """The run folders of a comparison, in the order they joined it."""
    return ComparisonFolder(folder).runs()


def last_words(run: Path) -> str:
    """How the run's log ends: why it stopped, if it said so."""
    try:
        lines = run.with_name(f"{run.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its log ends: {said[:200]}" if said else ""
