"""acdc compare: how far two models agree on the test images, from what the runs kept or by running them again."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acdc.cli import options
from acdc.cli.output import fp32_note, show_table
from acdc.data.images import BadImagesError
from acdc.errors import UsageError
from acdc.io import write_json
from acdc.measure.agreement import Agreement, AgreementCounter
from acdc.train import model_pairs, saved_models
from acdc.train.experiment import reproducible
from acdc.train.launch import describe_images
from acdc.train.loading import LoadedData
from acdc.train.model_pairs import SavedModel
from acdc.train.precision import with_supported_precision
from acdc.train.prepare import RunOptions
from acdc.train.step import autocast

_BATCH = 1000  # of predictions that were kept


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare",
        description="Compare the answers of two models on the test images: top-1 agreement, cross-entropy both ways, "
        "which is right. With one run, its sparse model and each of its dense ones.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "a",
        metavar="A",
        help="a run's folder (its sparse model), a .safetensors file in it, or a checkpoint: RUN/checkpoints/NAME.pt",
    )
    parser.add_argument("b", metavar="B", nargs="?", help="another, or another file of the same run")
    parser.add_argument("--json", metavar="FILE", help="also write all of it there, with the flips of every class")
    options.add_place(parser)
    parser.set_defaults(verb=run)


@dataclass(frozen=True, kw_only=True)
class Compared:
    a: SavedModel
    b: SavedModel
    source: str
    agreement: Agreement


def run(args: argparse.Namespace) -> int:
    device, why = options.read_device(args.device)
    place = RunOptions(device=device, root=args.data, workers=options.read_workers(args.workers))
    compared = model_pairs.find_pairs(args.a, args.b)
    for a, b in compared:
        model_pairs.refuse_other_data(a, b)
    kept = all(model.kept for pair in compared for model in pair)
    try:
        problem, missing = _problem(compared[0][0], place, kept=kept)
    except UsageError as error:
        notes = dict.fromkeys(model.note for pair in compared for model in pair if model.note and not model.kept)
        raise UsageError([*error.problems, *notes]) from None
    try:
        if problem:
            model_pairs.refuse_changed_data(compared, problem)
            if not kept:
                print(f"device: {device.type} ({why})")
                again = [model.recipe for pair in compared for model in pair if not model.kept]
                changed = [recipe for recipe in again if with_supported_precision(recipe, device) is not recipe]
                for text in dict.fromkeys(map(fp32_note, changed)):
                    print(text)
        done = [_compare(a, b, problem, device) for a, b in compared]
    except (ValueError, BadImagesError) as error:
        raise UsageError([str(error)]) from None
    finally:
        if problem:
            problem.close()
    _show(done)
    for note in _notes(done):
        print(note)
    if missing:
        print(f"without labels, so nobody is right or wrong: {missing}")
    if args.json:
        _write(Path(args.json), done)
    return 0


# Comparing


def _problem(model: SavedModel, place: RunOptions, *, kept: bool) -> tuple[LoadedData | None, str | None]:
    """The test images; or, where predictions were kept and will do, why there are none."""
    try:
        return saved_models.load_run_data(model.where, model.recipe, place), None
    except UsageError as error:
        if kept and place.root is None:
            return None, str(error)
        raise


def _compare(a: SavedModel, b: SavedModel, problem: LoadedData | None, device: torch.device) -> Compared:
    counter, start = AgreementCounter(), 0
    with reproducible(a.recipe, device), torch.no_grad():
        answers = [_answers(model, problem, device) for model in (a, b)]
        for images, labels, count in _batches(a, b, problem):
            logits_a, logits_b = (answer(images, slice(start, start + count)) for answer in answers)
            counter.add(logits_a, logits_b.to(logits_a.device), labels)
            start += count
    sources = {"kept predictions" if model.kept else "run again" for model in (a, b)}
    return Compared(a=a, b=b, source=" and ".join(sorted(sources)), agreement=counter.result())


def _batches(
    a: SavedModel, b: SavedModel, problem: LoadedData | None
) -> Iterator[tuple[Tensor | None, Tensor | None, int]]:
    """Images, labels and how many, of the test images that both could judge, in their order. Without data there are
    neither, and images only where a model is run."""
    if a.kept and b.kept:
        whole = problem.loaders.test.labels if problem else None
        judged = torch.ones(a.test, dtype=torch.bool)
        judged[list(a.kept.unread)] = False
        for places in judged.nonzero().flatten().split(_BATCH):
            yield None, None if whole is None else whole[places.to(whole.device)], len(places)
        return
    assert problem is not None, "without data there are kept predictions"
    test = problem.loaders.test
    for number, (images, labels) in enumerate(test.batches(0), 1):
        model_pairs.refuse_other_images((a, b), problem, number * test.batch_size)
        if len(labels):  # some of it could be read
            yield images, labels, len(labels)


def _answers(model: SavedModel, problem: LoadedData | None, device: torch.device) -> Callable[[Any, slice], Tensor]:
    """Logits of some of the test images that could be read, by their rows."""
    if model.kept:
        logits = model.kept.logits()
        return lambda images, rows: logits[rows]
    assert problem is not None, "without data there are kept predictions"
    network, precision = (
        problem.new_model(model.recipe).to(device),
        with_supported_precision(model.recipe, device).train.precision,
    )
    saved_models.load_weights(network, model.file)
    network.eval()

    def answer(images: Tensor, rows: slice) -> Tensor:
        with autocast(precision, device):
            return network(images)

    return answer


# What is shown


def _show(done: Sequence[Compared]) -> None:
    models = [model for one in done for model in (one.a, one.b)]
    runs, names, rows = dict.fromkeys(model.where for model in models), model_pairs.labels(models), []
    for one in done:
        found = one.agreement
        known = (found.accuracy_a, found.accuracy_b, found.both_right, found.only_a_right, found.only_b_right)
        rows.append(
            [
                *(names[one.a.file], names[one.b.file]),
                f"{found.top1:.2%}",
                f"{found.cross_entropy_ab:.3f}",
                f"{found.cross_entropy_ba:.3f}",
                *("–" if share is None else f"{share:.2%}" for share in known),
            ]
        )
    header = ["A", "B", "agree", "A to B", "B to A", "A right", "B right", "both", "only A", "only B"]
    sources, images = sorted({one.source for one in done}), done[0].a.test
    judged = describe_images(images, images - done[0].agreement.samples, "test images")
    title = f"{', '.join(map(str, runs))}: answers on {judged} ({', '.join(sources)})"
    show_table(title, header, rows, text=2)
    print("agree: the same top-1 class; A to B: cross-entropy −Σ softmax(A) · log softmax(B), in nats")
    for one in done:
        a, b = names[one.a.file], names[one.b.file]
        if one.agreement.top1 == 1:
            print(f"{a} and {b} name the same class for every image")
        elif one.agreement.flips:
            print(f"{a} and {b} differ most in class {_most(one.agreement.flips)}")


def _most(flips: Mapping[int, int]) -> str:
    order = sorted((index for index in flips if flips[index]), key=lambda index: -flips[index])[:3]
    return ", ".join(f"{index} ({flips[index]:,} image{'s' if flips[index] > 1 else ''})" for index in order)


def _notes(done: Sequence[Compared]) -> list[str]:
    notes = [
        note for one in done for note in (model_pairs.other_training(one.a, one.b), one.a.note, one.b.note) if note
    ]
    return list(dict.fromkeys(notes))


def _write(path: Path, done: Sequence[Compared]) -> None:
    rows = [
        {
            **{
                side: {"run": model.where.absolute().name, "model": model.name}
                for side, model in (("a", one.a), ("b", one.b))
            },
            "data": one.a.recipe.data.name,
            "source": one.source,
            "test_images": one.a.test,
            **asdict(one.agreement),
        }
        for one in done
    ]
    try:
        write_json(path, {"comparisons": rows, "notes": _notes(done)})
    except OSError as error:
        raise UsageError([f"--json {path}: {error.strerror}; type another file"]) from None
    print(f"written: {path}")
