"""The search for where to resume a run: its newest intact checkpoint that fits its recipe, data and processes."""

import os
from collections.abc import Sequence
from pathlib import Path

from acdc.errors import UsageError
from acdc.recipes import load as recipes
from acdc.recipes.findings import RecipeError
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint, differences, folder
from acdc.runs.checkpoint import Checkpoint, CheckpointError, NoCheckpointError, check_contents
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import RecordError
from acdc.train import saved_models
from acdc.train.distributed import World
from acdc.train.prepare import PreparedRun


def resume_command(out: Path, processes: int = 1) -> str:
    """Return the command that resumes a run, to be typed on every node if there are several."""
    if processes == 1:
        return f"acdc train --resume {out}"
    nodes = max(1, processes // int(os.environ.get("LOCAL_WORLD_SIZE", processes)))
    several = f"--nnodes {nodes} " if nodes > 1 else ""
    return f"torchrun {several}--nproc-per-node {processes // nodes} -m acdc train --resume {out}"


def read_interrupted(out: Path, settings: Sequence[str]) -> tuple[Recipe, str | None]:
    """Read the recipe of an interrupted run, with `settings` changed, and the path of its data."""
    if not RunFolder(out).begun:
        raise UsageError([f"--resume {out}: this folder holds no run (no config.json); name the run's folder"])
    if RunFolder(out).complete:
        raise UsageError([f"--resume {out}: this run is already complete; its table is in {RunFolder(out).result}"])
    config = saved_models.read_config(out)
    try:
        return recipes.from_dict(config.recipe.settings, settings), config.root
    except RecipeError as error:
        raise UsageError([f"--resume {out}:", *error.problems]) from None


def find_checkpoint(run: PreparedRun, out: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the checkpoint to resume from (None if the run has no intact one), and warnings.

    Later epochs are dropped from the metrics, damaged lines restored, and damaged checkpoints renamed.
    """
    recipe, world, stages = run.recipe, run.world, list(run.plan)
    if difference := differences.data(saved_models.read_config(out).data, run.data.identity()):
        raise UsageError(
            [f"--resume {out}: its data has changed: {difference}; restore it (--data DIR), or start a new run"]
        )
    if not checkpoint.any_in(RunFolder(out).checkpoints):
        return None, _start_over(run, out, ())
    newest = find_newest(RunFolder(out).checkpoints, world)
    if isinstance(newest, NoCheckpointError):
        return None, _start_over(run, out, newest.skipped)
    check_contents(newest.path, newest.state)
    extra = newest.state["extra"]
    if difference := differences.first(extra["recipe"], recipe.to_dict()):
        raise UsageError(
            [
                f"--resume {out}: {newest.path.name} belongs to another recipe ({difference}); restore this run's own "
                "checkpoints, or start a new run"
            ]
        )
    stage, name = newest.state["stage"], newest.state["name"]
    if not 0 <= stage < len(stages) or stages[stage] != name:
        raise UsageError(
            [
                f"--resume {out}: {newest.path.name} belongs to stage {stage}, {name!r}, but the run's stages are "
                f"{', '.join(stages)}; restore this run's own checkpoints"
            ]
        )
    warnings = _other_world(run, out, newest) + _restore_metrics(run, out, newest)
    world.on_rank_zero(lambda: checkpoint.set_aside(RunFolder(out).checkpoints, newest.path))
    return newest, warnings


def _other_world(run: PreparedRun, out: Path, newest: Checkpoint) -> list[str]:
    """Return a warning if there are more or fewer processes than the run had; only sharded runs can resume so."""
    began, now = newest.state["extra"]["world"], run.world.size
    if began == now:
        return []
    memory = any(newest.state.get("language", {}).get("memory", ()))
    if run.recipe.train.parallel != "fsdp" or memory:
        why = ", and a model with a memory resumes on as many" if memory else ""
        raise UsageError(
            [
                f"--resume {out}: it ran with {began} processes, but now there are {now}{why}; run: "
                f"{resume_command(out, began)}"
            ]
        )
    return [
        f"the run had {began} processes and has {now} from here on: its state is the same, but each has another part "
        "of a batch, so sums round differently, and batch norms and dropout see other parts"
    ]


def find_newest(checkpoints: Path, world: World) -> Checkpoint | NoCheckpointError:
    """Read the newest intact checkpoint on every rank; if one rank cannot, raise its error on all of them.

    If no rank finds an intact one, the error is returned: the run can start over. Damaged ones are not renamed here: a
    rank that looks later would not see what the others saw.
    """
    newest, failure = None, None
    try:
        newest = checkpoint.newest(checkpoints)
    except CheckpointError as error:
        failure = error
    if failures := [error for error in world.gather(failure) if error]:
        if len(failures) == world.size and all(isinstance(error, NoCheckpointError) for error in failures):
            return failures[0]
        raise failures[0]
    assert newest is not None, "otherwise an error was raised"
    return newest


def epochs_done(run: PreparedRun, resume: Checkpoint | None) -> int:
    """Count the epochs, over all stages, that need not run again."""
    if resume is None:
        return 0
    stages, stage = list(run.plan.values()), resume.state["stage"]
    return sum(len(planned.kinds) for planned in stages[:stage]) + resume.state["epoch"] - stages[stage].first


def _start_over(run: PreparedRun, out: Path, skipped: Sequence[str]) -> list[str]:
    """Clear the way for a run without an intact checkpoint to begin again, and return warnings."""

    def clear() -> tuple[int, list[str]]:
        if skipped:
            checkpoint.set_aside(RunFolder(out).checkpoints, None)
        try:
            return folder.trim_metrics(out, _stages(run), -1, 0).dropped, []
        except RecordError as error:
            metrics = RunFolder(out).metrics
            lost = metrics.read_bytes().count(b"\n") if metrics.is_file() else 0
            RunFolder(out).set_lines_aside()
            return lost, [f"{error.path.name} is damaged ({error.problem}); renamed it to *{folder.DAMAGED}"]

    lost, damage = run.world.on_rank_zero(clear)
    reasons = [f"Skipped a checkpoint, {reason}; renamed it to *{folder.DAMAGED}" for reason in skipped] + damage
    kind = "intact checkpoint" if skipped else "checkpoint"
    if not lost:
        return [*reasons, *([f"there is no {kind} to resume from, so the run starts over"] if skipped else [])]
    return [*reasons, f"there is no {kind} to resume from, so {lost} epochs are trained again"]


def _restore_metrics(run: PreparedRun, out: Path, resume: Checkpoint) -> list[str]:
    """Drop the epochs that will run again from the metrics, restore those that are damaged, and return warnings."""
    lines = resume.state["extra"].get("lines")
    if lines is not None:
        restored = run.world.on_rank_zero(lambda: RunFolder(out).restore_lines(lines))
        return [
            f"{name} was damaged or incomplete: restored from {resume.path.name}; the file as it was, if any, is "
            f"{name}{folder.DAMAGED}"
            for name in restored
        ]
    stage, epochs = resume.state["stage"], resume.state["epoch"]  # written before checkpoints held these lines
    try:
        trimmed = run.world.on_rank_zero(lambda: folder.trim_metrics(out, _stages(run), stage, epochs))
    except ValueError as error:
        raise UsageError([f"--resume {out}: {error}"]) from None
    return [warning] if (warning := trimmed.warning()) else []


def _stages(run: PreparedRun) -> dict[str, range]:
    """Return the epochs of each stage."""
    return {name: range(planned.first, planned.first + len(planned.kinds)) for name, planned in run.plan.items()}
