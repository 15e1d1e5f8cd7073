"""acdc compare: how far two models agree on the test images, from what the runs kept or by running them again."""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from acdc.cli import common
from acdc.cli.errors import UsageError
from acdc.cli.eval import load_weights, recipe_of
from acdc.measure.agreement import Agreeing, Agreement
from acdc.train import folder, loading
from acdc.train.distributed import World
from acdc.train.experiment import reproducible
from acdc.train.recipe import Recipe
from acdc.train.step import autocast

_BATCH = 1000  # of predictions that were kept
_FIRST = ("sparse", "baseline")  # what a run stands for, where it holds several models
_TWINS = ("dense", "finetuned", "baseline")  # what its sparse model is compared with
_OTHERS = ("masks", "predictions")  # files that are no models


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "compare",
        help="see how far two models agree",
        description="Compare the answers of two models on the test images: top-1 agreement, cross-entropy both ways, "
        "which is right. With one run, its sparse model and each of its dense ones.",
        allow_abbrev=False,
    )
    parser.add_argument("a", metavar="A", help="a run's folder (its sparse model), or a .safetensors file in it")
    parser.add_argument("b", metavar="B", nargs="?", help="another, or another file of the same run")
    parser.add_argument("--json", metavar="FILE", help="also write all of it there, with the flips of every class")
    common.add_place(parser)
    parser.set_defaults(verb=run)


@dataclass(frozen=True)
class Model:
    """A model of a run: weights in a file, kept predictions, or both."""

    where: Path
    name: str
    recipe: Recipe
    test: int  # images
    kept: tuple[int, ...] | None  # the shape of its predictions, where the run kept them

    def __str__(self) -> str:
        return f"{self.where.absolute().name}/{self.name}"

    @property
    def file(self) -> Path:
        return self.where / f"{self.name}.safetensors"


@dataclass(frozen=True, kw_only=True)
class Compared:
    a: Model
    b: Model
    source: str
    agreement: Agreement


def run(args: argparse.Namespace) -> int:
    device, why = common.read_device(args.device)
    workers = common.read_workers(args.workers)
    pairs = _pairs(args.a, args.b)
    for a, b in pairs:
        _refuse_other_data(a, b)
    kept = all(model.kept for pair in pairs for model in pair)
    problem, missing = _problem(pairs[0][0].recipe, device, args.data, workers, kept=kept)
    try:
        if problem:
            _refuse_other_models(pairs, problem)
            if not kept:
                print(f"device: {device.type} ({why})")
        done = [_compare(a, b, problem, device) for a, b in pairs]
    except ValueError as error:
        raise UsageError([str(error)]) from None
    finally:
        if problem:
            problem.close()
    _show(done)
    if missing:
        print(f"without labels, so nobody is right or wrong: {missing}")
    if args.json:
        _write(Path(args.json), done)
    return 0


# What is compared


def _pairs(first: str, second: str | None) -> list[tuple[Model, Model]]:
    if second is not None:
        a, b = (_model(text) for text in (first, second))
        if (a.where.resolve(), a.name) == (b.where.resolve(), b.name):
            raise UsageError([f"A {first} and B {second} are the same model; type two different ones"])
        return [(a, b)]
    a = _model(first)
    if Path(first).suffix == ".safetensors":
        raise UsageError(
            [f"A {first} is one model, and B is missing; type another model after it, or the run's folder"]
        )
    twins = [name for name in _TWINS if name in _names(a.where) and name != a.name]
    if not twins:
        raise UsageError([f"A {first} holds one model, {a.name}, and B is missing; type another run after it"])
    return [(a, replace(a, name=name, kept=_kept(a.where).get(name))) for name in twins]


def _model(text: str) -> Model:
    path = Path(text)
    named = path.suffix == ".safetensors"
    where = path.parent if named else path
    if not (where / "config.json").is_file():
        seeds = sorted(inner.name for inner in where.glob("seed-*") if inner.is_dir())
        hint = f"it holds several seeds: type one of them, such as {where / seeds[0]}" if seeds else None
        raise UsageError([f"{text}: {hint or f'{where} holds no run (no config.json); type a folder of acdc train'}"])
    names, recipe = _names(where), recipe_of(where)
    name = path.stem if named else next((name for name in _FIRST if name in names), None)
    if name is None or name not in names:
        there = ", ".join(f"{name}.safetensors" for name in names) or "none yet"
        raise UsageError([f"{text}: there is no such model in {where}; its models are {there}"])
    try:
        test = int(folder.read_json(where / "config.json")["data"]["test"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError([f"{text}: config.json does not say how many test images there were ({error})"]) from None
    return Model(where, name, recipe, test, _kept(where).get(name))


def _names(where: Path) -> list[str]:
    files = {path.stem for path in where.glob("*.safetensors")} - {*_OTHERS}
    return sorted(files | {*_kept(where)})


def _kept(where: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the predictions a run kept, by model."""
    path = where / "predictions.safetensors"
    if not path.is_file():
        return {}
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UsageError(
            [f"{path}: cut short, or not a safetensors file ({error}); remove it to run the models"]
        ) from None


# What cannot be compared


def _refuse_other_data(a: Model, b: Model) -> None:
    """All that differs in what the two were tested on, at once."""
    data_a, data_b = a.recipe.data, b.recipe.data
    sides = [("data", data_a.name, data_b.name), ("test images", f"{a.test:,}", f"{b.test:,}")]
    for key in sorted({*data_a.options, *data_b.options}):
        sides.append((f"data.{key}", _plain(data_a.options.get(key)), _plain(data_b.options.get(key))))
    if a.kept and b.kept:
        sides.append(("classes", str(a.kept[1]), str(b.kept[1])))
    different = [f"{what}: {one} and {other}" for what, one, other in sides if one != other]
    if different:
        raise UsageError(
            [f"{a.where} and {b.where} were not tested on the same images, so they cannot be compared:", *different]
        )
    for model in (a, b):
        if model.kept and model.kept[0] != model.test:
            path, count = model.where / "predictions.safetensors", model.kept[0]
            raise UsageError([f"{path}: {count:,} predictions of {model.test:,} test images; remove it"])


def _plain(value: Any) -> str:
    return "not set" if value is None else str(list(value) if isinstance(value, tuple) else value)


def _refuse_other_models(pairs: Sequence[tuple[Model, Model]], problem: loading.Problem) -> None:
    """What is on disk now against what the runs saw."""
    for model in (model for pair in pairs for model in pair):
        if model.test != problem.loaders.test.samples:
            raise ValueError(
                f"{model.where} was tested on {model.test:,} images, and {model.recipe.data.name} has "
                f"{problem.loaders.test.samples:,} here; say where the run's data lies with --data"
            )
        if model.kept and model.kept[1] != problem.classes:
            raise ValueError(
                f"{model} tells {model.kept[1]:,} classes apart, and {model.recipe.data.name} has {problem.classes:,}"
            )


# Comparing


def _problem(
    recipe: Recipe, device: torch.device, root: str | None, workers: int | None, *, kept: bool
) -> tuple[loading.Problem | None, str | None]:
    """The test images; or, where predictions were kept and will do, why there are none."""
    try:
        return loading.load(recipe, device, root=root, workers=workers, world=World()), None
    except (ModuleNotFoundError, ValueError, OSError) as error:
        if kept and root is None:
            return None, str(error)
        raise UsageError([str(error)]) from None


def _compare(a: Model, b: Model, problem: loading.Problem | None, device: torch.device) -> Compared:
    counter = Agreeing()
    with reproducible(a.recipe, device), torch.no_grad():
        answers = [_answers(model, problem, device) for model in (a, b)]
        start = 0
        for images, labels in _batches(problem, a.test, needs_images=not (a.kept and b.kept)):
            count = len(labels) if labels is not None else min(_BATCH, a.test - start)
            logits_a, logits_b = (answer(images, slice(start, start + count)) for answer in answers)
            counter.add(logits_a, logits_b.to(logits_a.device), labels)
            start += count
    sources = {"kept predictions" if model.kept else "run again" for model in (a, b)}
    return Compared(a=a, b=b, source=" and ".join(sorted(sources)), agreement=counter.result())


def _batches(
    problem: loading.Problem | None, samples: int, *, needs_images: bool
) -> Iterator[tuple[Tensor | None, Tensor | None]]:
    """Images and labels in the order of the test set; either may be missing."""
    if problem and problem.images and not needs_images:
        yield from ((None, labels) for labels in problem.images.test.labels.split(_BATCH))
    elif problem:
        yield from problem.loaders.test.batches(0)
    else:
        yield from ((None, None) for _ in range(0, samples, _BATCH))


def _answers(model: Model, problem: loading.Problem | None, device: torch.device) -> Callable[[Any, slice], Tensor]:
    """Logits of the test images at some places."""
    if model.kept:
        with safe_open(model.where / "predictions.safetensors", framework="pt") as file:
            logits = file.get_tensor(model.name)
        return lambda images, places: logits[places]
    assert problem is not None, "without data there are kept predictions"
    network, precision = problem.new_model(model.recipe).to(device), model.recipe.train.precision
    load_weights(network, model.file)
    network.eval()
    if precision == "fp16" and device.type == "cpu":
        precision = "fp32"

    def answer(images: Tensor, places: slice) -> Tensor:
        with autocast(precision, device):
            return network(images)

    return answer


# What is shown


def _show(done: Sequence[Compared]) -> None:
    runs = {model.where for one in done for model in (one.a, one.b)}
    rows, alone = [], len(runs) == 1
    for one in done:
        found = one.agreement
        known = (found.accuracy_a, found.accuracy_b, found.both_right, found.only_a_right, found.only_b_right)
        rows.append(
            [
                *(one.a.name if alone else str(one.a), one.b.name if alone else str(one.b)),
                f"{found.top1:.2%}",
                f"{found.cross_entropy_ab:.3f}",
                f"{found.cross_entropy_ba:.3f}",
                *("–" if share is None else f"{share:.2%}" for share in known),
            ]
        )
    header = ["A", "B", "agree", "A to B", "B to A", "A right", "B right", "both", "only A", "only B"]
    samples, sources = done[0].agreement.samples, sorted({one.source for one in done})
    title = f"{', '.join(sorted(map(str, runs)))}: answers on {samples:,} test images ({', '.join(sources)})"
    common.show_table(title, header, rows, text=2)
    print("agree: the same top-1 class; A to B: cross-entropy −Σ softmax(A) · log softmax(B), in nats")
    for one in done:
        if one.agreement.flips:
            print(f"{one.a.name} and {one.b.name} differ most in class {_most(one.agreement.flips)}")


def _most(flips: Mapping[int, int]) -> str:
    order = sorted(flips, key=lambda index: -flips[index])[:3]
    return ", ".join(f"{index} ({flips[index]:,} images)" for index in order)


def _write(path: Path, done: Sequence[Compared]) -> None:
    rows = [
        {
            **{
                side: {"run": model.where.absolute().name, "model": model.name}
                for side, model in (("a", one.a), ("b", one.b))
            },
            "data": one.a.recipe.data.name,
            "source": one.source,
            **asdict(one.agreement),
        }
        for one in done
    ]
    try:
        folder.write_json(path, {"comparisons": rows})
    except OSError as error:
        raise UsageError([f"--json {path}: {error.strerror}; type another file"]) from None
    print(f"written: {path}")
