"""Comparison of saved models in pairs: finds them, refuses models tested on different images, and counts agreement."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acdc.data.data_facts import ImageFacts
from acdc.errors import UsageError
from acdc.measure.agreement import Agreement, AgreementCounter
from acdc.recipes.schema import Recipe
from acdc.runs import predictions
from acdc.runs.folder import RunFolder
from acdc.runs.predictions import Kept, Source
from acdc.train import saved_models
from acdc.train.experiment import reproducible
from acdc.train.loading import LoadedData
from acdc.train.precision import autocast, with_supported_precision
from acdc.train.prepare import RunOptions

_BATCH = 1000  # stored predictions per batch
_FIRST = ("sparse", "baseline")  # the main model of a run with several
_TWINS = ("dense", "finetuned", "baseline")  # the models to compare its sparse model with
_TRAINING = ("crop", "flip", "validation", "corrupt", "corrupt_kind")  # data.* settings that change training images


@dataclass(frozen=True)
class SavedModel:
    """A model of a run: weights in a file, stored predictions, or both; or those in a checkpoint."""

    where: Path  # the run
    name: str
    file: Path
    recipe: Recipe
    test: int  # images
    kept: Kept | None = None  # its predictions, if the run stored them and they belong to it
    note: str | None = None  # what a reader must know about them

    def __str__(self) -> str:
        return f"{self.where.absolute().name}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class PairAgreement:
    """The agreement of two models, and where their answers came from."""

    a: SavedModel
    b: SavedModel
    source: str
    agreement: Agreement


def find_pairs(first: str, second: str | None) -> list[tuple[SavedModel, SavedModel]]:
    """Return the pair of models given; for a single run, its sparse model with each of its dense ones."""
    if second is not None:
        a, b = (_model(text) for text in (first, second))
        if a.file.resolve() == b.file.resolve():
            raise UsageError([f"A {first} and B {second} are the same model; name two different ones"])
        return [(a, b)]
    a = _model(first)
    if Path(first).suffix in saved_models.FILES:
        raise UsageError(
            [f"A {first} is a single model, and B is missing; add another model, or name the run's folder"]
        )
    twins = [name for name in _TWINS if name in _names(a.where) and name != a.name]
    if not twins:
        raise UsageError([f"A {first} holds only one model, {a.name}, and B is missing; add another run"])
    return [(a, _read(a.where, name, a.recipe, a.test)) for name in twins]


def labels(models: Iterable[SavedModel]) -> dict[Path, str]:
    """Return the shortest names that distinguish the models, by file: without the run, with its name or its path."""
    each = {model.file: model for model in models}
    runs = {model.where for model in each.values()}
    if len(runs) == 1:
        return {file: model.name for file, model in each.items()}
    if len({run.absolute().name for run in runs}) == len(runs):
        return {file: str(model) for file, model in each.items()}
    return {file: f"{model.where}/{model.name}" for file, model in each.items()}


def _model(text: str) -> SavedModel:
    path = Path(text)
    where = saved_models.run_folder(path)
    if not RunFolder(where).begun:
        raise UsageError([f"{text}: {saved_models.why_no_run(path, where)}"])
    recipe = saved_models.trained_recipe(where)
    saved_models.refuse_text(where, recipe, "the agreement of models")
    test = saved_models.read_config(where).data.test
    if test is None:
        raise UsageError([f"{text}: config.json does not say how many test images there were (data.test)"])
    if path.suffix == ".pt":
        if not path.is_file():
            raise UsageError([saved_models.missing_checkpoint(path)])
        return SavedModel(where, path.stem, path, recipe, test)
    names = _names(where)
    name = path.stem if path.suffix in saved_models.FILES else next((name for name in _FIRST if name in names), None)
    if not names:
        instead = saved_models.checkpoint_hint(where) or "name the folder of a finished run"
        raise UsageError([f"{text}: it holds neither a model nor predictions; {instead}"])
    if name is None or name not in names:
        there = ", ".join(f"{name}.safetensors" for name in names)
        raise UsageError([f"{text}: there is no such model in {where}; its models are {there}"])
    return _read(where, name, recipe, test)


def _names(where: Path) -> list[str]:
    files = {Path(name).stem for name in saved_models.model_files(where)}
    return sorted(files | {*_kept(where)})


def _read(where: Path, name: str, recipe: Recipe, test: int) -> SavedModel:
    """Read a model, with its stored predictions if they belong to the current file and to known images."""
    model, kept = SavedModel(where, name, where / f"{name}.safetensors", recipe, test), _kept(where).get(name)
    if kept is None:
        return model
    file, again = model.file, "the model is run again instead"
    if kept.source is Source.OTHER:
        return replace(model, note=f"{file} is not the file that its stored predictions were made from: {again}")
    if kept.source is not Source.GONE and kept.rows + len(kept.unread) < test:
        unknown = f"its stored predictions cover {kept.rows:,} of {test:,} test images, but do not say which"
        return replace(model, note=f"{file}: {unknown}: {again}")
    gone = f"{file} is gone: its stored predictions are used"
    return replace(model, kept=kept, note=gone if kept.source is Source.GONE else None)


def _kept(where: Path) -> dict[str, Kept]:
    try:
        return predictions.kept(where)
    except ValueError as error:
        raise UsageError([f"{error}; remove it to run the models"]) from None


def _classes(loaded: LoadedData) -> int:
    assert isinstance(loaded.facts, ImageFacts), "language models were refused"
    return loaded.facts.classes


# Models that cannot be compared


def refuse_other_data(a: SavedModel, b: SavedModel) -> None:
    """Raise if two models were tested on different images, naming all differences."""
    data_a, data_b = a.recipe.data, b.recipe.data
    sides = [("data", data_a.name, data_b.name), ("test images", f"{a.test:,}", f"{b.test:,}")]
    for key in sorted({*data_a.options, *data_b.options}):
        sides.append((f"data.{key}", _plain(data_a.options.get(key)), _plain(data_b.options.get(key))))
    if a.kept and b.kept:
        sides.append(("classes", str(a.kept.classes), str(b.kept.classes)))
        without = predictions.without
        sides.append(("test images that could not be read", without(a.kept.unread), without(b.kept.unread)))
    different = [f"{what}: {one} and {other}" for what, one, other in sides if one != other]
    if different:
        problems = [
            f"{a.where} and {b.where} were not tested on the same images, so they cannot be compared:",
            *different,
        ]
        if a.kept and b.kept and a.kept.unread != b.kept.unread:
            older = a if a.kept.unread else b
            problems.append(
                f"if they can be read by now, remove {RunFolder(older.where).predictions} to run its models again"
            )
        raise UsageError(problems)
    for model in (a, b):
        if model.kept and (why := model.kept.why_unknown(model.test)):
            raise UsageError([f"{RunFolder(model.where).predictions}: {why}; remove it"])


def other_training(a: SavedModel, b: SavedModel) -> str | None:
    """Return what differs in the images and labels two models were trained on; they can still be compared."""
    data_a, data_b = a.recipe.data, b.recipe.data
    sides = [(f"data.{key}", getattr(data_a, key), getattr(data_b, key)) for key in _TRAINING]
    if data_a.corrupt and data_b.corrupt:
        sides.append(("the seed of the random labels", a.recipe.run.seeds[0], b.recipe.run.seeds[0]))
    different = [f"{what} is {_plain(one)} and {_plain(other)}" for what, one, other in sides if one != other]
    return f"they were not trained on the same images and labels: {', '.join(different)}" if different else None


def _plain(value: Any) -> str:
    return "not set" if value is None else str(list(value) if isinstance(value, tuple) else value)


def refuse_changed_data(compared: Sequence[tuple[SavedModel, SavedModel]], data: LoadedData) -> None:
    """Raise if models were tested on other images than are on disk now."""
    for model in (model for pair in compared for model in pair):
        if model.test != data.loaders.test.samples:
            raise ValueError(
                f"{model.where} was tested on {model.test:,} images, but {model.recipe.data.name} has "
                f"{data.loaders.test.samples:,} here; use --data to say where the run's data is"
            )
        if model.kept and model.kept.classes != (classes_here := _classes(data)):
            name, classes = model.recipe.data.name, model.kept.classes
            raise ValueError(f"{model} distinguishes {classes:,} classes, but {name} has {classes_here:,}")


def refuse_other_images(models: Iterable[SavedModel], data: LoadedData, seen: int) -> None:
    """Raise if, among the first `seen` images, others can be read now than when predictions were stored."""
    now = tuple(place for place in data.loaders.test.unread if place < seen)
    for model in models:
        then = tuple(place for place in model.kept.unread if place < seen) if model.kept else now
        if then != now:
            raise ValueError(
                f"{model}: its stored predictions do not cover the test images that can be read now (unreadable "
                f"then: {predictions.without(then)}; now: {predictions.without(now)}); to run it again, remove "
                f"{RunFolder(model.where).predictions}"
            )


# Comparing


def load_test_images(
    pairs: Sequence[tuple[SavedModel, SavedModel]], options: RunOptions
) -> tuple[LoadedData | None, str | None]:
    """Load the test images; or return why there are none, if stored predictions can replace all the models."""
    model = pairs[0][0]
    try:
        return saved_models.load_run_data(model.where, model.recipe, options), None
    except UsageError as error:
        if all_kept(pairs) and options.root is None:
            return None, str(error)
        notes = dict.fromkeys(model.note for pair in pairs for model in pair if model.note and not model.kept)
        raise UsageError([*error.problems, *notes]) from None


def all_kept(pairs: Sequence[tuple[SavedModel, SavedModel]]) -> bool:
    """Return True if no model has to be run."""
    return all(model.kept for pair in pairs for model in pair)


def compare_pair(a: SavedModel, b: SavedModel, data: LoadedData | None, device: torch.device) -> PairAgreement:
    """Compare the answers of two models on the test images that both could read."""
    counter, start = AgreementCounter(), 0
    with reproducible(a.recipe, device), torch.no_grad():
        answers = [_answers(model, data, device) for model in (a, b)]
        for images, labels, count in _batches(a, b, data):
            logits_a, logits_b = (answer(images, slice(start, start + count)) for answer in answers)
            counter.add(logits_a, logits_b.to(logits_a.device), labels)
            start += count
    sources = {"kept predictions" if model.kept else "run again" for model in (a, b)}
    return PairAgreement(a=a, b=b, source=" and ".join(sorted(sources)), agreement=counter.result())


def _batches(
    a: SavedModel, b: SavedModel, data: LoadedData | None
) -> Iterator[tuple[Tensor | None, Tensor | None, int]]:
    """Yield images, labels and their number, for the test images that both models could read, in order.

    Without data there are neither images nor labels; images are loaded only if a model is run.
    """
    if a.kept and b.kept:
        whole = data.loaders.test.labels if data else None
        judged = torch.ones(a.test, dtype=torch.bool)
        judged[list(a.kept.unread)] = False
        for places in judged.nonzero().flatten().split(_BATCH):
            yield None, None if whole is None else whole[places.to(whole.device)], len(places)
        return
    assert data is not None, "without data there are stored predictions"
    test = data.loaders.test
    for number, (images, labels) in enumerate(test.batches(0), 1):
        refuse_other_images((a, b), data, number * test.batch_size)
        if len(labels):  # some of it could be read
            yield images, labels, len(labels)


def _answers(model: SavedModel, data: LoadedData | None, device: torch.device) -> Callable[[Any, slice], Tensor]:
    """Return a function from images, and their rows among the readable ones, to the model's logits."""
    if model.kept:
        logits = model.kept.logits()
        return lambda images, rows: logits[rows]
    assert data is not None, "without data there are stored predictions"
    network = data.new_model(model.recipe).to(device)
    precision = with_supported_precision(model.recipe, device).train.precision
    saved_models.load_weights(network, model.file)
    network.eval()

    def answer(images: Tensor, rows: slice) -> Tensor:
        with autocast(precision, device):
            return network(images)

    return answer
