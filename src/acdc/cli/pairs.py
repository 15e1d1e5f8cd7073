"""Two models of runs to be compared: found by what was typed, and refused where they did not see the same images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from acdc.cli import weights
from acdc.cli.errors import UsageError
from acdc.train import folder, loading
from acdc.train.recipe import Recipe

_FIRST = ("sparse", "baseline")  # what a run stands for, where it holds several models
_TWINS = ("dense", "finetuned", "baseline")  # what its sparse model is compared with
_TRAINING = ("crop", "flip", "validation", "corrupt", "corrupt_kind")  # what data.* changes of the training images


@dataclass(frozen=True)
class Model:
    """A model of a run: weights in a file, kept predictions, or both; or what a checkpoint holds."""

    where: Path  # the run
    name: str
    file: Path
    recipe: Recipe
    test: int  # images
    kept: tuple[int, ...] | None = None  # the shape of its predictions, where the run kept them and they are its own
    note: str | None = None  # what a reader must know of them

    def __str__(self) -> str:
        return f"{self.where.absolute().name}/{self.name}"


def pairs(first: str, second: str | None) -> list[tuple[Model, Model]]:
    if second is not None:
        a, b = (_model(text) for text in (first, second))
        if a.file.resolve() == b.file.resolve():
            raise UsageError([f"A {first} and B {second} are the same model; type two different ones"])
        return [(a, b)]
    a = _model(first)
    if Path(first).suffix in weights.FILES:
        raise UsageError(
            [f"A {first} is one model, and B is missing; type another model after it, or the run's folder"]
        )
    twins = [name for name in _TWINS if name in _names(a.where) and name != a.name]
    if not twins:
        raise UsageError([f"A {first} holds one model, {a.name}, and B is missing; type another run after it"])
    return [(a, _read(a.where, name, a.recipe, a.test)) for name in twins]


def labels(models: Iterable[Model]) -> dict[Path, str]:
    """As short as tells them apart, by file: the model's name, with its run, or with the run's whole path."""
    each = {model.file: model for model in models}
    runs = {model.where for model in each.values()}
    if len(runs) == 1:
        return {file: model.name for file, model in each.items()}
    if len({run.absolute().name for run in runs}) == len(runs):
        return {file: str(model) for file, model in each.items()}
    return {file: f"{model.where}/{model.name}" for file, model in each.items()}


def _model(text: str) -> Model:
    path = Path(text)
    where = weights.run_of(path)
    if not (where / "config.json").is_file():
        raise UsageError([f"{text}: {weights.no_run(path, where)}"])
    recipe = weights.recipe_of(where)
    try:
        test = int(folder.read_json(where / "config.json")["data"]["test"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError([f"{text}: config.json does not say how many test images there were ({error})"]) from None
    if path.suffix == ".pt":
        if not path.is_file():
            raise UsageError([weights.no_checkpoint(path)])
        return Model(where, path.stem, path, recipe, test)
    names = _names(where)
    name = path.stem if path.suffix in weights.FILES else next((name for name in _FIRST if name in names), None)
    if not names:
        instead = weights.a_checkpoint(where) or "type a folder that acdc train has finished"
        raise UsageError([f"{text}: it holds neither a model nor predictions; {instead}"])
    if name is None or name not in names:
        there = ", ".join(f"{name}.safetensors" for name in names)
        raise UsageError([f"{text}: there is no such model in {where}; its models are {there}"])
    return _read(where, name, recipe, test)


def _names(where: Path) -> list[str]:
    files = {Path(name).stem for name in weights.models(where)}
    return sorted(files | {*_kept(where)[0]})


def _read(where: Path, name: str, recipe: Recipe, test: int) -> Model:
    """With its predictions, if they are of the file as it is now."""
    file, (shapes, made_from) = where / f"{name}.safetensors", _kept(where)
    model = Model(where, name, file, recipe, test)
    if name not in shapes:
        return model
    kept, known = replace(model, kept=shapes[name]), made_from.get(name)
    if not file.is_file():
        return replace(kept, note=f"{file} is gone: its kept predictions stand for it")
    if known is None and _whole(file):
        return replace(kept, note=f"{file}: its kept predictions are of an older acdc, which tied them to no file")
    if known is None or known != folder.checksum(file):
        again = "it is run again instead of using them"
        return replace(model, note=f"{file} is not the file its kept predictions were made from: {again}")
    return kept


def _whole(file: Path) -> bool:
    """Whether a file is as long as it says: cheap, and enough to notice one cut short."""
    try:
        with safe_open(file, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False


def _kept(where: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Shapes of the predictions a run kept, and the checksums of the files they were made from; both by model."""
    path = where / folder.PREDICTIONS
    if not path.is_file():
        return {}, {}
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        return shapes, folder.checksums(path)
    except (SafetensorError, OSError) as error:
        raise UsageError(
            [f"{path}: cut short, or not a safetensors file ({error}); remove it to run the models"]
        ) from None


# What cannot be compared


def refuse_other_data(a: Model, b: Model) -> None:
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
            path, count = model.where / folder.PREDICTIONS, model.kept[0]
            raise UsageError([f"{path}: {count:,} predictions of {model.test:,} test images; remove it"])


def other_training(a: Model, b: Model) -> str | None:
    """What differs in the images and labels the two learned from, which does not stand in the way."""
    data_a, data_b = a.recipe.data, b.recipe.data
    sides = [(f"data.{key}", getattr(data_a, key), getattr(data_b, key)) for key in _TRAINING]
    if data_a.corrupt and data_b.corrupt:
        sides.append(("the seed of the random labels", a.recipe.run.seeds[0], b.recipe.run.seeds[0]))
    different = [f"{what} is {_plain(one)} and {_plain(other)}" for what, one, other in sides if one != other]
    return f"they did not learn from the same images and labels: {', '.join(different)}" if different else None


def _plain(value: Any) -> str:
    return "not set" if value is None else str(list(value) if isinstance(value, tuple) else value)


def refuse_other_models(compared: Sequence[tuple[Model, Model]], problem: loading.Problem) -> None:
    """What is on disk now against what the runs saw."""
    for model in (model for pair in compared for model in pair):
        if model.test != problem.loaders.test.samples:
            raise ValueError(
                f"{model.where} was tested on {model.test:,} images, and {model.recipe.data.name} has "
                f"{problem.loaders.test.samples:,} here; say where the run's data lies with --data"
            )
        if model.kept and model.kept[1] != problem.classes:
            raise ValueError(
                f"{model} tells {model.kept[1]:,} classes apart, and {model.recipe.data.name} has {problem.classes:,}"
            )
