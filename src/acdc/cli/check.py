"""acdc check: all that is wrong with a recipe at once; or else what it will do and cost, without training it."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from acdc.cli import common
from acdc.core.method import Method
from acdc.measure import predict
from acdc.recipes import load
from acdc.recipes.paper import accuracies, row_for
from acdc.recipes.schema import Recipe
from acdc.sparsity.layers import Layers
from acdc.train import experiment, timing
from acdc.train.rates import Rates
from acdc.train.subject import Subject, read


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "check",
        description="Name everything that is wrong with a recipe; or show its timeline, which layers it prunes, its "
        "FLOPs by the paper's count, and how long it will take here.",
        allow_abbrev=False,
    )
    common.add_recipe(parser, default="digits")
    common.add_place(parser)
    parser.add_argument("--layers", action="store_true", help="list every layer with the weights it keeps")
    parser.add_argument("--no-timing", action="store_true", help="do not time a few steps")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    warnings: list[str] = []
    subject = read(args, warnings)
    _introduce(subject)
    _flops(subject, args.recipe, args.layers)
    if not args.no_timing:
        _time(subject)
    for warning in warnings:
        print(f"warning: {warning}")
    return 0


# What it will do


def _introduce(subject: Subject) -> None:
    recipe, facts, method = subject.recipe, subject.facts, subject.method
    assumed = " (as published; not found here)" if facts.missing else ""
    print(f"{recipe.name}: {recipe.about}" if recipe.about else recipe.name)
    print(f"data: {recipe.data.name}, {facts.told()}{assumed}")
    print(f"model: {recipe.model.name}, {sum(p.numel() for p in subject.model.parameters()):,} parameters")
    if method and subject.layers:
        print("\n".join(common.compressed(method, subject.layers)))
    steps, epochs = subject.steps, recipe.epochs
    parts = f", in {recipe.train.accumulate} parts" if recipe.train.accumulate > 1 else ""
    print(f"batch: {recipe.train.batch_size:,} images{parts}; {steps:,} steps an epoch, {steps * epochs:,} in all")
    print(f"learning rate: {_rates(recipe, steps)}")
    print(f"device: {subject.device.type} ({subject.why_device}); {recipe.train.precision}")
    for why in subject.execution.why:
        print(why)
    seeds = ", ".join(map(str, recipe.run.seeds))
    if method:
        spread = method.distribution if isinstance(method.distribution, str) else "by layer"
        print(f"sparsity: {common.sparsity_of(method)}, {method.pattern}, {spread}; seeds {seeds}")
        print(method.schedule)
    else:
        print(f"dense training, {epochs} epochs; seeds {seeds}")


def _rates(recipe: Recipe, steps: int) -> str:
    """Of each epoch's first step: where it changes, or its start, top and end where it always does."""
    rates = Rates(recipe.rate, recipe.optimizer.lr, recipe.epochs, steps)
    each = [rates.at(epoch * steps) for epoch in range(recipe.epochs)]
    turns = [epoch for epoch in range(1, len(each)) if each[epoch] != each[epoch - 1]]
    if len(turns) > 5:
        turns = sorted({each.index(max(each)), len(each) - 1} - {0})
    later = "".join(f", {each[epoch]:.4g} in epoch {epoch}" for epoch in turns)
    return f"{each[0]:.4g} in epoch 0{later} ({recipe.rate.shape}, set every {recipe.rate.per})"


# What it will cost


def _flops(subject: Subject, name: str, list_layers: bool) -> None:
    recipe, samples, length = subject.recipe, subject.facts.train, subject.recipe.epochs
    method, layers = subject.method, subject.layers
    found = predict.compressed(method, layers) if method and layers else None
    if found and method and layers and list_layers:
        _layer_table(method, layers, found)
    cost = predict.inference(subject.model, subject.uses, found).spread()
    rows, most = [("dense model", common.si(cost.dense, 4), "1.00x")], "at most " if found and found.bound else ""
    if found:
        title = f"compressed model{' (exact)' if found.exact else ''}"
        rows.append((title, most + _range(cost.compressed), most + _ratios(cost.compressed, cost.dense)))
    common.show_table("Inference FLOPs for an image, in theory", ("", "FLOPs", "of dense"), rows)
    dense = 3 * cost.dense * samples * length
    rows = [(f"a dense run of {length} epochs", str(length), "0", common.si(dense, 4), "1.00x")]
    for stage, planned in experiment.plan(recipe).items():
        sparse, each = planned.kinds.count("sparse"), predict.training(planned.kinds, cost, samples, method)
        counts, bound = (str(len(planned.kinds) - sparse), str(sparse)), most if sparse else ""
        if stage != "dense":
            rows.append((planned.title, *counts, bound + _range(each), bound + _ratios(each, dense)))
    header = ("", "dense epochs", "compressed", "FLOPs", "of that dense run")
    common.show_table("Training FLOPs by the rule of the method's card, in theory", header, rows)
    if found and not found.exact:
        print(f"the compressed model is estimated: {found.how}")
    if method and any(phase.name == "decompressed" for phase in method.schedule.phases):
        print("dense phases are counted whole: weights that stay 0 in them, which training decides, make them cheaper")
    _paper(recipe, name)


def _paper(recipe: Recipe, name: str) -> None:
    """The paper compares runs of any length with dense training as long as the recipe's own, before settings."""
    row = row_for(recipe)
    if row is None:
        return
    costs = [f"{key} {value:.2f}x" for key in ("inference", "training") if (value := getattr(row, key))]
    usual = load.read(name).epochs
    if row.training and usual != recipe.epochs:
        costs.append(f"against {usual} dense epochs")
    titles = {"sparse": "sparse", "baseline": "dense", "dense": "dense twin", "finetuned": "fine-tuned"}
    models = [f"{titles[file]} {accuracy}" for file, accuracy in accuracies(row).items()]
    if said := [part for part in (", ".join(costs), ", ".join(models), row.note) if part]:
        print(f"the paper, with these settings: {'; '.join(said)}")


def _layer_table(method: Method, layers: Layers, found: predict.Compressed) -> None:
    rows = []
    for weight in layers.weights:
        size, shape = weight.param.numel(), " x ".join(map(str, weight.param.shape))
        rows.append((weight.name, shape, f"{size:,}", *(f"{kept[weight.name] / size:.2%}" for kept in found.kept)))
    kept = ("kept if even", "of the initial weights")
    if len(found.kept) == 1:
        kept = ("kept at most" if found.bound else "kept",)
    common.show_table(f"Layers that are {method.compression()}", ("layer", "shape", "weights", *kept), rows)


def _time(subject: Subject) -> None:
    recipe, facts, batch = subject.recipe, subject.facts, subject.recipe.train.batch_size
    try:
        found = timing.measure(recipe, subject.model, facts.shape, facts.classes, subject.device)
    except timing.TooLargeError:
        subject.warnings.append(
            f"train.batch_size = {batch}: a step does not fit into the GPU's memory; type "
            f"--set train.accumulate={2 * recipe.train.accumulate}, or a smaller batch"
        )
        return
    epoch = found.step * facts.train / batch + found.evaluation * (facts.test + facts.validation)
    epochs = sum(len(planned.kinds) for planned in experiment.plan(recipe).values()) * len(recipe.run.seeds)
    scaled = f", scaled up from {found.batch}, as a whole one is slow" if found.batch != batch else ""
    memory = f"; {found.memory / 2**30:.1f} GiB of GPU memory" if found.memory else ""
    cores = f" on {found.threads} of {os.cpu_count()} cores" if subject.device.type == "cpu" else ""
    print(
        f"\ntime: about {_duration(epoch * epochs)} on this {subject.device.type}: {epochs} epochs of "
        f"{_duration(epoch)}, {_duration(found.step)} for a step of {batch} images{scaled} "
        f"({found.precision}{cores}{memory})"
    )
    print("      timed on made images, without compiling; reading images from disk comes on top")


def _range(values: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(common.si(value, 4) for value in values))


def _ratios(values: Sequence[int], dense: int) -> str:
    return " to ".join(dict.fromkeys(f"{value / dense:.2f}x" for value in values))


def _duration(seconds: float) -> str:
    if seconds < 0.1:
        return f"{seconds * 1000:.2g} ms"
    if seconds < 100:
        return f"{seconds:.2g} s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {rest} min" if hours else f"{minutes} min"
    return f"{hours / 24:.0f} days"
