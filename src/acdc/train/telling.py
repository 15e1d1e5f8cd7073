"""What acdc train says of a run: as it begins, when it is done, and where it ends early how to go on."""

from pathlib import Path

from acdc.cli import common
from acdc.data.images import BadImagesError
from acdc.io import IntegrityError
from acdc.recipes.paper import beside, row_for
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint
from acdc.runs.checkpoint import FormatError, Found, MismatchError, NoCheckpointError
from acdc.runs.records import ModelResult
from acdc.train import experiment, loading, stopping
from acdc.train.console import Console
from acdc.train.distributed import World
from acdc.train.facts import Facts
from acdc.train.finite import DivergedError
from acdc.train.place import Place
from acdc.train.setting import Setting


def introduce(
    console: Console,
    recipe: Recipe,
    problem: loading.Problem,
    setting: Setting,
    place: Place,
    out: Path,
    found: Found | None,
) -> None:
    console.say(f"{recipe.data.name}: {Facts.of(problem).told()}")
    for note in problem.notes:
        console.say(f"note: {note}")
    model, method = problem.new_model(recipe), recipe.build_method()
    console.say(f"model: {recipe.model.name}, {sum(param.numel() for param in model.parameters()):,} parameters")
    if method:
        for line in common.compressed(method, method.layers(model)):
            console.say(line)
        if recipe.run.finetune and not method.gives_twin():
            console.say(f"nothing to fine-tune: {method.title()} keeps no dense twin")
    threads = f", {recipe.train.threads} thread" if place.device.type == "cpu" and recipe.train.threads else ""
    several = f", {place.world.size} processes" if place.world.size > 1 else ""
    console.say(f"device: {place.device.type} ({place.why_device}){threads}{several}")
    for why in setting.execution.why:
        console.say(why)
    seed = recipe.run.seeds[0]
    if method:
        console.say(f"sparsity: {common.sparsity_of(method)}, {method.pattern}; seed {seed}")
        console.say(str(method.schedule))
    else:
        console.say(f"dense training, {recipe.epochs} epochs; seed {seed}")
    if found:
        for reason in found.skipped:
            console.say(f"passed over: {reason}; its name ends in {checkpoint.ASIDE} now")
        console.say(f"going on from: {found.path}")
    console.say(f"folder: {out}\n")


def show(console: Console, recipe: Recipe, outcomes: list[ModelResult], problem: loading.Problem, out: Path) -> None:
    header = ["model", "test accuracy", "sparsity", "inference FLOPs", "of dense"]
    rows = [
        [o.model, f"{o.test_accuracy:.2%}", f"{o.sparsity:.2%}", _flops(o.flops), f"{o.flops_ratio:.2f}x"]
        for o in outcomes
    ]
    if any(paper := [beside(recipe, outcome.file) for outcome in outcomes]):
        header.append("paper")
        rows = [[*row, said or "–"] for row, said in zip(rows, paper, strict=True)]
    judged = common.judged(problem.loaders.test.samples, experiment.unreadable(outcomes, problem))
    console.table(f"Test accuracy on {judged}; FLOPs in theory, per image", header, rows)
    if any(paper) and (row := row_for(recipe)) and row.note:
        console.say(f"paper: {row.note}")
    for outcome in outcomes:
        if outcome.mask_sparsity is not None and outcome.mask_sparsity < outcome.sparsity:
            console.say(
                f"{outcome.model}: its masks prune {outcome.mask_sparsity:.2%}; some of the weights they keep are 0 as "
                f"well, as those grown anew start there, which makes {outcome.sparsity:.2%}"
            )
        if outcome.mask_sparsity == 0 and (method := recipe.build_method()) and not method.needs_sparsity:
            console.say(
                f"{outcome.model}: no weight is 0 yet; {method.title()} finds its sparsity by {method.decided_by}: "
                f"train longer, or change these (acdc ls methods {method.name})"
            )
    for outcome in outcomes:
        if not (best := outcome.best):
            continue
        if outcome.file == "dense.safetensors":
            console.say(
                f"{outcome.model}: of epoch {best.epoch + 1}, the best of the dense phases, chosen on the "
                f"{best.chosen_on} set"
            )
        elif best.accuracy > outcome.test_accuracy and best.chosen_on == "test":
            console.say(
                f"{outcome.model}: best epoch {best.epoch + 1} with {best.accuracy:.2%}, chosen on the test set, "
                "as the paper does"
            )
    console.say(f"\nmodels, metrics and settings are in {out}")


def _flops(flops: int) -> str:
    return f"{flops / 1e9:.3f} G" if flops >= 1e9 else f"{flops / 1e6:.3f} M"


def ended(error: BaseException, out: Path, shown: Path, recipe: Recipe, world: World) -> int:
    """Say how a run ended early, and how to go on."""

    def say(text: str) -> None:
        if world.first:
            stopping.complain(f"acdc: {text}")

    again = common.resume(shown, world.size)
    hint = f"go on with: {again}"
    if isinstance(error, stopping.Stopped):
        say(f"stopped {error}, with a checkpoint; {hint}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        say(f"stopped at once; the epochs so far are in {out / 'metrics.jsonl'}; {hint}")
        return 130
    if isinstance(error, NoCheckpointError | FormatError):
        say(f"{error}\nto start over, type the command that began it with another --out")
        return 1
    if isinstance(error, MismatchError):
        say(f"{error}; put the run's own checkpoint back, or remove this one to use the one before it, then {hint}")
        return 1
    if isinstance(error, IntegrityError):  # predictions of the stages before
        say(f"{error}; restore or remove it, then {hint}")
        return 1
    if isinstance(error, DivergedError):
        usual = 0.1 if recipe.optimizer.name == "sgd" else 0.001
        lower = min(recipe.optimizer.lr / 10, usual)
        say(f"{error}; to go on would do the same: begin anew with a lower --lr, such as --lr {lower:g}")
        return 1
    if isinstance(error, BadImagesError):
        more = f", or: {again} --set data.bad_limit={error.enough}" if error.enough else ""
        say(f"{error}. What is in {out} is whole; {hint}{more}")
        return 1
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    say(f"{text}; what is in {out} is whole: make room or mend it, then {hint}")
    return 1
