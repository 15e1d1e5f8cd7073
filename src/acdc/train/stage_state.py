"""The state of a stage as its checkpoints hold it: that of a plain model, whether or not it is sharded.

A sharded model's checkpoint is gathered on rank 0 and split again when it is loaded, so it resumes on any number of
processes. Random generators, running sums and the memory of a language model are kept by rank.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from acdc.core.gathered_state import gather_nested, split_optimizer, split_tensors
from acdc.core.result import StateDict
from acdc.runs import checkpoint
from acdc.train import optim
from acdc.train.distributed import restore_skipped
from acdc.train.tasks import is_text
from acdc.typed_data import DataError

if TYPE_CHECKING:
    from acdc.train.stage import Stage


def collect(stage: "Stage") -> StateDict:
    """Return the state of a stage but for what each rank adds; of a sharded model, on rank 0 alone."""
    first, sparsifier = stage.setting.world.first, stage.sparsifier

    def whole(state: StateDict) -> StateDict:
        return gather_nested(state, keep=first) if stage.sharded else state

    return {
        "stage": stage.index,
        "name": stage.name,
        "epoch": stage.epoch,
        "batch": stage.batch,
        "steps_per_epoch": stage.loaders.train.steps,
        "model": whole(stage.model.state_dict()),
        "optimizer": whole(stage.optimizer.state_dict()),
        "sparsifier": sparsifier.state_dict(gather="rank0") if sparsifier else None,
        "scaler": stage.scaler.state_dict() if stage.scaler else None,
        "ema": stage.ema.state_dict() if stage.ema is not None else None,
        "dynamics": stage.dynamics.state_dict(),
        "best": stage.best,
        "best_weights": stage.best_weights,
        "seconds": stage.seconds,
    }


def load(stage: "Stage", state: StateDict) -> None:
    """Resume where `state` was saved; raise a DataError before anything changes if it does not fit."""
    recipe, device, train = stage.recipe, stage.setting.device, stage.loaders.train
    checkpoint.check_fit(
        state,
        epochs=stage.epochs,
        steps_per_epoch=train.steps,
        model=stage.model,
        optimizer=stage.optimizer,
        optimizer_keeps=optim.state_of_a_parameter(recipe.optimizer, device, recipe.train.precision),
        sparsifier=stage.sparsifier,
        scaler=stage.scaler,
        ema=stage.ema,
        dynamics=stage.dynamics,
    )
    text = is_text(train)
    if ("language" in state) != text:
        raise DataError("language", f"{'one' if text else 'none'} in this stage")
    stage.epoch, stage.batch = state["epoch"], state["batch"]
    stage.model.load_state_dict(split_tensors(state["model"], stage.model.state_dict()))
    stage.optimizer.load_state_dict(split_optimizer(state["optimizer"], stage.optimizer))
    if stage.sparsifier:
        stage.sparsifier.load_state_dict(state["sparsifier"])
    if stage.scaler:
        stage.scaler.load_state_dict(state["scaler"])
    if stage.ema is not None:
        stage.ema.load_state_dict(state["ema"])
    stage.dynamics.load_state_dict(state["dynamics"])
    stage.best, stage.best_weights = state["best"], state["best_weights"]
    stage.seconds = state["seconds"]
    restore_skipped(train, state["skipped_images"])
    _load_own(stage, state)
    if text:
        stage.parameters = list(state["language"]["parameters"])


def _load_own(stage: "Stage", state: StateDict) -> None:
    """Load what is kept by rank. With another number of them, rank 0 takes all sums, and new ranks their own seed."""
    world, saved = stage.setting.world, len(state["rng"])
    rank = min(world.rank, saved - 1)
    if world.rank < saved:
        checkpoint.set_rng_state(state["rng"][rank])
    totals, curves = state["totals"], state.get("curves")
    if saved == world.size:
        stage.totals.load(totals[rank], curves[rank] if curves else None, stage.batch)
    else:
        whole = _merged_curves(curves) if curves and world.first else None
        stage.totals.load(_merged(totals, first=world.first), whole, stage.batch)
    if "language" in state and saved == world.size:
        stage.task.load_state_dict(state["language"]["memory"][rank], stage.setting.device)


def _merged(totals: Sequence[Sequence[float]], *, first: bool) -> list[float]:
    """Return the sums of all ranks for the first one, and none for others; see step.Totals."""
    *sums, finite, steps = zip(*totals, strict=True)
    return [*(sum(each) if first else 0.0 for each in sums), min(finite), min(steps)]


def _merged_curves(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Return the sum of all ranks' loss curves."""
    return [[sum(point) for point in zip(*of_rank, strict=True)] for of_rank in zip(*curves, strict=True)]
