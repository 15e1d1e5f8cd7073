"""The facts in a report of a run: its models, phases, costs and environment, worked out once for all formats."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from acdc import formatting as fmt
from acdc.flops.training import epoch_flops
from acdc.measure.dynamics import PhaseEnd
from acdc.recipes import load, paper
from acdc.recipes.schema import PaperRow
from acdc.report.deployment import model_sizes
from acdc.report.read import Run
from acdc.runs.quality import ACCURACY, PERPLEXITY
from acdc.runs.records import BestEpoch, EpochRow, LanguageResult, ModelResult

ROLES = {"sparse": "sparse", "dense": "twin", "finetuned": "finetuned", "baseline": "baseline"}
NOUNS = {
    "sparse": "the sparse model",
    "twin": "its dense twin",
    "finetuned": "the fine-tuned twin",
    "baseline": "the dense baseline",
}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that a run produced or, for an incomplete run, the last of its kind so far."""

    role: str  # of ROLES, or "other"
    title: str
    score: float  # on the test set: accuracy or perplexity, by the run's quality
    loss: float
    sparsity: float  # zeros / prunable weights
    reported_sparsity: float | None  # zeros / (prunable weights + norm parameters), as the paper counts
    flops: int
    dense_flops: int
    best: BestEpoch | None  # the best epoch of the phases run.best names, or the twin's, and what chose it
    training: float | None  # FLOPs spent to train it, as a fraction of a dense run of as many epochs
    dense_bytes: int | None
    sparse_bytes: int | None
    paper: str | None
    language: LanguageResult | None = None

    @property
    def ratio(self) -> float:
        """Return inference FLOPs as a fraction of the dense model's."""
        return self.flops / self.dense_flops


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A phase of the main stage."""

    name: str
    kind: str
    first: int  # epochs, from 0
    last: int
    score: float  # at its end, like everything below
    best: float
    sparsity: float
    flops: int
    seconds: float
    end: PhaseEnd | None


@lru_cache(maxsize=128)
def phases(run: Run) -> list[Phase]:
    """Return the phases of the main stage."""
    stage, phases = run.main, []
    ends = {end.epoch: end for end in run.phase_ends(stage)}
    for (kind, name), group in groupby(run.stage(stage), lambda row: (row.kind, row.phase)):
        rows = list(group)
        phases.append(
            Phase(
                name=name,
                kind=kind,
                first=rows[0].epoch,
                last=rows[-1].epoch,
                score=run.quality.of(rows[-1]),
                best=min(map(run.quality.of, rows), key=run.quality.rank),
                sparsity=rows[-1].sparsity,
                flops=rows[-1].flops,
                seconds=sum(row.seconds for row in rows),
                end=ends.get(rows[-1].epoch),
            )
        )
    return phases


def every_weight_returned(run: Run) -> bool:
    """Return True if dense phases after the first left no weight at zero and no filter empty."""
    dense = [phase for phase in phases(run)[1:] if phase.kind == "dense"]
    rows = [row for row in run.stage(run.main) if row.kind == "dense" and dense and row.epoch >= dense[0].first]
    dead = any(any(phase.end.dead_filters.values()) for phase in dense if phase.end)
    return bool(dense) and not dead and not any(row.sparsity for row in rows)


def dense_flops(run: Run) -> int:
    """Return the FLOPs of a forward pass with every weight; for an incomplete run, the most it has had."""
    return run.result.models[0].dense_flops if run.result else max(1, *(row.flops for row in run.rows))


def training_flops(run: Run, rows: Sequence[EpochRow]) -> list[int]:
    """Return the training FLOPs per sample in each of these epochs, by the rule on the method's card."""
    dense, sparse = dense_flops(run), None
    try:
        method = run.recipe.build_method() if run.recipe else None
    except ValueError:
        method = None
    if method and rows:
        steps = max(1, round(rows[0].step / (rows[0].epoch + 1)))
        sparse = partial(method.sparse_flops, steps_per_epoch=steps)
    return [round(row.size_share * epoch_flops(row.kind, row.flops, dense, sparse=sparse)) for row in rows]


def training_cost(run: Run, role: str) -> float | None:
    """Return the FLOPs spent to train the model of this role, as a fraction of a dense run of as many epochs."""
    rows = run.stage(run.main)
    if role == "baseline":
        rows = run.stage("dense")
    elif role in ("twin", "finetuned"):
        last = max((row.epoch for row in rows if row.kind == "dense"), default=-1)
        tuned = run.stage("finetune") if role == "finetuned" else []
        rows = [row for row in rows if row.epoch <= last] + tuned
    elif role == "other":
        return None
    return sum(training_flops(run, rows)) / (3 * dense_flops(run)) / run.planned if rows else None


@lru_cache(maxsize=128)
def models(run: Run) -> list[Model]:
    """Return the models of the final table; for an incomplete run, the last of each kind so far."""
    if run.result is not None:
        return [_finished(run, row) for row in run.result.models]
    latest = []
    main = run.stage(run.main)
    for role, rows in (
        ("baseline", run.stage("dense")),
        ("sparse", [row for row in main if row.kind == "sparse"] if run.main != "dense" else []),
        ("twin", [row for row in main if row.kind == "dense"] if run.main != "dense" else []),
        ("finetuned", run.stage("finetune")),
    ):
        if rows:
            latest.append(_so_far(run, role, rows[-1]))
    return latest


def noun(role: str) -> str:
    """Return the name of a model of this role, without an article."""
    return NOUNS[role].removeprefix("the ").removeprefix("its ")


def model_of(run: Run, role: str) -> Model | None:
    """Return the run's model of this role."""
    return next((model for model in models(run) if model.role == role), None)


def main_model(run: Run) -> Model:
    """Return the main model of a run: the sparse one, or the dense one if there is no other."""
    return model_of(run, "sparse") or model_of(run, "baseline") or models(run)[0]


def dense_rival(run: Run) -> Model | None:
    """Return the dense model to compare the sparse one with: the run's own baseline, or the twin."""
    return next((model for role in ("baseline", "twin", "finetuned") if (model := model_of(run, role))), None)


def remarks(run: Run) -> list[str]:
    """Return what a reader should know about a run, besides what is wrong with it."""
    texts = [f"Warning at start: {text}." for text in run.config.warnings]
    if run.quality is PERPLEXITY:  # how the text was split, and what of it was evaluated when
        texts += [f"{fmt.capitalize(note)}." for note in run.config.settings.get("notes", ()) if isinstance(note, str)]
    judged, images = run.images, run.test_images
    if judged is not None and images is not None and judged < images:
        unread = f"{images - judged:,} cannot be read"
        texts.append(f"Accuracies cover {judged:,} of {images:,} test images: {unread}.")
    return texts


def epoch_seconds(run: Run) -> dict[str, float]:
    """Return the median measured time of an epoch of each kind of the main stage."""
    kinds: dict[str, list[float]] = {}
    for row in run.stage(run.main):
        kinds.setdefault(row.kind, []).append(row.seconds)
    return {kind: statistics.median(seconds) for kind, seconds in kinds.items()}


def tokens_per_second(run: Run) -> float | None:
    """Return the median speed of the main stage's epochs, without evaluations; None for image models."""
    speeds = [row.language.tokens_per_second for row in run.stage(run.main) if row.language]
    return statistics.median(speeds) if speeds else None


def environment(run: Run) -> dict[str, Any]:
    """Return hardware, versions and execution from config.json."""
    hardware, versions = run.config.hardware, run.config.versions
    threads = f"{hardware.get('cores', '?')} cores, {hardware.get('threads', '?')} threads"
    entries = {
        "GPU": hardware.get("gpu"),
        "CPU": f"{hardware['cpu']} ({threads})" if "cpu" in hardware else None,
        "platform": run.config.platform,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "processes": run.config.processes,
        "execution": "; ".join(run.config.execution),
        "started": run.config.started,
        "resumed": len(run.config.resumed),
    }
    return {key: value for key, value in entries.items() if value}


def _finished(run: Run, row: ModelResult) -> Model:
    stem = Path(row.file).stem
    role = ROLES.get(stem, "other")
    dense, sparse = model_sizes(run, row.file, row.sparsity, row.reported_sparsity)
    return Model(
        role=role,
        title=row.model,
        score=run.quality.of(row),
        loss=row.test_loss,
        sparsity=row.sparsity,
        reported_sparsity=row.reported_sparsity,
        flops=row.flops,
        dense_flops=row.dense_flops,
        best=row.best,
        training=training_cost(run, role),
        dense_bytes=dense,
        sparse_bytes=sparse,
        paper=_paper_result(run, role),
        language=row.language,
    )


def _so_far(run: Run, role: str, row: EpochRow) -> Model:
    title = {"sparse": "compressed", "twin": "dense phases", "baseline": "dense baseline", "finetuned": "twin, tuned"}
    dense, sparse = model_sizes(run, "", row.sparsity, None)
    return Model(
        role=role,
        title=f"{title[role]}, epoch {row.epoch + 1}",
        score=run.quality.of(row),
        loss=row.test_loss,
        sparsity=row.sparsity,
        reported_sparsity=None,
        flops=row.flops,
        dense_flops=dense_flops(run),
        best=None,
        training=None,
        dense_bytes=dense,
        sparse_bytes=sparse,
        paper=None,
    )


# The paper


@lru_cache(maxsize=128)
def _published(run: Run) -> PaperRow | None:
    return paper.row_for(run.recipe) if run.recipe else None


def _by_role(run: Run, row: PaperRow) -> dict[str, paper.Published]:
    assert run.recipe is not None, "a row belongs to a recipe"
    return {ROLES[file]: published for file, published in paper.results(run.recipe, row).items()}


def _paper_result(run: Run, role: str) -> str | None:
    row = _published(run)
    published = _by_role(run, row).get(role) if row else None
    return str(published) if published else None


def paper_note(run: Run) -> str:
    """Return the note on the paper's row that the run is compared with."""
    row = _published(run)
    return row.note if row else ""


def paper_rows(run: Run) -> list[tuple[str, float, float, float | None]]:
    """Return rows of a label, our value, the paper's, and its standard deviation. Accuracies are in %."""
    row, lines = _published(run), list[tuple[str, float, float, float | None]]()
    if row is None:
        return []
    published = _by_role(run, row)
    for model in models(run):
        if model.role not in published:
            continue
        (value, std, _), name = published[model.role], noun(model.role)
        unit = " (%)" if run.quality is ACCURACY else ""
        lines.append((f"{name}, last epoch{unit}", run.quality.scaled(model.score), value, std))
        if model.best:
            best = f"{name}, best epoch on the {model.best.chosen_on} set{unit}"
            lines.append((best, run.quality.scaled(run.quality.best(model.best)), value, std))
    if (sparse := model_of(run, "sparse")) and run.result is not None:
        if row.inference is not None:
            lines.append(("inference FLOPs, of dense", sparse.ratio, row.inference, None))
        if row.training is not None and sparse.training is not None:
            usual = load.read(run.recipe.name).epochs if run.recipe else run.planned  # what the paper divides by
            name = f"training FLOPs, of {usual} dense epochs"
            lines.append((name, sparse.training * run.planned / usual, row.training, None))
    return lines
