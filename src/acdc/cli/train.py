"""acdc train: a recipe, or the rest of a run that was stopped.

Exit codes: 0 done, 1 failed, 2 refused before it began; stopped after a checkpoint 130 by Ctrl-C, 143 by SIGTERM, 141
as nobody reads its output any more.
"""

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from acdc.cli import common
from acdc.data.images import BadImagesError, WorkerError
from acdc.errors import UsageError
from acdc.io import IntegrityError
from acdc.recipes import load as recipes
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint, differences, folder
from acdc.runs.checkpoint import Checkpoint, CheckpointError, check_contents
from acdc.runs.folder import RunFolder
from acdc.train import distributed, experiment, loading, pool, seeds, sinks, stopping, telling, weights
from acdc.train.console import Plan, open_console
from acdc.train.distributed import World
from acdc.train.divergence import DivergedError
from acdc.train.execution import Setting
from acdc.train.facts import Facts
from acdc.train.place import Place, execution, fit, load, load_data, not_here
from acdc.train.stopping import StopRequest


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
    parser.add_argument(
        "--no-report",
        dest="report",
        action="store_false",
        help="do not draw report.html as the run ends (acdc report RUN draws it later)",
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
            report=args.report,
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
            with stopping.listening() as stop:
                return _train_one(recipe, place, out, ready, stop, shown=out)
        ready.problem.close()

        def one(recipe: Recipe, inner: Path, stop: StopRequest) -> int:
            return _train_one(recipe, place, inner, _begun(recipe, place), stop, shown=out)

        return seeds.train_all(recipe, place, out, jobs, one)


def _train_one(recipe: Recipe, place: Place, out: Path, ready: Ready, stop: StopRequest, *, shown: Path) -> int:
    """One seed, from the start or from its newest checkpoint. `shown` is the folder a hint names."""
    plan, world, problem = experiment.plan(recipe), place.world, ready.problem
    lock = world.on_rank_zero(lambda: _lock(out))  # a number that means something on rank 0
    try:
        # Asked once for all: rank 0 writes the file next, and a rank that looked later would go another way.
        began = world.on_rank_zero(lambda: RunFolder(out).begun)
        found, notes = _found(recipe, problem, out, world) if began else (None, [])
        wanted = place.log if world.first else ()
        with (
            sinks.opened(wanted, recipe, out) as logs,
            open_console(plan, _done(plan, found), world.first, stop) as console,
        ):
            setting = Setting(
                device=place.device,
                execution=execution(recipe, Facts.of(problem), place.device, world.size),
                checkpoints=RunFolder(out).checkpoints,
                world=world,
                stop=stop,
                watch=console.watch,
                say=console.say,
                sinks=logs,
            )
            telling.introduce(console, recipe, problem, setting, place, out, found)
            for text in (*notes, *ready.warnings):
                console.say(f"warning: {text}")
            said = {"command": "train", "dataset": recipe.data.name, "model": recipe.model.name}
            said |= {"root": place.whole_root, "warnings": list(ready.warnings)}
            outcomes = experiment.run(recipe, problem, setting, out, console, resume=found, settings=said)
            telling.show(console, recipe, outcomes, problem, out)
            if world.first and place.report:
                console.say(common.report_of(out))
    except (
        stopping.Stopped, KeyboardInterrupt, DivergedError, CheckpointError, IntegrityError, BadImagesError,
        WorkerError, OSError
    ) as error:  # fmt: skip
        return telling.ended(error, out, shown, recipe, world)
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
    if not RunFolder(out).begun:
        raise UsageError([f"--resume {out}: there is no run (no config.json) in this folder; type the run's folder"])
    if RunFolder(out).complete:
        raise UsageError([f"--resume {out}: this run is complete; its table is in {RunFolder(out).result}"])
    config = weights.config_of(out)
    try:
        return recipes.from_dict(config.recipe.settings, fine), out, config.root
    except recipes.RecipeError as error:
        raise UsageError([f"--resume {out}:", *error.problems]) from None


def _begun(recipe: Recipe, place: Place) -> Ready:
    """Of a run that has a folder already."""
    problem = load(recipe, place, begun=True)
    try:
        return Ready(problem, fit(recipe, Facts.of(problem), place.device, place.world.size, began=True))
    except UsageError:
        problem.close()
        raise


def _new(args: argparse.Namespace, place: Place) -> tuple[Recipe, Ready]:
    """A recipe with its data, looked at as `acdc check` does; or all that is wrong, at once."""
    examined = common.examine(args)
    recipe, problem, warnings = examined.recipe, None, list[str]()
    problems = [*examined.problems, *_bad_out(args.out, args.recipe)]
    if recipe is not None:
        problems += not_here(recipe, place.device)
        try:
            if not common.data_is_wrong(examined.wrong):
                problem = load_data(recipe, place.device, root=place.root, workers=place.workers, world=place.world)
        except UsageError as error:
            problems += error.problems
        try:
            facts = Facts.of(problem) if problem else None
            warnings = fit(recipe, facts, place.device, place.world.size, wrong=examined.wrong)
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
    resume = f" (to go on with it: acdc train --resume {text})" if RunFolder(Path(text)).checkpoints.is_dir() else ""
    return [f"--out {text}: {reason}; {hint}{resume}"]


def _claim(text: str | None, recipe: Recipe, world: World) -> Path:
    try:
        return world.on_rank_zero(lambda: folder.claim(Path(text) if text else None, recipe.name))
    except OSError as error:
        raise UsageError([f"--out {text or 'runs'}: {error.strerror}; type another folder after --out"]) from None


def _lock(out: Path) -> int:
    lock = folder.lock(out)
    if lock is None:
        raise UsageError([f"{out}: another process is training there; wait for it, or stop it first"])
    return lock


def _found(recipe: Recipe, problem: loading.Problem, out: Path, world: World) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint to go on from, None where the run stopped before its first; and what to warn of then."""
    plan = experiment.plan(recipe)
    stages = list(plan)
    if difference := differences.data(weights.config_of(out).data, problem.described()):
        raise UsageError(
            [f"--resume {out}: its data have changed: {difference}; put them back (--data DIR), or start a new run"]
        )
    if not checkpoint.any_in(RunFolder(out).checkpoints):
        lost = _trim(out, plan, None, world).dropped
        return None, [f"no checkpoint is there to go on from: {lost} epochs are trained again"] if lost else []
    found = _newest(RunFolder(out).checkpoints, world)
    check_contents(found.path, found.state)
    extra = found.state["extra"]
    if difference := differences.first(extra["recipe"], recipe.to_dict()):
        raise UsageError(
            [
                f"--resume {out}: {found.path.name} is of another recipe ({difference}); put the checkpoints back that "
                "belong to this run, or start a new one"
            ]
        )
    if not 0 <= found.state["stage"] < len(stages) or stages[found.state["stage"]] != found.state["name"]:
        raise UsageError(
            [
                f"--resume {out}: {found.path.name} is of stage {found.state['stage']}, {found.state['name']!r}, and "
                f"the run's stages are {', '.join(stages)}; put the checkpoints back that belong to this run"
            ]
        )
    if extra["world"] != world.size:
        raise UsageError(
            [
                f"--resume {out}: it ran as {extra['world']} processes, and now there are {world.size}; type: "
                f"{common.resume(out, extra['world'])}"
            ]
        )
    warning = _trim(out, plan, found, world).warning()
    world.on_rank_zero(lambda: checkpoint.set_aside(found))
    return found, [warning] if warning else []


def _trim(out: Path, plan: Plan, found: Checkpoint | None, world: World) -> folder.Trimmed:
    """Drop the epochs that will run again."""
    stage, epochs = (found.state["stage"], found.state["epoch"]) if found else (-1, 0)
    stages = {name: range(planned.first, planned.first + len(planned.kinds)) for name, planned in plan.items()}
    try:
        return world.on_rank_zero(lambda: folder.trim_metrics(out, stages, stage, epochs))
    except ValueError as error:
        raise UsageError([f"--resume {out}: {error}"]) from None


def _newest(checkpoints: Path, world: World) -> Checkpoint:
    """Every rank reads it; where one cannot, all say why. None is renamed before all have looked."""
    found, wrong = None, None
    try:
        found = checkpoint.newest(checkpoints)
    except CheckpointError as error:
        wrong = error
    if failed := [error for error in world.gather(wrong) if error]:
        raise failed[0]
    assert found is not None, "or an error says why"
    return found


def _done(plan: Plan, found: Checkpoint | None) -> int:
    """Epochs that need not run again."""
    if found is None:
        return 0
    stages, stage = list(plan.values()), found.state["stage"]
    return sum(len(planned.kinds) for planned in stages[:stage]) + found.state["epoch"] - stages[stage].first
