"""Follows a run from checkpoint to checkpoint and measures how concentrated the gradient is at each.

The question is whether the concentrated PL condition holds where training goes. Kept are the run's last checkpoints, as
many as `run.keep` says, and its final models: a run to be looked at from its beginning is trained with a large
`run.keep` and a `run.checkpoint_every` of a few epochs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from acdc.core.method import Method
from acdc.data.images import full_size_epoch
from acdc.measure.concentration import Concentration, measure_concentration, secant_smoothness
from acdc.runs import checkpoint
from acdc.runs.folder import RunFolder
from acdc.sparsity.prunable import find_prunable
from acdc.train.experiment import reproducible
from acdc.train.prepare import PreparedRun
from acdc.train.saved_models import SavedModelError, load_weights, model_files


@dataclass(frozen=True)
class TrajectoryPoint:
    """One kept model of a run."""

    file: str
    stage: str  # "" for a final model
    step: int | None  # None for a final model
    epoch: float | None
    phase: str  # kind of the phase it was taken in: "dense" or "sparse"; "" for a final model
    concentration: Concentration
    smoothness: float | None  # since the checkpoint before: no more than the gradient's Lipschitz constant


@dataclass(frozen=True)
class Summary:
    """The condition over a whole run, for one r. The true α of the run lies between its two bounds."""

    r: int
    least_share: float
    alpha_proved: float  # (r, α)-CPL holds at every point with this α: f* is 0 or more
    alpha_at_most: float | None  # it fails at some point with a larger one: f* is no more than the least f seen
    beta: float | None  # no less than this
    k_needed: float | None  # by Theorem 1, no less than this


def kept_counts(prepared: PreparedRun, shares: Sequence[float]) -> list[int]:
    """Return r for each share of the prunable weights."""
    size = find_prunable(prepared.skeleton).size
    return [max(1, round(share * size)) for share in shares]


def follow(
    run: Path,
    prepared: PreparedRun,
    counts: Sequence[int],
    problems: list[str],
    *,
    batches: int | None = None,
    on_begin: Callable[[str], None] = lambda file: None,
) -> list[TrajectoryPoint]:
    """Measure every checkpoint and model that a run kept; why one cannot be read goes to `problems`."""
    saved = [(path, stage, step) for path, stage, step in checkpoint.listed(RunFolder(run).checkpoints)]
    files = [*saved, *((run / name, "", None) for name in model_files(run))]
    recipe, points, before = prepared.recipe, [], None
    model, train = prepared.new_model().to(prepared.device), prepared.data.loaders.train
    with reproducible(recipe, prepared.device):
        for path, stage, step in files:
            on_begin(path.name)
            try:
                load_weights(model, path)
            except SavedModelError as error:
                problems.append(str(error))
                continue
            found, slopes = measure_concentration(
                model,
                train.batches(full_size_epoch(train)),
                counts,
                most=batches,
                weight_decay=recipe.optimizer.weight_decay,
                label_smoothing=recipe.train.label_smoothing,
            )
            here = {name: p.detach().clone() for name, p in model.named_parameters()}, slopes
            same = before is not None and stage and before[0] == stage
            smoothness = secant_smoothness(before[1], here) if before is not None and same else None
            before = (stage, here)
            epoch = None if step is None else step / prepared.steps_per_epoch
            phase = _phase(prepared.method, recipe.method.name, stage, step, prepared.steps_per_epoch)
            points.append(TrajectoryPoint(path.name, stage, step, epoch, phase, found, smoothness))
    if prepared.device.type == "cuda":
        torch.cuda.empty_cache()
    return points


def of_the_method(points: Sequence[TrajectoryPoint], method: str) -> list[TrajectoryPoint]:
    """Return the points of the method's own stage, in its order; all of them if it left no checkpoint."""
    return [point for point in points if point.stage == method] or list(points)


def summarise(points: Sequence[TrajectoryPoint], r: int, needed: Callable[[float, float, int], float]) -> Summary:
    """Return the worst over these points: the least share and α, the largest β, and what `needed(α, β, k*)` asks."""
    lowest = min(point.concentration.value for point in points)
    above = [point.concentration for point in points if point.concentration.value > lowest]
    at_most = min((2 * one.largest[r] / (one.value - lowest) for one in above), default=None)
    beta = max((point.smoothness for point in points if point.smoothness is not None), default=None)
    return Summary(
        r=r,
        least_share=min(point.concentration.share(r) for point in points),
        alpha_proved=min(point.concentration.alpha(r) for point in points),
        alpha_at_most=at_most,
        beta=beta,
        k_needed=None if beta is None or at_most is None else needed(at_most, beta, r),
    )


def _phase(method: Method | None, name: str, stage: str, step: int | None, steps_per_epoch: int) -> str:
    if step is None:
        return ""
    if method is None or stage != name:
        return "dense"
    return method.schedule.phase_at(max(step - 1, 0), steps_per_epoch).kind
