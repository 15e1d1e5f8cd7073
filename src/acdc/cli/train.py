"""acdc train: train a recipe, or resume a run that was stopped.

Exit codes: 0 done, 1 failed, 2 refused before it began; stopped after a checkpoint: 130 by Ctrl-C, 143 by SIGTERM, 141
by a closed output pipe.
"""

import argparse
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from acdc import data
from acdc.cli import options
from acdc.cli.output import draw_report
from acdc.errors import UsageError
from acdc.recipes.schema import Recipe
from acdc.runs import differences, folder
from acdc.runs.folder import RunFolder
from acdc.train import distributed, jobs, sinks, stopping
from acdc.train.distributed import World
from acdc.train.launch import train_run
from acdc.train.prepare import PreparedRun, RunOptions, prepare, read_recipe
from acdc.train.resume import read_interrupted
from acdc.train.stopping import StopRequest


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "train",
        description="Train a recipe (the digits by default) and write a run folder: checkpoints, models, metrics and "
        "a final table. Start it under torchrun to use several processes.",
        allow_abbrev=False,
    )
    options.add_recipe(parser, default="digits")
    options.add_place(parser)
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (default runs/RECIPE-0001, -0002, ...)")
    parser.add_argument("--resume", metavar="RUN", help="resume this run folder from its newest intact checkpoint")
    parser.add_argument("--jobs", default="1", metavar="N", help="seeds to train at the same time (default 1)")
    parser.add_argument(
        "--log", action="append", default=[], choices=sinks.names(), help="also send metrics there; repeatable"
    )
    parser.add_argument(
        "--no-report",
        dest="report",
        action="store_false",
        help="do not write report.html when the run ends (acdc report RUN writes it later)",
    )
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    device, why_device = options.read_device(args.device)
    at_once = jobs.read_jobs(args.jobs)
    if missing := sinks.missing(args.log):
        raise UsageError(missing)
    if at_once > 1 and "WORLD_SIZE" in os.environ:
        raise UsageError(
            [f"--jobs {at_once}: impossible under torchrun, where each seed uses every process; remove --jobs"]
        )
    with distributed.join(device.type) as world:
        place = RunOptions(
            device=device,
            why_device=why_device,
            root=args.data,
            workers=options.read_workers(args.workers),
            world=world,
            log=tuple(args.log),
            settings=tuple(differences.free(options.settings(args))[0]),
            report=args.report,
        )
        if args.resume is not None:
            prepared, out = prepare_resumed(args, place), Path(args.resume)
        else:
            prepared = prepare_new(args, place)  # before the folder is created: a refused run leaves nothing behind
            out = _claim(args.out, _run_name(prepared), world)
        if len(prepared.recipe.run.seeds) > 1:
            return _train_seeds(prepared, out, at_once)
        if at_once > 1 and world.first:
            print(f"--jobs {at_once} has no effect: only one seed is trained")
        with stopping.listening() as stop:
            return _train_seed(prepared, out, stop, resume_from=out)


def _train_seeds(prepared: PreparedRun, out: Path, at_once: int) -> int:
    prepared.data.close()  # each seed loads its own
    place = prepared.options

    def train(recipe: Recipe, inner: Path, stop: StopRequest) -> int:
        return _train_seed(prepare(recipe, place, resuming=True), inner, stop, resume_from=out)

    code = jobs.train_seeds(prepared.recipe, place, out, at_once, train)
    if not code and place.world.first and place.report:
        print(draw_report(out))
    return code


def _train_seed(prepared: PreparedRun, out: Path, stop: StopRequest, *, resume_from: Path) -> int:
    code = train_run(prepared, out, stop, resume_from=resume_from)
    if not code and prepared.world.first and prepared.options.report:
        stopping.tell(draw_report(out), stop)
    return code


# Preparation


def prepare_new(args: argparse.Namespace, place: RunOptions) -> PreparedRun:
    """Prepare a new run, checked as by `acdc check`, or raise one error about everything that is wrong."""
    problems, unreadable = list[str](), list[str]()
    settings = options.readable_settings(args, unreadable)
    recipe, mistakes = read_recipe(args.recipe, settings, problems)
    problems += [*unreadable, *_check_out(args.out, args.recipe)]
    if recipe is None:
        raise UsageError(problems)
    return prepare(recipe, place, mistakes=mistakes, problems=problems)


def prepare_resumed(args: argparse.Namespace, place: RunOptions) -> PreparedRun:
    """Prepare to resume a run that was stopped."""
    allowed, other = differences.free(options.settings(args))
    if args.out or args.recipe != "digits" or other:
        raise UsageError(
            [
                f"--resume {args.resume}: a run resumes with its own recipe and folder; remove the other settings "
                f"(only {', '.join(differences.FREE)} may change, as in --set {differences.FREE[0]}=100)"
            ]
        )
    recipe, root = read_interrupted(Path(args.resume), allowed)
    return prepare(recipe, replace(place, root=place.root or root), resuming=True)


def _check_out(text: str | None, recipe: str) -> list[str]:
    if text is None or not (reason := folder.why_not(Path(text))):
        return []
    hint = f"choose another folder, or omit --out to use the next free runs/{Path(recipe).stem}-NNNN"
    resume = f" (to resume it: acdc train --resume {text})" if RunFolder(Path(text)).checkpoints.is_dir() else ""
    return [f"--out {text}: {reason}; {hint}{resume}"]


def _run_name(prepared: PreparedRun) -> str:
    """Return the recipe's name, with that of the data if it is the user's own."""
    recipe, own = prepared.recipe.name, re.sub(r"[^\w.-]+", ".", prepared.data.name)
    return recipe if prepared.data.name in data.names() or own in recipe else f"{recipe}-{own}"


def _claim(text: str | None, name: str, world: World) -> Path:
    try:
        return world.on_rank_zero(lambda: folder.claim(Path(text) if text else None, name))
    except OSError as error:
        raise UsageError([f"--out {text or 'runs'}: {error.strerror}; choose another folder with --out"]) from None
