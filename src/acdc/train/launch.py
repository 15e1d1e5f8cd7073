"""The launch of one run in its folder, from the start or from its newest checkpoint, with its first and last words."""

import os
from pathlib import Path

from acdc.core.method import Method
from acdc.core.result import DENSE
from acdc.data.images import BadImagesError, WorkerError
from acdc.errors import NotFiniteError, UsageError
from acdc.formatting import si
from acdc.io import IntegrityError
from acdc.methods._learned import Learned
from acdc.recipes.paper import beside, row_for
from acdc.recipes.schema import Recipe
from acdc.runs import folder
from acdc.runs.checkpoint import Checkpoint, CheckpointError, FormatError, MismatchError
from acdc.runs.folder import RunFolder
from acdc.runs.quality import ACCURACY, PERPLEXITY, quality_of
from acdc.runs.records import ModelResult
from acdc.sparsity.layers import Layers
from acdc.train import experiment, sinks, stopping
from acdc.train.console import Console, open_console
from acdc.train.distributed import World
from acdc.train.divergence import DivergedError
from acdc.train.execution import Setting
from acdc.train.prepare import PreparedRun
from acdc.train.resume import epochs_done, find_checkpoint, resume_command
from acdc.train.stopping import StopRequest


def train_run(run: PreparedRun, out: Path, stop: StopRequest, *, resume_from: Path) -> int:
    """Train one seed in `out` and return the exit code. `resume_from` is the folder named in the hint on resuming."""
    world, data = run.world, run.data
    lock = world.on_rank_zero(lambda: _lock(out))  # a number that means something on rank 0
    try:
        # All ranks use rank 0's answer: it writes the file next, and a rank that looked later would decide otherwise.
        began = world.on_rank_zero(lambda: RunFolder(out).begun)
        resume, notes = find_checkpoint(run, out) if began else (None, [])
        with (
            sinks.opened(run.options.log if world.first else (), run.recipe, out) as logs,
            open_console(run.plan, epochs_done(run, resume), world.first, stop) as console,
        ):
            setting = Setting(
                device=run.device,
                execution=run.execution,
                checkpoints=RunFolder(out).checkpoints,
                world=world,
                stop=stop,
                watch=console.watch,
                say=console.say,
                sinks=logs,
            )
            introduce(console, run, out, resume)
            for text in (*notes, *run.warnings):
                console.say(f"warning: {text}")
            outcomes = experiment.run(run, setting, out, console, resume=resume)
            show_results(console, run.recipe, outcomes, data.loaders.test.samples, out)
    except (
        stopping.Stopped, KeyboardInterrupt, DivergedError, NotFiniteError, CheckpointError, IntegrityError,
        BadImagesError, WorkerError, OSError
    ) as error:  # fmt: skip
        return explain_end(error, out, resume_from, run.recipe, world)
    finally:
        data.close()
        if world.first:
            os.close(lock)
    return 0


def _lock(out: Path) -> int:
    lock = folder.lock(out)
    if lock is None:
        raise UsageError([f"{out}: another process is training there; wait for it, or stop it first"])
    return lock


# The start of a run


def introduce(console: Console, run: PreparedRun, out: Path, resume: Checkpoint | None) -> None:
    recipe, method, device = run.recipe, run.method, run.device
    console.say(f"{run.data.name}: {run.facts}")
    for note in run.data.notes:
        console.say(f"note: {note}")
    console.say(f"model: {recipe.model.name}, {sum(p.numel() for p in run.skeleton.parameters()):,} parameters")
    if method and run.layers:
        for line in describe_layers(method, run.layers):
            console.say(line)
        if recipe.run.finetune and not method.gives_twin():
            console.say(f"nothing to fine-tune: {method.title()} keeps no dense twin")
    threads = f", {recipe.train.threads} thread" if device.type == "cpu" and recipe.train.threads else ""
    sharded = ", which share parameters and optimizer state (FSDP2)" if recipe.train.parallel == "fsdp" else ""
    several = f", {run.world.size} processes{sharded}" if run.world.size > 1 else ""
    console.say(f"device: {device.type} ({run.options.why_device}){threads}{several}")
    for why in run.execution.why:
        console.say(why)
    seed = recipe.run.seeds[0]
    if method:
        console.say(f"sparsity: {describe_sparsity(method)}, {method.pattern}; seed {seed}")
        console.say(str(method.schedule))
        for line in method.choices_made(run.skeleton):
            console.say(line)
    else:
        console.say(f"dense training, {recipe.epochs} epochs; seed {seed}")
    if resume:
        for reason in resume.skipped:
            console.say(f"Skipped a checkpoint, {reason}; renamed it to *{folder.DAMAGED}.")
        console.say(f"Resuming from {resume.path}.")
    console.say(f"folder: {out}\n")


def describe_layers(method: Method, layers: Layers) -> list[str]:
    """Return lines that say which weights a method prunes, or rounds, and which it leaves dense."""
    left = [f"left dense: {name} ({reason})" for name, reason in layers.left_dense.items()]
    return [f"{method.compression()}: {layers.size:,} weights in {len(layers.weights)} layers", *left]


def describe_sparsity(method: Method) -> str:
    """Return the method's sparsity, or what decides it."""
    if method.sparsity is not None:
        return f"{method.sparsity:.4g}"
    return "by layer" if method.needs_sparsity else f"decided by {method.decided_by}"


# The end of a run


def show_results(console: Console, recipe: Recipe, outcomes: list[ModelResult], test: int, out: Path) -> None:
    """Show the final table: `test` images or tokens were there to be scored."""
    quality = quality_of(outcomes[0])
    header = ["model", quality.name, "sparsity", "inference FLOPs", "of dense"]
    rows = [
        [o.model, quality.text(quality.of(o)), f"{o.sparsity:.2%}", _flops(o.flops), f"{o.flops_ratio:.2f}x"]
        for o in outcomes
    ]
    if quality is PERPLEXITY:
        header += ["bits/byte", "perplexity per word", "validation", "parameters", "average in training"]
        rows = [[*row, *_language_cells(o)] for row, o in zip(rows, outcomes, strict=True)]
    if any(paper := [beside(recipe, outcome.file) for outcome in outcomes]):
        header.append("paper")
        rows = [[*row, value or "–"] for row, value in zip(rows, paper, strict=True)]
    unit = "image" if quality is ACCURACY else "token"
    judged = describe_images(test, experiment.unreadable(outcomes, test), f"{unit}s")
    console.table(f"{quality.name.capitalize()} on {judged}; FLOPs in theory, per {unit}", header, rows)
    if any(paper) and (row := row_for(recipe)) and row.note:
        console.say(f"paper: {row.note}")
    for outcome in outcomes:
        if outcome.mask_sparsity is not None and outcome.mask_sparsity < outcome.sparsity:
            console.say(
                f"{outcome.model}: its masks prune {outcome.mask_sparsity:.2%}; some of the weights they keep are also "
                f"0, where regrown weights start, which makes {outcome.sparsity:.2%}"
            )
        if outcome.mask_sparsity == 0 and isinstance(method := recipe.build_method(), Learned):
            console.say(
                f"{outcome.model}: no weight is 0 yet; the sparsity of {method.title()} depends on "
                f"{method.decided_by}: train longer, or change these (acdc ls methods {method.name})"
            )
    for outcome in outcomes:
        if not (best := outcome.best):
            continue
        if outcome.file == DENSE:
            console.say(
                f"{outcome.model}: from epoch {best.epoch + 1}, the best of the dense phases, chosen on the "
                f"{best.chosen_on} set"
            )
        elif best.chosen_on == "test" and quality.is_better(quality.best(best), quality.of(outcome)):
            console.say(
                f"{outcome.model}: best epoch {best.epoch + 1} with {quality.text(quality.best(best))}, chosen on the "
                "test set, as the paper does"
            )
    console.say(f"\nmodels, metrics and settings are in {out}")


def describe_images(images: int, unreadable: int, noun: str = "images") -> str:
    """Return the number of test images behind an accuracy."""
    if not unreadable:
        return f"{images:,} {noun}"
    return f"{images - unreadable:,} of {images:,} {noun} ({unreadable:,} cannot be read)"


def _language_cells(outcome: ModelResult) -> list[str]:
    """Return the cells that only language models have."""
    own = outcome.language
    assert own is not None, "records.py accepts no record without the measure of its task"
    return [
        "–" if own.test.bits_per_byte is None else f"{own.test.bits_per_byte:.4f}",
        "–" if own.test.word_perplexity is None else PERPLEXITY.text(own.test.word_perplexity),
        PERPLEXITY.text(own.validation.perplexity),
        si(own.parameters),
        "–" if own.average_parameters is None else si(own.average_parameters),
    ]


def _flops(flops: int) -> str:
    return f"{flops / 1e9:.3f} G" if flops >= 1e9 else f"{flops / 1e6:.3f} M"


def explain_end(error: BaseException, out: Path, resume_from: Path, recipe: Recipe, world: World) -> int:
    """Print why a run ended early and how to resume it, and return the exit code."""

    def say(text: str) -> None:
        if world.first:
            stopping.complain(f"acdc: {text}")

    command = resume_command(resume_from, world.size)
    if isinstance(error, stopping.Stopped):
        say(f"{error}. A checkpoint was written; resume with: {command}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        say(f"Stopped at once; the epochs so far are in {RunFolder(out).metrics}. Resume with: {command}")
        return 130
    if isinstance(error, FormatError):
        say(f"{error}\nTo start over, repeat the original command with another --out.")
        return 1
    if isinstance(error, MismatchError):
        say(
            f"{error}. Restore the run's own checkpoint, or remove this one to use the one before it; then resume "
            f"with: {command}"
        )
        return 1
    if isinstance(error, IntegrityError):  # in the predictions that earlier stages wrote
        say(f"{error}. Restore or remove the file, then resume with: {command}")
        return 1
    if isinstance(error, DivergedError | NotFiniteError):  # the second inside an epoch, by a method that prunes there
        usual = 0.1 if recipe.optimizer.name == "sgd" else 0.001
        lower = min(recipe.optimizer.lr / 10, usual)
        what = f"weights to prune are not finite: {error.where}" if isinstance(error, NotFiniteError) else error
        say(f"{what}. Resuming would diverge again. Start a new run with a lower --lr, such as --lr {lower:g}.")
        return 1
    if isinstance(error, BadImagesError):
        more = f", or: {command} --set data.bad_limit={error.enough}" if error.enough else ""
        say(f"{error}. Files in {out} are intact. Resume with: {command}{more}")
        return 1
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    say(f"{text}. Files in {out} are intact. Fix the problem (e.g. free disk space), then resume with: {command}")
    return 1
