"""acdc eval: the models of a run, measured again on the test images and set beside what the run said."""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acdc.cli import common
from acdc.data.images import BadImagesError
from acdc.errors import UsageError
from acdc.flops.uses import forward_uses
from acdc.measure.dynamics import Counted, counted
from acdc.recipes.schema import Recipe
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import RecordError, read
from acdc.runs.records import RunResult
from acdc.train import loading, weights
from acdc.train.evaluate import Score, evaluate
from acdc.train.execution import Execution, Setting
from acdc.train.experiment import reproducible
from acdc.train.precision import with_supported_precision


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "eval",
        description="Measure the models of a run folder, one of its files or a checkpoint on the test images, and "
        "compare with what the run wrote.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run",
        metavar="RUN",
        help="a run's folder, a .safetensors file in it, or a checkpoint: RUN/checkpoints/NAME.pt",
    )
    parser.add_argument(
        "--file", action="append", default=[], metavar="NAME", help="only this file of the run; repeatable"
    )
    common.add_place(parser)
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    device, why = common.read_device(args.device)
    workers = common.read_workers(args.workers)
    where, names = _where(args)
    seeds = [seed.path for seed in RunFolder(where).seeds() if seed.begun]
    print(f"device: {device.type} ({why})")
    return max([_one(path, names, device, args.data, workers) for path in seeds or [where]])


@dataclass(frozen=True)
class Measured:
    file: str
    score: Score
    counted: Counted


def _where(args: argparse.Namespace) -> tuple[Path, list[str]]:
    """The run, and the files of it that were named."""
    path = Path(args.run)
    where = weights.run_of(path)
    names = [name if name.endswith(weights.FILES) else f"{name}.safetensors" for name in args.file]
    if path.suffix in weights.FILES:
        if names:
            raise UsageError([f"RUN {path} names a file already; leave --file out, or give the run's folder"])
        names = [os.path.relpath(path, where)]
    if not RunFolder(where).begun:
        raise UsageError([f"RUN {path}: {weights.no_run(path, where)}"])
    return where, names


def _one(where: Path, names: list[str], device: torch.device, root: str | None, workers: int | None) -> int:
    trained = weights.recipe_of(where)
    recipe = with_supported_precision(trained, device)
    if recipe is not trained:
        print(common.in_fp32(trained))
    if not names:
        names = weights.models(where)
        if not names:
            instead = weights.a_checkpoint(where)
            resume = f"go on with: acdc train --resume {where}{f'; or {instead}' if instead else ''}"
            raise UsageError([f"RUN {where}: no model in it yet; {resume}"])
    problem = weights.data_of(where, recipe, device, root, workers)
    if difference := weights.other_data(where, problem):
        print(f"note: these are not the data of the run: {difference}")
    problems: list[str] = []
    try:
        with reproducible(recipe, device):
            measured = list(_measure_all(where, names, recipe, problem, device, problems))
    except BadImagesError as error:
        raise UsageError([str(error)]) from None
    finally:
        problem.close()
    if measured:
        samples = problem.loaders.test.samples
        _show(where, measured, common.judged(samples, samples - min(one.score.samples for one in measured)))
    for text in problems:
        print(f"acdc: {text}", file=sys.stderr)
    return 1 if problems else 0


def _measure_all(
    where: Path, names: list[str], recipe: Recipe, problem: loading.Problem, device: torch.device, problems: list[str]
) -> Iterator[Measured]:
    setting = Setting(device=device, execution=Execution(False, False, ()), checkpoints=RunFolder(where).checkpoints)
    uses: dict[str, float] = {}
    for name in names:
        model = problem.new_model(recipe).to(device)
        uses = uses or forward_uses(model, problem.example(device))
        try:
            weights.load(model, where / name)
        except ValueError as error:
            problems.append(str(error))
            continue
        score = evaluate(model, problem.loaders.test, recipe, setting)
        yield Measured(name, score, counted(model, uses))


def _show(where: Path, measured: list[Measured], images: str) -> None:
    said, note = _said(where)
    rows = []
    for one in measured:
        before, accuracy, cost = said.get(one.file), one.score.accuracy, one.counted
        difference = ""
        if before is not None:
            difference = "the same" if before == accuracy else f"{100 * (accuracy - before):+.2f}"
        rows.append(
            (
                one.file,
                f"{accuracy:.2%}",
                f"{one.score.loss:.4f}",
                f"{cost.sparsity:.2%}",
                common.si(cost.flops, 4),
                f"{cost.flops / cost.dense_flops:.2f}x",
                "" if before is None else f"{before:.2%}",
                difference,
            )
        )
    header = ("file", "accuracy", "loss", "sparsity", "FLOPs", "of dense", RunFolder(where).result.name, "difference")
    common.show_table(f"{where}: test accuracy on {images}; FLOPs in theory, per image", header, rows)
    if note:
        print(note)


def _said(where: Path) -> tuple[dict[str, float], str]:
    """Accuracies by file, as the run wrote them; and why there are none."""
    path = RunFolder(where).result
    if not path.is_file():
        return {}, f"{path} is not there: the run is not complete; go on with: acdc train --resume {where}"
    try:
        result = read(RunResult, path)
    except RecordError as error:
        return {}, f"{path.name} cannot be read: nothing to compare with ({error})"
    return {row.file: row.test_accuracy for row in result.models} if result else {}, ""
