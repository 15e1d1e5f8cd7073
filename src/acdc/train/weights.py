"""Weights that a run left, as files of models and checkpoints: where they lie, and into a model."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from acdc.errors import UsageError
from acdc.io import IntegrityError, UnsealedError, verify_safetensors
from acdc.recipes import load as recipes
from acdc.recipes.mistakes import RecipeError
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint, differences
from acdc.runs.checkpoint import CheckpointError, check_contents
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import read
from acdc.runs.records import RunConfig
from acdc.train import loading
from acdc.train.distributed import World
from acdc.train.place import load_data

FILES = (".safetensors", ".pt")


def run_of(path: Path) -> Path:
    """The run's folder, of itself or of a file in it: RUN/NAME.safetensors, RUN/checkpoints/NAME.pt."""
    if path.suffix != ".pt":
        return path.parent if path.suffix in FILES else path
    inside = path.parent
    return inside.parent if inside.name not in ("", "..") else inside.resolve().parent


def config_of(where: Path) -> RunConfig:
    """What a run says of itself."""
    config = read(RunConfig, RunFolder(where).config)
    if config is None:
        raise UsageError([f"RUN {where}: {no_run(where, where)}"])
    return config


def recipe_of(where: Path) -> Recipe:
    try:
        return recipes.from_dict(config_of(where).recipe.settings)
    except RecipeError as error:
        raise UsageError([f"RUN {where}: config.json cannot be read ({error}); type another run"]) from None


def data_of(
    where: Path, recipe: Recipe, device: torch.device, root: str | None, workers: int | None
) -> loading.Problem:
    """A run's data: in `root`, or where they lay as it was trained, if anything is there by now."""
    lay = config_of(where).root
    found = root or (lay if lay and Path(lay).exists() else None)
    return load_data(recipe, device, root=found, workers=workers, world=World())


def other_data(where: Path, problem: loading.Problem) -> str | None:
    """In which way these are not the data of the run."""
    return differences.data(config_of(where).data, problem.described())


def models(where: Path) -> list[str]:
    """The files of a run's models, checkpoints apart."""
    return RunFolder(where).models()


def a_checkpoint(where: Path) -> str:
    """What to type where there is no model; nothing where there is no checkpoint either."""
    newest = sorted(RunFolder(where).checkpoints.glob("*.pt"))[-1:]
    return f"type a checkpoint, such as {newest[0]}" if newest else ""


def no_run(path: Path, where: Path) -> str:
    """What is said where `where` holds none."""
    if path.suffix == ".pt":
        return (
            f"expected a checkpoint where its run keeps it, and {where} holds no run (no config.json); "
            "type RUN/checkpoints/NAME.pt"
        )
    seeds = [seed.path.name for seed in RunFolder(where).seeds()]
    if seeds:
        return f"it holds several seeds: type one of them, such as {where / seeds[0]}"
    holds = f"{where} holds" if path.suffix in FILES else "holds"
    return f"{holds} no run (no config.json); type a folder of acdc train"


def no_checkpoint(path: Path) -> str:
    return f"{path}: there is no such checkpoint; {a_checkpoint(run_of(path)) or 'the run has none'}"


def load(model: nn.Module, path: Path) -> None:
    """Load a file's weights into the model, or raise a ValueError in words. Nothing in a file is executed.

    A model that another tool wrote is loaded as it is, and a note says that nothing vouches for it.
    """
    put(model, _read_checkpoint(path) if path.suffix == ".pt" else _read_model(path), path)


def _read_model(path: Path) -> Mapping[str, torch.Tensor]:
    try:
        verify_safetensors(path)
    except FileNotFoundError:
        there = ", ".join(models(path.parent)) or "none"
        raise ValueError(f"{path}: there is no such file; the folder's models are {there}") from None
    except UnsealedError as error:
        print(f"note: {error}; its weights are not verified")
    except IntegrityError as error:
        raise ValueError(f"{error}; restore the file from a copy, or train the run again") from None
    except OSError as error:
        raise ValueError(f"{path}: could not be read ({error.strerror or error})") from None
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: cut short, or not a safetensors file ({reason})") from None


def _read_checkpoint(path: Path) -> Mapping[str, torch.Tensor]:
    if not path.is_file():
        raise ValueError(no_checkpoint(path))
    try:
        state = checkpoint.load(path)
        check_contents(path, state)
        return state["model"]
    except CheckpointError as error:
        raise ValueError(str(error)) from None


def put(model: nn.Module, weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Weights of a file that was read, or a ValueError that names what does not fit."""
    expected = model.state_dict()
    faults = [
        f"{what} {', '.join(sorted(keys)[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for what, keys in (("it lacks", {*expected} - {*weights}), ("it adds", {*weights} - {*expected}))
        if keys
    ]
    faults += [
        f"{key} is {_shape(weights[key])} and should be {_shape(value)}"
        for key, value in expected.items()
        if key in weights and weights[key].shape != value.shape
    ][:3]
    if faults:
        raise ValueError(f"{path}: does not fit the run's model {type(model).__name__}: {'; '.join(faults)}")
    model.load_state_dict(weights)


def _shape(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
