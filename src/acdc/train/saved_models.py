"""The models that runs saved: finds them, loads their weights, and measures them again on the test images."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from acdc import data, io
from acdc.errors import UsageError
from acdc.measure.dynamics import ModelCounts, count_model
from acdc.recipes import load as recipes
from acdc.recipes.findings import RecipeError
from acdc.recipes.fit import count_uses
from acdc.recipes.schema import Recipe
from acdc.runs import checkpoint, differences
from acdc.runs.checkpoint import CheckpointError, check_contents
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import RecordError, read
from acdc.runs.quality import quality_of
from acdc.runs.records import RunConfig, RunResult
from acdc.sparsity import packed
from acdc.train.evaluate import Score, evaluate
from acdc.train.execution import Setting
from acdc.train.experiment import reproducible
from acdc.train.loading import LoadedData
from acdc.train.precision import with_supported_precision
from acdc.train.prepare import PreparedRun, RunOptions, load_data
from acdc.train.step import Execution

FILES = (".safetensors", ".pt")


class SavedModelError(ValueError):
    """A model file that is missing, damaged, or does not fit the run's model."""


# Finding models


def run_folder(path: Path) -> Path:
    """Return the run's folder, given the folder or a file in it: RUN/NAME.safetensors, RUN/checkpoints/NAME.pt."""
    if path.suffix != ".pt":
        return path.parent if path.suffix in FILES else path
    inside = path.parent
    return inside.parent if inside.name not in ("", "..") else inside.resolve().parent


def read_config(run: Path) -> RunConfig:
    """Read a run's config.json, or raise a UsageError."""
    config = read(RunConfig, RunFolder(run).config)
    if config is None:
        raise UsageError([f"RUN {run}: {why_no_run(run, run)}"])
    return config


def trained_recipe(run: Path) -> Recipe:
    """Read the recipe that a run was trained with."""
    try:
        return recipes.from_dict(read_config(run).recipe.settings)
    except RecipeError as error:
        raise UsageError([f"RUN {run}: config.json cannot be read ({error}); choose another run"]) from None


def model_files(run: Path) -> list[str]:
    """List the model files of a run, except checkpoints."""
    return RunFolder(run).models()


def checkpoint_hint(run: Path) -> str:
    """Return what to type if there is no model; "" if there is no checkpoint either."""
    newest = sorted(RunFolder(run).checkpoints.glob("*.pt"))[-1:]
    return f"name a checkpoint, such as {newest[0]}" if newest else ""


def why_no_run(path: Path, run: Path) -> str:
    """Return what is wrong with `path`, whose folder `run` holds no run, and what to type instead."""
    if path.suffix == ".pt":
        return (
            f"expected a checkpoint inside its run's folder, but {run} holds no run (no config.json); "
            "use RUN/checkpoints/NAME.pt"
        )
    seeds = sorted(inner.name for inner in run.glob("seed-*") if inner.is_dir())
    if seeds:
        return f"it holds several seeds; name one of them, such as {run / seeds[0]}"
    holds = f"{run} holds" if path.suffix in FILES else "it holds"
    return f"{holds} no run (no config.json); name a folder written by acdc train"


def missing_checkpoint(path: Path) -> str:
    """Return the message for a checkpoint that does not exist."""
    return f"{path}: there is no such checkpoint; {checkpoint_hint(run_folder(path)) or 'the run has none'}"


def refuse_text(run: Path, recipe: Recipe, what: str) -> None:
    """Raise if a run's models are language models, for which something is not available."""
    if data.describe(recipe.data.name).kind == "text":
        raise UsageError(
            [f"RUN {run}: {what} is for image classification, but it holds language models; acdc eval measures them"]
        )


# Preparing a run for evaluation


def load_run_data(run: Path, recipe: Recipe, options: RunOptions) -> LoadedData:
    """Load a run's data: from the folder given, or from where it was in training, if anything is there now."""
    trained_on = read_config(run).root
    root = options.root or (trained_on if trained_on and Path(trained_on).exists() else None)
    vocabulary = RunFolder(run).vocabulary  # other text is read in the tokens that the models know
    return load_data(recipe, replace(options, root=root), vocabulary if vocabulary.is_file() else None)


def reopen_run(run: Path, trained: Recipe, options: RunOptions) -> PreparedRun:
    """Prepare a run to evaluate its models, in fp32 if the device does not support its precision."""
    recipe = with_supported_precision(trained, options.device)
    loaded = load_run_data(run, recipe, options)
    return PreparedRun(recipe=recipe, options=options, facts=loaded.facts, loaded=loaded)


def data_difference(run: Path, loaded: LoadedData) -> str | None:
    """Describe how this differs from the run's data, or return None if it does not."""
    return differences.data(read_config(run).data, loaded.identity())


@dataclass(frozen=True)
class Measurement:
    """The score and the size of one saved model."""

    file: str
    score: Score
    counted: ModelCounts


def measure_models(run: Path, files: Sequence[str], prepared: PreparedRun, problems: list[str]) -> list[Measurement]:
    """Measure the models in these files, and add to `problems` why any cannot be measured."""
    with reproducible(prepared.recipe, prepared.device):
        return list(_measure(run, files, prepared, problems))


def _measure(run: Path, files: Sequence[str], prepared: PreparedRun, problems: list[str]) -> Iterator[Measurement]:
    device, loaded = prepared.device, prepared.data
    setting = Setting(device=device, execution=Execution(False, False, ()), checkpoints=RunFolder(run).checkpoints)
    uses: dict[str, float] = {}
    for name in files:
        model = prepared.new_model().to(device)
        uses = uses or count_uses(model, loaded.facts)
        try:
            load_weights(model, run / name)
        except SavedModelError as error:
            problems.append(str(error))
            continue
        score = evaluate(model, loaded.loaders.test, prepared.recipe, setting)
        counts = count_model(model, uses, embeddings=prepared.recipe.prunes_embeddings)
        yield Measurement(name, score, counts)


def read_scores(run: Path) -> tuple[dict[str, float], str]:
    """Read the accuracies or perplexities that a run wrote, by file, and why there are none, if so."""
    path = RunFolder(run).result
    if not path.is_file():
        return {}, f"{path} does not exist: the run is not complete; resume it with: acdc train --resume {run}"
    try:
        result = read(RunResult, path)
    except RecordError as error:
        return {}, f"{path.name} cannot be read, so there is nothing to compare with ({error})"
    return {row.file: quality_of(row).of(row) for row in result.models} if result else {}, ""


# Loading weights


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a file's weights into the model, or raise a SavedModelError. Nothing in a file is executed.

    A model that another tool wrote is loaded as it is, with a note that its weights are not verified.
    """
    weights = read_weights(path)
    check_fit(model, weights, path)
    model.load_state_dict(weights)


def read_weights(path: Path) -> Mapping[str, torch.Tensor]:
    """Read the weights in a model's file or a checkpoint, or raise a SavedModelError."""
    return _read_checkpoint(path) if path.suffix == ".pt" else _read_model(path)


def _read_model(path: Path) -> Mapping[str, torch.Tensor]:
    try:
        io.verify_safetensors(path)
    except FileNotFoundError:
        names = ", ".join(model_files(path.parent)) or "none"
        raise SavedModelError(f"{path}: there is no such file; the folder's models are {names}") from None
    except io.UnsealedError as error:
        print(f"note: {error}; its weights are not verified")
    except io.IntegrityError as error:
        raise SavedModelError(f"{error}; restore the file from a copy, or train the run again") from None
    except OSError as error:
        raise SavedModelError(f"{path}: it could not be read ({error.strerror or error})") from None
    try:
        return packed.load_with_details(path, verify=False)[0]
    except io.IntegrityError as error:
        raise SavedModelError(str(error)) from None
    except OSError as error:
        raise SavedModelError(f"{path}: it could not be read ({error.strerror or error})") from None


def _read_checkpoint(path: Path) -> Mapping[str, torch.Tensor]:
    if not path.is_file():
        raise SavedModelError(missing_checkpoint(path))
    try:
        state = checkpoint.load(path)
        check_contents(path, state)
        return state["model"]
    except CheckpointError as error:
        raise SavedModelError(str(error)) from None


def check_fit(model: nn.Module, weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Raise if weights do not fit the model, naming those that do not."""
    expected = model.state_dict()
    faults = [
        f"{what} {', '.join(sorted(keys)[:3])}{f' and {len(keys) - 3} more' if len(keys) > 3 else ''}"
        for what, keys in (("it lacks", {*expected} - {*weights}), ("it also has", {*weights} - {*expected}))
        if keys
    ]
    faults += [
        f"{key} is {_shape(weights[key])} but should be {_shape(value)}"
        for key, value in expected.items()
        if key in weights and weights[key].shape != value.shape
    ][:3]
    if faults:
        raise SavedModelError(f"{path}: it does not fit the run's model {type(model).__name__}: {'; '.join(faults)}")


def _shape(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"
