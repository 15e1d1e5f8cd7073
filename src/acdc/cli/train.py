"""acdc train: a recipe, or the rest of a run that was stopped.

Exit codes: 0 done, 1 failed, 2 refused before it began; stopped after a checkpoint 130 by Ctrl-C, 143 by SIGTERM, 141
as nobody reads its output any more.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acdc.cli import common, differences, pool, seeds
from acdc.cli.errors import UsageError
from acdc.cli.place import Place, execution, fit, load
from acdc.data.images import BadImagesError
from acdc.train import checkpoint, distributed, experiment, folder, loading, reading, sinks, stopping
from acdc.train.checkpoint import CheckpointError, Found, NoCheckpointError
from acdc.train.console import Console, Plan, open_console
from acdc.train.distributed import World
from acdc.train.loop import DivergedError
from acdc.train.paper import beside
from acdc.train.recipe import Recipe
from acdc.train.setting import Setting


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "train",
        description="Train a recipe (the digits, if none is named) and write a run folder: checkpoints, models, "
        "metrics, a final table. Start it under torchrun to use several processes.",
        allow_abbrev=False,
    )
    common.add_recipe(parser, default="digits")
    common.add_place(parser)
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (default runs/RECIPE-0001, -0002, ...)")
    parser.add_argument("--resume", metavar="RUN", help="go on from the newest whole checkpoint of this run folder")
    parser.add_argument("--jobs", default="1", metavar="N", help="seeds to train at the same time (default 1)")
    parser.add_argument(
        "--log", action="append", default=[], choices=sinks.names(), help="also send metrics there; repeatable"
    )
    parser.set_defaults(verb=run)


@dataclass(frozen=True)
class Ready:
    """What a recipe is trained on, looked at with it: nothing is wrong, and this may surprise."""

    problem: loading.Problem
    warnings: Sequence[str]


def run(args: argparse.Namespace) -> int:
    device, why_device = common.read_device(args.device)
    jobs = pool.read_jobs(args.jobs)
    if missing := sinks.missing(args.log):
        raise UsageError(missing)
    if jobs > 1 and "WORLD_SIZE" in os.environ:
        raise UsageError([f"--jobs {jobs}: not under torchrun, where each seed uses every process; leave --jobs out"])
    with distributed.join(device.type) as world:
        place = Place(
            device=device,
            why_device=why_device,
            root=args.data,
            workers=common.read_workers(args.workers),
            world=world,
            log=tuple(args.log),
            settings=tuple(differences.free(common.settings(args))[0]),
        )
        if args.resume is not None:
            recipe, out, root = _recipe_of(args)
            place = replace(place, root=place.root or root)
            ready = _begun(recipe, place)
        else:
            recipe, ready = _new(args, place)  # before the folder is made: what is wrong leaves nothing behind
            out = _claim(args.out, recipe, world)
        if len(recipe.run.seeds) == 1:
            if jobs > 1 and world.first:
                print(f"--jobs {jobs}: one seed is trained, so there is nothing to do side by side")
            return _train_one(recipe, place, out, ready, shown=out)
        ready.problem.close()

        def one(recipe: Recipe, inner: Path) -> int:
            return _train_one(recipe, place, inner, _begun(recipe, place), shown=out)

        return seeds.train_all(recipe, place, out, jobs, one)


def _train_one(recipe: Recipe, place: Place, out: Path, ready: Ready, *, shown: Path) -> int:
    """One seed, from the start or from its newest checkpoint. `shown` is the folder a hint names."""
    plan, world, problem = experiment.plan(recipe), place.world, ready.problem
    lock = world.by_first(lambda: _lock(out))  # a number that means something on rank 0
    try:
        # Asked once for all: rank 0 writes the file next, and a rank that looked later would go another way.
        began = world.by_first(lambda: (out / "config.json").is_file())
        found = _found(recipe, problem, out, world) if began else None
        wanted = place.log if world.first else ()
        with (
            stopping.listening() as stop,
            sinks.opened(wanted, recipe, out) as logs,
            open_console(plan, _done(plan, found), world.first, stop) as console,
        ):
            setting = Setting(
                device=place.device,
                execution=execution(recipe, problem, place),
                checkpoints=out / "checkpoints",
                world=world,
                stop=stop,
                watch=console.watch,
                sinks=logs,
            )
            _introduce(console, recipe, problem, setting, place, out, found)
            for text in ready.warnings:
                console.say(f"warning: {text}")
            root = str(Path(place.root).resolve()) if place.root else None
            said = {"command": "train", "dataset": recipe.data.name, "model": recipe.model.name, "root": root}
            said["warnings"] = list(ready.warnings)
            outcomes = experiment.run(recipe, problem, setting, out, console, resume=found, settings=said)
            _show(console, recipe, outcomes, problem, out)
            if world.first:
                console.say(common.report_of(out))
    except (
        stopping.Stopped, KeyboardInterrupt, DivergedError, CheckpointError, BadImagesError, OSError
    ) as error:  # fmt: skip
        return _ended(error, out, shown, recipe, world)
    finally:
        problem.close()
        if world.first:
            os.close(lock)
    return 0


# Before it begins


def _recipe_of(args: argparse.Namespace) -> tuple[Recipe, Path, str | None]:
    """Of a run that was stopped, with its folder and where its data lay."""
    out = Path(args.resume)
    fine, other = differences.free(common.settings(args))
    if args.out or args.recipe != "digits" or other:
        raise UsageError(
            [
                f"--resume {out}: it goes on with its own recipe and folder; leave the other settings out "
                f"(only {', '.join(differences.FREE)} may be set anew, as in --set {differences.FREE[0]}=100)"
            ]
        )
    if not (out / "config.json").is_file():
        raise UsageError([f"--resume {out}: there is no run (no config.json) in this folder; type the run's folder"])
    if (out / "result.json").is_file():
        raise UsageError([f"--resume {out}: this run is complete; its table is in {out / 'result.json'}"])
    try:
        config = folder.read_json(out / "config.json")
        return reading.from_dict(config["recipe"], fine), out, config.get("root")
    except reading.RecipeError as error:
        raise UsageError([f"--resume {out}:", *error.problems]) from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError([f"--resume {out}: its config.json cannot be read ({error})"]) from None


def _begun(recipe: Recipe, place: Place) -> Ready:
    """Of a run that has a folder already."""
    problem = load(recipe, place)
    try:
        return Ready(problem, fit(recipe, problem, place, began=True))
    except UsageError:
        problem.close()
        raise


def _new(args: argparse.Namespace, place: Place) -> tuple[Recipe, Ready]:
    """A recipe with its data, looked at as `acdc check` does; or all that is wrong, at once."""
    recipe, problems = common.examine(args)
    wrong, problem, warnings = list(problems), None, list[str]()
    problems += _bad_out(args.out, args.recipe)
    if recipe is not None:
        try:
            problem = load(recipe, place) if not common.data_is_wrong(wrong) else None
        except UsageError as error:
            problems += error.problems
        try:
            warnings = fit(recipe, problem, place, wrong=wrong)
        except UsageError as error:
            problems += error.problems
    if problems or recipe is None or problem is None:
        if problem is not None:
            problem.close()
        raise UsageError(problems)
    return recipe, Ready(problem, warnings)


def _bad_out(text: str | None, recipe: str) -> list[str]:
    if text is None or not (reason := folder.why_not(Path(text))):
        return []
    hint = f"type another folder, or leave --out out for the next free runs/{Path(recipe).stem}-NNNN"
    resume = f" (to go on with it: acdc train --resume {text})" if (Path(text) / "checkpoints").is_dir() else ""
    return [f"--out {text}: {reason}; {hint}{resume}"]


def _claim(text: str | None, recipe: Recipe, world: World) -> Path:
    try:
        return world.by_first(lambda: folder.claim(Path(text) if text else None, recipe.name))
    except OSError as error:
        raise UsageError([f"--out {text or 'runs'}: {error.strerror}; type another folder after --out"]) from None


def _lock(out: Path) -> int:
    lock = folder.lock(out)
    if lock is None:
        raise UsageError([f"{out}: another process is training there; wait for it, or stop it first"])
    return lock


def _found(recipe: Recipe, problem: loading.Problem, out: Path, world: World) -> Found | None:
    """The checkpoint to go on from; None where the run stopped before its first."""
    stages = list(experiment.plan(recipe))
    if difference := differences.data(folder.read_json(out / "config.json").get("data", {}), problem.described()):
        raise UsageError(
            [f"--resume {out}: its data have changed: {difference}; put them back (--data DIR), or start a new run"]
        )
    if not checkpoint.any_in(out / "checkpoints"):
        world.by_first(lambda: folder.trim_metrics(out, stages, -1, 0))
        return None
    found = checkpoint.newest(out / "checkpoints")
    extra = found.state["extra"]
    if difference := differences.first(extra["recipe"], recipe.to_dict()):
        raise UsageError(
            [
                f"--resume {out}: {found.path.name} is of another recipe ({difference}); put the checkpoints back that "
                "belong to this run, or start a new one"
            ]
        )
    if extra["world"] != world.size:
        raise UsageError(
            [
                f"--resume {out}: it ran as {extra['world']} processes, and now there are {world.size}; type torchrun "
                f"--nproc-per-node {extra['world']} -m acdc train --resume {out}"
            ]
        )
    world.by_first(lambda: folder.trim_metrics(out, stages, found.state["stage"], found.state["epoch"]))
    return found


def _done(plan: Plan, found: Found | None) -> int:
    """Epochs that need not run again."""
    if found is None:
        return 0
    stages, stage = list(plan.values()), found.state["stage"]
    return sum(len(planned.kinds) for planned in stages[:stage]) + found.state["epoch"] - stages[stage].first


# While it runs and after


def _introduce(
    console: Console,
    recipe: Recipe,
    problem: loading.Problem,
    setting: Setting,
    place: Place,
    out: Path,
    found: Found | None,
) -> None:
    loaders, size = problem.loaders, " x ".join(map(str, problem.shape))
    held = f", {loaders.validation.samples:,} validation" if loaders.validation else ""
    console.say(
        f"{recipe.data.name}: {loaders.train.samples:,} training{held} and {loaders.test.samples:,} test images of "
        f"{size}, {problem.classes} classes"
    )
    for note in problem.notes:
        console.say(f"note: {note}")
    model, method = problem.new_model(recipe), recipe.build_method()
    console.say(f"model: {recipe.model.name}, {sum(param.numel() for param in model.parameters()):,} parameters")
    if method:
        layers = method.layers(model)
        console.say(f"pruned: {layers.size:,} weights in {len(layers.weights)} layers")
        for name, reason in layers.left_dense.items():
            console.say(f"left dense: {name} ({reason})")
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
            console.say(f"passed over: {reason}")
        console.say(f"going on from: {found.path}")
    console.say(f"folder: {out}\n")


def _show(
    console: Console, recipe: Recipe, outcomes: list[experiment.Outcome], problem: loading.Problem, out: Path
) -> None:
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
    for outcome in outcomes:
        if outcome.mask_sparsity is not None and outcome.mask_sparsity < outcome.sparsity:
            console.say(
                f"{outcome.model}: its masks prune {outcome.mask_sparsity:.2%}; some of the weights they keep are 0 as "
                f"well, as those grown anew start there, which makes {outcome.sparsity:.2%}"
            )
    for outcome in outcomes:
        if outcome.best and outcome.best["accuracy"] > outcome.test_accuracy and outcome.best["chosen_on"] == "test":
            best = outcome.best
            console.say(
                f"{outcome.model}: best epoch {best['epoch'] + 1} with {best['accuracy']:.2%}, chosen on the test set, "
                "as the paper does"
            )
    console.say(f"\nmodels, metrics and settings are in {out}")


def _flops(flops: int) -> str:
    return f"{flops / 1e9:.3f} G" if flops >= 1e9 else f"{flops / 1e6:.3f} M"


def _ended(error: BaseException, out: Path, shown: Path, recipe: Recipe, world: World) -> int:
    """Say how a run ended early, and how to go on."""

    def say(text: str) -> None:
        if world.first:
            print(f"acdc: {text}", file=sys.stderr, flush=True)

    hint = f"go on with: acdc train --resume {shown}"
    if isinstance(error, stopping.Stopped):
        say(f"stopped {error}, with a checkpoint; {hint}")
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        say(f"stopped at once; the epochs so far are in {out / 'metrics.jsonl'}; {hint}")
        return 130
    if isinstance(error, NoCheckpointError):
        say(f"{error}\nto start over, type the command that began it with another --out")
        return 1
    if isinstance(error, DivergedError):
        usual = 0.1 if recipe.optimizer.name == "sgd" else 0.001
        lower = min(recipe.optimizer.lr / 10, usual)
        say(f"{error}; to go on would do the same: begin anew with a lower --lr, such as --lr {lower:g}")
        return 1
    if isinstance(error, BadImagesError):
        more = f", or: acdc train --resume {shown} --set data.bad_limit={error.enough}" if error.enough else ""
        say(f"{error}. What is in {out} is whole; {hint}{more}")
        return 1
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    say(f"{text}; what is in {out} is whole: make room or mend it, then {hint}")
    return 1
