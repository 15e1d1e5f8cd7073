"""acdc eval: the models of a run, measured again on the test images and set beside what the run said."""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from acdc.cli import common
from acdc.cli.errors import UsageError
from acdc.measure.dynamics import flops_of, nonzeros
from acdc.sparsity.layers import find_prunable
from acdc.sparsity.uses import forward_uses
from acdc.train import folder, loading, reading
from acdc.train.distributed import World
from acdc.train.evaluation import evaluate
from acdc.train.experiment import reproducible
from acdc.train.recipe import Recipe
from acdc.train.setting import Setting
from acdc.train.step import Execution

_OTHERS = ("masks.safetensors", "predictions.safetensors")


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "eval",
        description="Measure the models of a run folder, or one of its files, on the test images, and compare with "
        "what the run wrote.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder, or a .safetensors file in it")
    parser.add_argument(
        "--file", action="append", default=[], metavar="NAME", help="only this file of the run; repeatable"
    )
    common.add_place(parser)
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    device, why = common.read_device(args.device)
    workers = common.read_workers(args.workers)
    where, names = _where(args)
    seeds = sorted(path for path in where.glob("seed-*") if (path / "config.json").is_file())
    print(f"device: {device.type} ({why})")
    return max([_one(path, names, device, args.data, workers) for path in seeds or [where]])


@dataclass(frozen=True)
class Measured:
    file: str
    accuracy: float
    loss: float
    sparsity: float
    flops: int
    dense_flops: int
    images: int  # that it was judged on


def _where(args: argparse.Namespace) -> tuple[Path, list[str]]:
    path = Path(args.run)
    if path.suffix == ".safetensors":
        if args.file:
            raise UsageError([f"RUN {path} names a file already; leave --file out, or give the run's folder"])
        where, names = path.parent, [path.name]
    else:
        where, names = path, [name if name.endswith(".safetensors") else f"{name}.safetensors" for name in args.file]
    if not (where / "config.json").is_file():
        raise UsageError([f"RUN {path}: {where} holds no run (no config.json); type a folder that acdc train wrote"])
    return where, names


def _one(where: Path, names: list[str], device: torch.device, root: str | None, workers: int | None) -> int:
    recipe = recipe_of(where)
    if recipe.train.precision == "fp16" and device.type == "cpu":
        recipe = replace(recipe, train=replace(recipe.train, precision="fp32"))
        print("precision: fp32 (trained in fp16, which needs a GPU)")
    if not names:
        names = _models(where)
        if not names:
            raise UsageError([f"RUN {where}: no model in it yet; go on with: acdc train --resume {where}"])
    try:
        problem = loading.load(recipe, device, root=root, workers=workers, world=World())
    except (ModuleNotFoundError, ValueError, OSError) as error:
        raise UsageError([str(error)]) from None
    problems: list[str] = []
    try:
        with reproducible(recipe, device):
            measured = list(_measure_all(where, names, recipe, problem, device, problems))
    finally:
        problem.close()
    if measured:
        samples = problem.loaders.test.samples
        _show(where, measured, common.judged(samples, samples - min(one.images for one in measured)))
    for text in problems:
        print(f"acdc: {text}", file=sys.stderr)
    return 1 if problems else 0


def _models(where: Path) -> list[str]:
    return [path.name for path in sorted(where.glob("*.safetensors")) if path.name not in _OTHERS]


def recipe_of(where: Path) -> Recipe:
    try:
        return reading.from_dict(folder.read_json(where / "config.json")["recipe"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError([f"RUN {where}: config.json cannot be read ({error}); type another run"]) from None


def _measure_all(
    where: Path, names: list[str], recipe: Recipe, problem: loading.Problem, device: torch.device, problems: list[str]
) -> Iterator[Measured]:
    setting = Setting(device=device, execution=Execution(False, False, ()), checkpoints=where / "checkpoints")
    uses: dict[str, float] = {}
    for name in names:
        model = problem.new_model(recipe).to(device)
        uses = uses or forward_uses(model, problem.example(device))
        try:
            load_weights(model, where / name)
        except ValueError as error:
            problems.append(str(error))
            continue
        score = evaluate(model, problem.loaders.test, recipe, setting)
        layers = find_prunable(model)
        counts = nonzeros(layers)
        whole = {weight.name: weight.param.numel() for weight in layers.weights}
        sparsity = 1 - sum(counts.values()) / layers.size
        flops, dense = flops_of(counts, uses), flops_of(whole, uses)
        yield Measured(name, score.accuracy, score.loss, sparsity, flops, dense, score.samples)


def load_weights(model: nn.Module, path: Path) -> None:
    """Weights into the model, or a ValueError in words. Only safetensors are read: nothing in a file is executed."""
    try:
        weights = load_file(path)
    except FileNotFoundError:
        there = ", ".join(_models(path.parent)) or "none"
        raise ValueError(f"{path}: there is no such file; the folder's models are {there}") from None
    except (SafetensorError, OSError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{path}: cut short, or not a safetensors file ({reason})") from None
    put_weights(model, weights, path)


def put_weights(model: nn.Module, weights: Mapping[str, torch.Tensor], path: Path) -> None:
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


def _show(where: Path, measured: list[Measured], images: str) -> None:
    said, note = _said(where)
    rows = []
    for one in measured:
        before = said.get(one.file)
        difference = ""
        if before is not None:
            difference = "the same" if before == one.accuracy else f"{100 * (one.accuracy - before):+.2f}"
        rows.append(
            (
                one.file,
                f"{one.accuracy:.2%}",
                f"{one.loss:.4f}",
                f"{one.sparsity:.2%}",
                common.si(one.flops, 4),
                f"{one.flops / one.dense_flops:.2f}x",
                "" if before is None else f"{before:.2%}",
                difference,
            )
        )
    header = ("file", "accuracy", "loss", "sparsity", "FLOPs", "of dense", "result.json", "difference")
    common.show_table(f"{where}: test accuracy on {images}; FLOPs in theory, per image", header, rows)
    if note:
        print(note)


def _said(where: Path) -> tuple[dict[str, float], str]:
    """Accuracies by file, as the run wrote them; and why there are none."""
    path = where / "result.json"
    if not path.is_file():
        return {}, f"{path} is not there: the run is not complete; go on with: acdc train --resume {where}"
    try:
        return {row["file"]: row["test_accuracy"] for row in folder.read_json(path)["models"]}, ""
    except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
        return {}, f"{path} cannot be read ({error}): nothing to compare with"
