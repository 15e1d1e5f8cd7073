"""acdc eval: measure the models of a run again on the test images, and compare with what the run wrote."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from acdc.cli import options
from acdc.cli.output import fp32_note, show_table
from acdc.data.images import BadImagesError
from acdc.errors import UsageError
from acdc.formatting import si
from acdc.runs.folder import RunFolder
from acdc.runs.quality import ACCURACY, PERPLEXITY
from acdc.train import saved_models
from acdc.train.launch import describe_images
from acdc.train.prepare import RunOptions
from acdc.train.saved_models import Measurement


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
    options.add_place(parser)
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    device, why = options.read_device(args.device)
    workers = options.read_workers(args.workers)
    folder, files = _find(args)
    seeds = [seed.path for seed in RunFolder(folder).seeds() if seed.begun]
    print(f"device: {device.type} ({why})")
    place = RunOptions(device=device, why_device=why, root=args.data, workers=workers)
    return max([_evaluate(path, files, place) for path in seeds or [folder]])


def _find(args: argparse.Namespace) -> tuple[Path, list[str]]:
    """Return the run's folder, and the names of the files to evaluate."""
    path = Path(args.run)
    folder = saved_models.run_folder(path)
    files = [name if name.endswith(saved_models.FILES) else f"{name}.safetensors" for name in args.file]
    if path.suffix in saved_models.FILES:
        if files:
            raise UsageError([f"RUN {path} already names a file; remove --file, or name the run's folder"])
        files = [os.path.relpath(path, folder)]
    if not RunFolder(folder).begun:
        raise UsageError([f"RUN {path}: {saved_models.why_no_run(path, folder)}"])
    return folder, files


def _evaluate(folder: Path, files: list[str], place: RunOptions) -> int:
    trained = saved_models.trained_recipe(folder)
    if not files:
        files = saved_models.model_files(folder)
        if not files:
            checkpoint = saved_models.checkpoint_hint(folder)
            resume = f"resume it with: acdc train --resume {folder}{f'; or {checkpoint}' if checkpoint else ''}"
            raise UsageError([f"RUN {folder}: it has no model yet; {resume}"])
    prepared = saved_models.reopen_run(folder, trained, place)
    if prepared.recipe is not trained:
        print(fp32_note(trained))
    problems: list[str] = []
    try:
        if difference := saved_models.data_difference(folder, prepared.data):
            print(f"note: this is not the run's data: {difference}")
            for note in prepared.data.text.notes if prepared.data.text else ():
                print(f"note: {note}")
        measurements = saved_models.measure_models(folder, files, prepared, problems)
    except BadImagesError as error:
        raise UsageError([str(error)]) from None
    finally:
        prepared.data.close()
    if measurements:
        samples, unit = prepared.data.loaders.test.samples, prepared.facts.unit
        unreadable = samples - min(one.score.samples for one in measurements)
        _show(folder, measurements, describe_images(samples, unreadable, f"{unit}s"), unit)
    for text in problems:
        print(f"acdc: {text}", file=sys.stderr)
    return 2 if problems else 0


def _show(folder: Path, measurements: list[Measurement], judged: str, unit: str) -> None:
    scores, note = saved_models.read_scores(folder)
    quality, rows = PERPLEXITY if unit == "token" else ACCURACY, []
    for one in measurements:
        before, cost, text = scores.get(one.file), one.counted, one.score.text
        now = text.perplexity if text else one.score.accuracy
        assert now is not None, "a score has either an accuracy or that of a text"
        difference = ""
        if before is not None:
            difference = "the same" if before == now else f"{quality.scaled(now - before):+.2f}"
        own = ()
        if text:
            own = (
                "–" if text.bits_per_byte is None else f"{text.bits_per_byte:.4f}",
                "–" if text.word_perplexity is None else quality.text(text.word_perplexity),
            )
        rows.append(
            (
                one.file,
                quality.text(now),
                f"{one.score.loss:.4f}",
                *own,
                f"{cost.sparsity:.2%}",
                si(cost.flops, digits=4),
                f"{cost.flops / cost.dense_flops:.2f}x",
                "" if before is None else quality.text(before),
                difference,
            )
        )
    name, per_text = quality.name.removeprefix("test "), ("bits/byte", "per word") if unit == "token" else ()
    costs = ("sparsity", "FLOPs", "of dense")
    header = ("file", name, "loss", *per_text, *costs, RunFolder(folder).result.name, "difference")
    show_table(f"{folder}: {quality.name} on {judged}; theoretical FLOPs per {unit}", header, rows)
    if note:
        print(note)
