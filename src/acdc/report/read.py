"""Run folders as a report reads them: whatever is intact is used, and whatever is not becomes a note."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from acdc import io
from acdc.measure.dynamics import PhaseEnd
from acdc.recipes import load
from acdc.recipes.findings import RecipeError
from acdc.recipes.schema import Recipe
from acdc.report import pair_agreement
from acdc.report.pair_agreement import Pair
from acdc.runs import json_files
from acdc.runs.folder import ComparisonFolder, RunFolder
from acdc.runs.predictions import Kept
from acdc.runs.quality import ACCURACY, Quality, quality_of
from acdc.runs.records import AgreementFile, Comparison, EpochRow, RunConfig, RunResult, SpeedFile

T = TypeVar("T")


class ReportError(ValueError):
    """A report that cannot be written; the text says why, and what to do instead."""


class NotBegunError(ReportError):
    """A run that has not finished a single epoch. Among other runs it is mentioned and left out."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The place of a run in a comparison: one method, or a variant of it, at one sparsity, for one seed."""

    variant: str  # the method's own name if there is no variant
    method: str
    epochs: int  # of the dense training that costs are compared with
    settings: tuple[str, ...] = ()  # of the variant


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run folder, as far as it can be read."""

    folder: Path
    config: RunConfig
    recipe: Recipe | None  # None if a newer or older acdc wrote settings that this one cannot read
    rows: Sequence[EpochRow]
    ends: Sequence[PhaseEnd]
    result: RunResult | None
    pairs: Sequence[Pair]  # how far its models agree
    kept: Mapping[str, Kept]  # predictions of its models, by their files' names
    classes: int | None
    notes: Sequence[str]  # what is damaged, missing or unfinished
    cell: Cell | None = None
    qualified: bool = False  # another run of the report has a folder of the same name
    speed: SpeedFile = field(default_factory=SpeedFile)

    @property
    def name(self) -> str:
        """Return the folder's name; for the folder of a seed, or if another has that name, also its parent's."""
        return folder_name(self.folder, qualified=self.qualified)

    @property
    def seed(self) -> int | None:
        return next(iter(self.config.recipe.run.seeds), None)

    @property
    def data_name(self) -> str:
        """Return the name of the data."""
        return self.config.data_name or "?"

    @property
    def test_images(self) -> int | None:
        """Return the size of the test set."""
        return self.config.data.test

    @property
    def images(self) -> int | None:
        """Return the number of test images that accuracies were measured on: those that could be read."""
        unread = self.result.unreadable_test_images if self.result else 0
        return max(0, self.test_images - unread) if self.test_images is not None else None

    @property
    def quality(self) -> Quality:
        """Return the measure by which its models are compared."""
        return quality_of(self.rows[0])

    @property
    def main(self) -> str:
        """Return the name of the main stage: the method's, or dense training if there is nothing else."""
        stages = list(dict.fromkeys(row.run for row in self.rows))
        return next((stage for stage in stages if stage not in ("dense", "finetune")), stages[0])

    @property
    def planned(self) -> int:
        """Return the planned number of epochs of the main stage."""
        try:
            return self.recipe.epochs if self.recipe else len(self.stage(self.main))
        except ValueError:
            return len(self.stage(self.main))

    def stage(self, name: str) -> list[EpochRow]:
        """Return the epochs of a stage."""
        return [row for row in self.rows if row.run == name]

    def phase_ends(self, name: str) -> list[PhaseEnd]:
        """Return the ends of a stage's phases."""
        return [end for end in self.ends if end.run == name]


def expand(paths: Iterable[Path]) -> list[Path]:
    """Return the run folders that paths refer to: those that began in a folder of seeds, or all of a comparison."""
    folders: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ReportError(f"{path}: there is no such folder; name a folder written by acdc train")
        if compared := comparison_runs(path):
            folders += compared
            continue
        begun = [seed.path for seed in RunFolder(path).seeds() if seed.metrics.is_file()]
        if begun and not RunFolder(path).metrics.is_file():
            folders += begun
        else:
            folders.append(path)
    resolved = [folder.resolve() for folder in folders]
    if twice := {folder for folder in folders if resolved.count(folder.resolve()) > 1}:
        raise ReportError(f"{sorted(twice)[0]}: named more than once; name each run once")
    return folders


def folder_name(folder: Path, *, qualified: bool = False) -> str:
    """Return a folder's name, with that of its parent if asked or if it is the folder of a seed."""
    here = folder.resolve()
    return f"{here.parent.name}/{here.name}" if qualified or here.name.startswith("seed-") else here.name


def same_names(folders: Sequence[Path]) -> set[Path]:
    """Return the folders that have the name of another, such as the same run of two comparisons."""
    names = Counter(folder.resolve().name for folder in folders)
    return {folder for folder in folders if names[folder.resolve().name] > 1}


def config_of(folder: Path) -> RunConfig:
    """Read a run's config.json, without which nothing else can be understood."""
    if (config := json_files.read(RunConfig, RunFolder(folder).config)) is not None:
        return config
    if RunFolder(folder).metrics.is_file():
        raise ReportError(
            f"{folder}: its config.json, which says what was run, is gone; restore it, or name another run's folder"
        )
    raise ReportError(f"{folder}: there is no run (no config.json) in this folder; name a run's folder")


def read(folder: Path, comparisons: "Comparisons | None" = None, *, qualified: bool = False) -> Run:
    """Read a run folder. The run's notes mention what is damaged or missing.

    Readers of many runs share `comparisons`, so that a comparison's file is read once; `qualified` adds the parent's
    name to the run's.
    """
    config = config_of(folder)
    notes: list[str] = []
    rows = _in_order(_epochs(RunFolder(folder).metrics, notes))
    ends = _lines(PhaseEnd, RunFolder(folder).phases, notes)
    if ends is None:
        notes.append("phases.jsonl is missing: masks, layers and magnitudes are not shown.")
    recipe = _recipe(config, notes)
    result = json_files.read(RunResult, RunFolder(folder).result)
    if result is None:
        last = rows[-1]
        notes.insert(
            0,
            f"This run is not complete (no result.json): it has finished epoch {last.epoch + 1} of the stage "
            f"“{last.run}”. Numbers are those of the last epoch measured.",
        )
    damaged = _damaged_models(folder, result, notes)
    kept = pair_agreement.usable_predictions(folder, notes, damaged)
    pairs, classes = pair_agreement.from_predictions(kept, config.data.test, notes), None
    if not RunFolder(folder).predictions.is_file():
        measured = json_files.read(AgreementFile, RunFolder(folder).agreement) or AgreementFile()
        pairs, classes = pair_agreement.from_comparisons(measured)
        images = result is not None and quality_of(result.models[0]) is ACCURACY  # text has no predictions to keep
        if not pairs and result is not None and images and pair_agreement.has_pair(result):
            notes.append("predictions.safetensors is missing: agreement between the models is not shown.")
    classes = next((one.classes for one in kept.values()), classes)
    if classes is None and ends and quality_of(rows[0]) is ACCURACY:  # text has a vocabulary instead
        classes = list(ends[-1].filters.values())[-1]
    return Run(
        folder=folder,
        config=config,
        recipe=recipe,
        rows=rows,
        ends=ends or [],
        result=result,
        pairs=pairs,
        kept=kept,
        classes=classes,
        notes=notes,
        cell=(comparisons or Comparisons()).cell_of(folder),
        qualified=qualified,
        speed=_speed(folder, notes),
    )


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read several run folders, and the comparisons they belong to once."""
    comparisons, same = Comparisons(), same_names(folders)
    return [read(folder, comparisons, qualified=folder in same) for folder in folders]


def _speed(folder: Path, notes: list[str]) -> SpeedFile:
    """Return what `acdc bench` measured; a file that cannot be read is noted, as measuring again replaces it."""
    try:
        return json_files.read(SpeedFile, RunFolder(folder).speed) or SpeedFile()
    except json_files.RecordError as error:
        notes.append(f"Measured speed is not shown: {error.path.name}: {error.problem}. Delete it, and run acdc bench.")
        return SpeedFile()


def _damaged_models(folder: Path, result: RunResult | None, notes: list[str]) -> set[str]:
    """Return the names of model files that have changed since they were written, and note each."""
    damaged = set()
    for path in (folder / model.file for model in result.models) if result else ():
        try:
            if path.is_file():
                io.verify_safetensors(path)
        except io.UnsealedError:  # from another tool or an older acdc: it cannot be checked
            continue
        except (io.IntegrityError, OSError) as error:
            damaged.add(path.stem)
            notes.append(
                f"A model is damaged: {error}. Its numbers were measured earlier. Restore the file from a copy, or "
                "train again."
            )
    return damaged


def _epochs(path: Path, notes: list[str]) -> list[EpochRow]:
    """Return the epochs that have ended, at least one, or raise."""
    lines = json_files.read_lines(EpochRow, path)
    if not lines or not (lines.records or lines.checked()):
        raise NotBegunError(
            f"{path.parent}: no epoch has ended yet ({path.name}); wait for the first, then report again"
        )
    return _intact(lines, path, notes)


def _in_order(rows: Sequence[EpochRow]) -> list[EpochRow]:
    """Return each epoch once, as last written: stages in order of their start, and the epochs of each in order."""
    stages = list(dict.fromkeys(row.run for row in rows))
    once = {(stages.index(row.run), row.epoch): row for row in rows}
    return [once[key] for key in sorted(once)]


def _lines(kind: type[T], path: Path, notes: list[str]) -> list[T] | None:
    lines = json_files.read_lines(kind, path)
    return _intact(lines, path, notes) if lines is not None else None


def _intact(lines: json_files.Lines[T], path: Path, notes: list[str]) -> list[T]:
    """Return the intact lines, and note the others. A crash truncates the last one."""
    bad = sorted({**lines.cut, **lines.wrong})
    if bad:
        numbers = ", ".join(map(str, bad[:5])) + (" and others" if len(bad) > 5 else "")
        only_last = [*lines.cut] == bad == [lines.count]
        problem = "has a truncated last line" if only_last else "has damaged lines"
        why = "".join(f" Line {number}: {error.problem}." for number, error in [*lines.wrong.items()][:1])
        notes.append(f"{path.name} {problem} (line {numbers}): the {len(lines.records)} intact lines are shown.{why}")
    return lines.records


def _recipe(config: RunConfig, notes: list[str]) -> Recipe | None:
    try:
        return load.from_dict(config.recipe.settings)
    except RecipeError as error:
        why = f"{error.source}: {'; '.join(error.problems)}"
        notes.append(
            f"This version of acdc cannot read all settings of the run ({why}): the paper’s values are not shown "
            "beside it."
        )
        return None


# Comparisons of methods


def read_comparison(folder: Path) -> Comparison | None:
    """Read comparison.json of a comparison's folder; return None if the folder does not hold one."""
    return ComparisonFolder(folder).read()


def comparison_runs(folder: Path) -> list[Path]:
    """Return the run folders of a comparison, in the order they joined it."""
    return ComparisonFolder(folder).runs()


class Comparisons:
    """The comparisons that runs belong to, each read once."""

    def __init__(self) -> None:
        self._read: dict[Path, Comparison | None] = {}

    def cell_of(self, run: Path) -> Cell | None:
        """Return the place of a run in the comparison whose folder contains it."""
        here = run.resolve()
        if here.parent not in self._read:
            self._read[here.parent] = read_comparison(here.parent)
        comparison = self._read[here.parent]
        if comparison is None or here.name not in comparison.cells:
            return None
        cell = comparison.cells[here.name]
        return Cell(variant=cell.variant, method=cell.method, epochs=comparison.epochs, settings=cell.settings)


def log_end(run: Path) -> str:
    """Return how the log of a comparison's run ends, which may explain why it stopped: "; its log ends: …"."""
    try:
        lines = run.with_name(f"{run.name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"; its log ends: {last[:200]}" if last else ""
