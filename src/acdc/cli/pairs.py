"""Two models of runs to be compared: found by what was typed, and refused where they did not see the same images."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from acdc.cli.errors import UsageError
from acdc.cli.eval import recipe_of
from acdc.train import folder, loading
from acdc.train.recipe import Recipe

_FIRST = ("sparse", "baseline")  # what a run stands for, where it holds several models
_TWINS = ("dense", "finetuned", "baseline")  # what its sparse model is compared with
_OTHERS = ("masks", "predictions")  # files that are no models


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


def pairs(first: str, second: str | None) -> list[tuple[Model, Model]]:
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
            path, count = model.where / "predictions.safetensors", model.kept[0]
            raise UsageError([f"{path}: {count:,} predictions of {model.test:,} test images; remove it"])


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
