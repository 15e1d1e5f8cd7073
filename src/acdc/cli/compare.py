"""acdc compare: show how far two models agree on the test images, from stored predictions or by running them."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from acdc.cli import options
from acdc.cli.output import fp32_note, show_table
from acdc.data.images import BadImagesError
from acdc.errors import UsageError
from acdc.io import write_json
from acdc.measure.agreement import describe_flips
from acdc.train import model_pairs
from acdc.train.launch import describe_images
from acdc.train.model_pairs import PairAgreement
from acdc.train.precision import with_supported_precision
from acdc.train.prepare import RunOptions


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare",
        description="Compare the answers of two models on the test images: top-1 agreement, cross-entropy both ways, "
        "and which is right. Given one run, compare its sparse model with each of its dense ones.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "a",
        metavar="A",
        help="a run's folder (its sparse model), a .safetensors file in it, or a checkpoint: RUN/checkpoints/NAME.pt",
    )
    parser.add_argument("b", metavar="B", nargs="?", help="another run, or another file of the same run")
    parser.add_argument("--json", metavar="FILE", help="also write everything there, with the flips of every class")
    options.add_place(parser)
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    device, why = options.read_device(args.device)
    run_options = RunOptions(device=device, root=args.data, workers=options.read_workers(args.workers))
    pairs = model_pairs.find_pairs(args.a, args.b)
    for a, b in pairs:
        model_pairs.refuse_other_data(a, b)
    data, missing = model_pairs.load_test_images(pairs, run_options)
    try:
        if data:
            model_pairs.refuse_changed_data(pairs, data)
            if not model_pairs.all_kept(pairs):
                print(f"device: {device.type} ({why})")
                again = [model.recipe for pair in pairs for model in pair if not model.kept]
                changed = [recipe for recipe in again if with_supported_precision(recipe, device) is not recipe]
                for text in dict.fromkeys(map(fp32_note, changed)):
                    print(text)
        agreements = [model_pairs.compare_pair(a, b, data, device) for a, b in pairs]
    except (ValueError, BadImagesError) as error:
        raise UsageError([str(error)]) from None
    finally:
        if data:
            data.close()
    _show(agreements)
    for note in _notes(agreements):
        print(note)
    if missing:
        print(f"no labels are available, so right and wrong are not shown: {missing}")
    if args.json:
        _write(Path(args.json), agreements)
    return 0


# Output


def _show(agreements: Sequence[PairAgreement]) -> None:
    models = [model for one in agreements for model in (one.a, one.b)]
    runs, names, rows = dict.fromkeys(model.where for model in models), model_pairs.labels(models), []
    for one in agreements:
        scores = one.agreement
        known = (scores.accuracy_a, scores.accuracy_b, scores.both_right, scores.only_a_right, scores.only_b_right)
        rows.append(
            [
                *(names[one.a.file], names[one.b.file]),
                f"{scores.top1:.2%}",
                f"{scores.cross_entropy_ab:.3f}",
                f"{scores.cross_entropy_ba:.3f}",
                *("–" if share is None else f"{share:.2%}" for share in known),
            ]
        )
    header = ["A", "B", "agree", "A to B", "B to A", "A right", "B right", "both", "only A", "only B"]
    sources, images = sorted({one.source for one in agreements}), agreements[0].a.test
    judged = describe_images(images, images - agreements[0].agreement.samples, "test images")
    title = f"{', '.join(map(str, runs))}: answers on {judged} ({', '.join(sources)})"
    show_table(title, header, rows, text=2)
    print("agree: the same top-1 class; A to B: cross-entropy −Σ softmax(A) · log softmax(B), in nats")
    for one in agreements:
        a, b = names[one.a.file], names[one.b.file]
        if one.agreement.top1 == 1:
            print(f"{a} and {b} give the same class for every image")
        elif one.agreement.flips:
            print(f"{a} and {b} differ most on class {describe_flips(one.agreement.flips)}")


def _notes(agreements: Sequence[PairAgreement]) -> list[str]:
    notes = [
        note
        for one in agreements
        for note in (model_pairs.other_training(one.a, one.b), one.a.note, one.b.note)
        if note
    ]
    return list(dict.fromkeys(notes))


def _write(path: Path, agreements: Sequence[PairAgreement]) -> None:
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
        for one in agreements
    ]
    try:
        write_json(path, {"comparisons": rows, "notes": _notes(agreements)})
    except OSError as error:
        raise UsageError([f"--json {path}: {error.strerror}; choose another file"]) from None
    print(f"written: {path}")
