"""Exports a model of a run: its weights come from the run's file, its network from the recipe."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from acdc.data.data_facts import Facts, ImageFacts
from acdc.errors import UsageError
from acdc.export.onnx import OnnxFile, to_onnx
from acdc.export.shrinking import shrink
from acdc.export.sizes import SizeComparison, compare_sizes
from acdc.io import write_files
from acdc.recipes.schema import Recipe
from acdc.runs.folder import RunFolder
from acdc.sparsity import packed
from acdc.train import saved_models
from acdc.train.loading import build_model, read_facts
from acdc.train.prepare import RunOptions

Format = Literal["onnx", "safetensors", "torch"]
FORMATS: tuple[Format, ...] = get_args(Format)
_SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "safetensors": ".safetensors", "torch": ".pt"}
_IMAGES = 64  # test images that an ONNX file is checked on


@dataclass(frozen=True)
class Exported:
    """Describes a file that was written, and what it was made from."""

    source: Path
    path: Path
    dense_bytes: int  # of all tensors as they are in memory
    bytes: int
    changes: SizeComparison | None = None  # if it was shrunk
    onnx: OnnxFile | None = None
    note: str = ""


def export_model(
    run: Path,
    file: str,
    to: Format,
    options: RunOptions,
    *,
    out: Path | None = None,
    smaller: bool = False,
    fold_batch_norm: bool = True,
) -> Exported:
    """Write a model of a run in another format; `smaller` removes its dead channels. No file is overwritten."""
    source = run / file
    weights = _read(source)
    path = out or RunFolder(run).exports / f"{source.stem}{'-shrunk' if smaller else ''}{_SUFFIXES[to]}"
    if path.exists():
        raise UsageError([f"--out {path}: it already exists; delete it, or type another file"])
    dense_bytes = sum(value.numel() * value.element_size() for value in weights.values())
    changes = onnx = None
    note = ""
    created = not path.parent.exists()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if smaller or to == "onnx":
            saved_models.refuse_text(run, saved_models.trained_recipe(run), "onnx" if to == "onnx" else "shrinking")
            model, images, note = _model_and_images(run, source, weights, options)
            if smaller:
                before, model = model, shrink(model, images[:1])
                changes = compare_sizes(before, model)
            weights = model.state_dict()
            if to == "onnx":
                onnx = to_onnx(model, images, path, fold_batch_norm=fold_batch_norm)
        if to == "safetensors":
            packed.save(weights, path)
        elif to == "torch":
            write_files({path: lambda temporary: _write_torch(temporary, weights)})
    except OSError as error:
        raise UsageError([f"--out {path}: {error.strerror or error}; type another file"]) from None
    except (ModuleNotFoundError, RuntimeError, ValueError) as error:
        raise UsageError([str(error)]) from None
    finally:
        if created and not path.exists():
            with contextlib.suppress(OSError):  # it holds something else, or was not created
                path.parent.rmdir()
    return Exported(source, path, dense_bytes, path.stat().st_size, changes, onnx, note)


def _read(source: Path) -> dict[str, Tensor]:
    try:
        return dict(saved_models.read_weights(source))
    except saved_models.SavedModelError as error:
        raise UsageError([str(error)]) from None


def _model_and_images(
    run: Path, source: Path, weights: dict[str, Tensor], options: RunOptions
) -> tuple[nn.Module, Tensor, str]:
    """Return the run's model with these weights, and test images, or random ones and a note if its data are missing."""
    recipe = saved_models.trained_recipe(run)
    note = ""
    try:
        loaded = saved_models.load_run_data(run, recipe, options)
        try:
            facts: Facts = loaded.facts
            images = next(images for images, _ in loaded.loaders.test.batches(0))[:_IMAGES]
        finally:
            loaded.close()
    except UsageError as error:
        facts = _published_facts(recipe, options, error)
        images = torch.randn(_IMAGES, *facts.shape, generator=torch.Generator().manual_seed(0))
        note = f"the run's data are missing, so random images replace the test images ({error})"
    model = build_model(recipe, facts)
    try:
        saved_models.check_fit(model, weights, source)
    except saved_models.SavedModelError as error:
        raise UsageError([str(error)]) from None
    model.load_state_dict(weights)
    return model.eval(), images.to("cpu", torch.float32), note


def _published_facts(recipe: Recipe, options: RunOptions, missing: UsageError) -> ImageFacts:
    try:
        facts = read_facts(recipe, options.root)
        assert isinstance(facts, ImageFacts), "language models were refused"
        return facts
    except (ValueError, OSError, ModuleNotFoundError):
        raise missing from None


def _write_torch(path: Path, weights: dict[str, Tensor]) -> None:
    torch.save(weights, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def find_onnx(typed: str, options: RunOptions) -> tuple[Path, Path | None]:
    """Return the ONNX file to measure, and the run it belongs to, if any: a file, or a run's folder.

    Of a run's folder it is exports/sparse.onnx, which is exported now if it is not there yet.
    """
    path = Path(typed)
    if path.is_file() and path.suffix != ".safetensors":
        run = next((parent for parent in path.resolve().parents[:2] if RunFolder(parent).begun), None)
        return path, run
    if not path.exists():
        raise UsageError([f"{path}: there is no such file or folder; acdc export RUN --to onnx writes one"])
    run, file = find_model(typed, None)
    exported = RunFolder(run).exports / f"{Path(file).stem}.onnx"
    return exported if exported.is_file() else export_model(run, file, "onnx", options).path, run


def find_model(typed: str, name: str | None) -> tuple[Path, str]:
    """Return a run's folder and the file of one of its models, from what was typed, or raise a UsageError."""
    path = Path(typed)
    run = saved_models.run_folder(path)
    if not RunFolder(run).begun:
        raise UsageError([f"RUN {path}: {saved_models.why_no_run(path, run)}"])
    if [seed for seed in RunFolder(run).seeds() if seed.begun]:
        raise UsageError([f"RUN {path}: {saved_models.why_no_run(path, run)}"])
    if path.suffix in saved_models.FILES:
        if name:
            raise UsageError([f"RUN {path} names a file already; leave --model out, or give the run's folder"])
        return run, os.path.relpath(path, run)
    name = name or "sparse"
    return run, name if name.endswith(saved_models.FILES) else f"{name}.safetensors"
