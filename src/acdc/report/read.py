"""A run folder, read for a report: whatever is whole counts, and whatever is not is said."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from acdc.measure.dynamics import PhaseEnd
from acdc.recipes import load
from acdc.recipes.schema import Recipe
from acdc.report import pairs
from acdc.report.comparison import cells
from acdc.report.comparison.cells import Cell
from acdc.report.pairs import Pair
from acdc.runs import json_files
from acdc.runs.folder import RunFolder
from acdc.runs.predictions import Kept
from acdc.runs.records import AgreementFile, EpochRow, RunConfig, RunResult

T = TypeVar("T")


class ReportError(ValueError):
    """A report that cannot be made, with the reason and what to do instead."""


class NotBegunError(ReportError):
    """A run without a single epoch: among others it is named, and left out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    folder: Path
    config: RunConfig
    recipe: Recipe | None  # None where a newer or older acdc wrote settings that this one cannot read
    rows: Sequence[EpochRow]
    ends: Sequence[PhaseEnd]
    result: RunResult | None
    pairs: Sequence[Pair]  # how far its models agree
    kept: Mapping[str, Kept]  # predictions of its models, by their files' names
    classes: int | None
    notes: Sequence[str]  # what is cut, missing or unfinished
    cell: Cell | None = None  # its place in a comparison of methods

    @property
    def name(self) -> str:
        here = self.folder.resolve()
        return f"{here.parent.name}/{here.name}" if here.name.startswith("seed-") else here.name

    @property
    def seed(self) -> int | None:
        return next(iter(self.config.recipe.run.seeds), None)

    @property
    def test_images(self) -> int | None:
        """All of the test set."""
        return self.config.data.test

    @property
    def images(self) -> int | None:
        """Those of the test set that accuracies are of: that could be read."""
        unread = self.result.unreadable_test_images if self.result else 0
        return max(0, self.test_images - unread) if self.test_images is not None else None

    @property
    def main(self) -> str:
        """The stage that the run is about: the method's, or dense training where there is nothing else."""
        stages = list(dict.fromkeys(row.run for row in self.rows))
        return next((stage for stage in stages if stage not in ("dense", "finetune")), stages[0])

    @property
    def planned(self) -> int:
        """Epochs of the main stage."""
        try:
            return self.recipe.epochs if self.recipe else len(self.stage(self.main))
        except ValueError:
            return len(self.stage(self.main))

    def stage(self, name: str) -> list[EpochRow]:
        return [row for row in self.rows if row.run == name]

    def phase_ends(self, name: str) -> list[PhaseEnd]:
        return [end for end in self.ends if end.run == name]


def expand(paths: Iterable[Path]) -> list[Path]:
    """Run folders. One of several seeds stands for those of its seeds that have begun, a comparison for its runs."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ReportError(f"{path}: there is no such folder; type a folder that `acdc train` wrote")
        if compared := cells.runs(path):
            found += compared
            continue
        begun = [seed.path for seed in RunFolder(path).seeds() if seed.metrics.is_file()]
        if begun and not RunFolder(path).metrics.is_file():
            found += begun
        else:
            found.append(path)
    twice = {path for path in found if [other.resolve() for other in found].count(path.resolve()) > 1}
    if twice:
        raise ReportError(f"{sorted(twice)[0]}: named more than once; type each run once")
    return found


def config_of(folder: Path) -> RunConfig:
    """What a run says of itself; without it nothing else can be read."""
    if (config := json_files.read(RunConfig, RunFolder(folder).config)) is not None:
        return config
    if RunFolder(folder).metrics.is_file():
        raise ReportError(
            f"{folder}: its config.json is gone, which says what was run; put it back, or type another run's folder"
        )
    raise ReportError(f"{folder}: there is no run (no config.json) in this folder; type a run's folder")


def read(folder: Path) -> Run:
    config = config_of(folder)
    notes: list[str] = []
    rows = _in_order(_epochs(RunFolder(folder).metrics, notes))
    ends = _lines(PhaseEnd, RunFolder(folder).phases, notes)
    if ends is None:
        notes.append("There is no phases.jsonl: masks, layers and magnitudes are not shown.")
    recipe = _recipe(config, notes)
    result = json_files.read(RunResult, RunFolder(folder).result)
    if result is None:
        last = rows[-1]
        notes.insert(
            0,
            f"This run is not complete (no result.json): it stands after epoch {last.epoch + 1} of the stage "
            f"“{last.run}”, and numbers are of the last epoch that was measured.",
        )
    kept = pairs.kept(folder, notes)
    found, classes = pairs.agreeing(kept, config.data.test, notes), None
    if not RunFolder(folder).predictions.is_file():
        found, classes = pairs.compared(json_files.read(AgreementFile, RunFolder(folder).agreement) or AgreementFile())
        if not found and result is not None and pairs.any_among(result):
            notes.append("There is no predictions.safetensors: agreement between the models is not shown.")
    classes = next((one.classes for one in kept.values()), classes)
    if classes is None and ends:
        classes = list(ends[-1].filters.values())[-1]
    return Run(
        folder=folder,
        config=config,
        recipe=recipe,
        rows=rows,
        ends=ends or [],
        result=result,
        pairs=found,
        kept=kept,
        classes=classes,
        notes=notes,
        cell=cells.of(folder),
    )


def _epochs(path: Path, notes: list[str]) -> list[EpochRow]:
    """The epochs that have ended, at least one."""
    found = json_files.read_lines(EpochRow, path)
    if not found or not (found.records or found.checked()):
        raise NotBegunError(
            f"{path.parent}: no epoch has ended yet ({path.name}); wait for the first, then report again"
        )
    return _told(found, path, notes)


def _in_order(rows: Sequence[EpochRow]) -> list[EpochRow]:
    """Each epoch once, as it was written last; stages as they began, and the epochs of each in their order."""
    stages = list(dict.fromkeys(row.run for row in rows))
    once = {(stages.index(row.run), row.epoch): row for row in rows}
    return [once[key] for key in sorted(once)]


def _lines(kind: type[T], path: Path, notes: list[str]) -> list[T] | None:
    found = json_files.read_lines(kind, path)
    return _told(found, path, notes) if found is not None else None


def _told(found: json_files.Lines[T], path: Path, notes: list[str]) -> list[T]:
    """The lines that are whole. A crash cuts the last one; any other is named as well."""
    bad = sorted({**found.cut, **found.wrong})
    if bad:
        named = ", ".join(map(str, bad[:5])) + (" and others" if len(bad) > 5 else "")
        only_last = [*found.cut] == bad == [found.count]
        cut = "is cut short in its last line" if only_last else "has lines that are not whole"
        why = "".join(f" Line {number}: {error.problem}." for number, error in [*found.wrong.items()][:1])
        notes.append(f"{path.name} {cut} (line {named}): the {len(found.records)} whole lines are shown.{why}")
    return found.records


def _recipe(config: RunConfig, notes: list[str]) -> Recipe | None:
    try:
        return load.from_dict(config.recipe.settings)
    except ValueError as error:
        why = " ".join(str(error).split()) or type(error).__name__
        notes.append(
            f"This acdc cannot read all settings of the run ({why}): the paper’s values are not shown beside it."
        )
        return None
