"""acdc check: list everything that is wrong with a recipe, or show what it will do and cost, without training."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from acdc.cli import options
from acdc.cli.output import show_table
from acdc.core.method import Method
from acdc.data import own_name
from acdc.data.data_facts import ImageFacts
from acdc.errors import Problems, UsageError
from acdc.formatting import duration, si
from acdc.measure import predict
from acdc.recipes import load
from acdc.recipes.fit import count_uses
from acdc.recipes.paper import results, row_for
from acdc.recipes.schema import Recipe
from acdc.sparsity import distributions
from acdc.sparsity.layers import Layers
from acdc.train import time_estimate
from acdc.train.launch import describe_layers, describe_sparsity
from acdc.train.optim import Rates
from acdc.train.prepare import PreparedRun, RunOptions, inspect, read_recipe


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "check",
        description="List everything that is wrong with a recipe; or show its timeline, the layers it prunes, its "
        "FLOPs by the paper's count, and how long it will take here.",
        allow_abbrev=False,
    )
    options.add_recipe(parser, default="digits")
    options.add_place(parser)
    parser.add_argument("--layers", action="store_true", help="list every layer with the weights it keeps")
    parser.add_argument("--no-timing", action="store_true", help="do not time a few steps")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    prepared = _inspect(args)
    model = prepared.new_model()
    _introduce(prepared)
    _show_flops(prepared, model, args.recipe, args.layers)
    warnings = [*prepared.warnings, *([] if args.no_timing else _show_time(prepared, model))]
    for warning in warnings:
        print(f"warning: {warning}")
    return 0


def _inspect(args: argparse.Namespace) -> PreparedRun:
    problems, unreadable = Problems(), list[str]()
    settings = options.readable_settings(args, unreadable)
    recipe, mistakes = read_recipe(args.recipe, settings, problems)
    problems += unreadable
    device, why_device = problems.attempt(options.read_device, args.device) or options.read_device("auto")
    problems.attempt(lambda: options.read_workers(args.workers))
    if recipe is None:
        raise UsageError(problems)
    place = RunOptions(device=device, why_device=why_device, root=args.data)
    return inspect(recipe, place, mistakes=mistakes, problems=problems, device_is_final=args.device == "cpu")


# The run


def _introduce(prepared: PreparedRun) -> None:
    recipe, facts, method = prepared.recipe, prepared.facts, prepared.method
    assumed = " (as published; not found here)" if facts.missing else ""
    print(f"{recipe.name}: {recipe.about}" if recipe.about else recipe.name)
    assumed = assumed if isinstance(facts, ImageFacts) or recipe.data.name != "text" else " (imaginary: none was named)"
    print(f"data: {_data_name(prepared)}, {facts}{assumed if facts.missing else ''}")
    print(f"model: {recipe.model.name}, {sum(p.numel() for p in prepared.skeleton.parameters()):,} parameters")
    if method and prepared.layers:
        print("\n".join(describe_layers(method, prepared.layers)))
    steps, epochs = prepared.steps_per_epoch, recipe.epochs
    parts = f", in {recipe.train.accumulate} parts" if recipe.train.accumulate > 1 else ""
    batch = f"{recipe.train.batch_size:,} {facts.batch_unit}{parts}"
    print(f"batch: {batch}; {steps:,} steps per epoch, {steps * epochs:,} in all")
    if recipe.train.times > 1:
        each = recipe.epochs // recipe.train.times
        print(
            f"length: {recipe.train.times} times {each} epochs, with all phases, milestones and warm-up (train.times)"
        )
    if sizes := prepared.image_sizes:
        each = [f"{side} pixels in epoch {epoch}" for epoch, side in sizes.changes().items()]
        print(f"images: shorter side of {', '.join(_few(each))}; tested at {sizes.full}")
    if recipe.train.label_smoothing:
        print(f"loss: cross-entropy, labels smoothed by {recipe.train.label_smoothing:g} in training, not in tests")
    print(f"learning rate: {_rates(recipe, steps)}")
    print(f"device: {prepared.device.type} ({prepared.options.why_device}); {recipe.train.precision}")
    for why in prepared.execution.why:
        print(why)
    seeds = ", ".join(map(str, recipe.run.seeds))
    if method:
        spread = distributions.describe(method.distribution)
        print(f"sparsity: {describe_sparsity(method)}, {method.pattern}, {spread}; seeds {seeds}")
        print(method.schedule)
        for line in method.choices_made(prepared.skeleton):
            print(line)
    else:
        print(f"dense training, {epochs} epochs; seeds {seeds}")


def _few(parts: Sequence[str]) -> Sequence[str]:
    return parts if len(parts) <= 6 else [*parts[:2], "…", *parts[-2:]]


def _data_name(prepared: PreparedRun) -> str:
    facts, name, root = prepared.facts, prepared.recipe.data.name, prepared.options.root
    if isinstance(facts, ImageFacts):
        return own_name(name, root, classes=facts.classes)
    return Path(root).resolve().stem if root else name


def _rates(recipe: Recipe, steps: int) -> str:
    """Describe the rate at each epoch's first step: where it changes, or start, peak and end if it always does."""
    rates = Rates(recipe.stretched_rate(), recipe.optimizer.lr, recipe.epochs, steps)
    each = [rates.at(epoch * steps) for epoch in range(recipe.epochs)]
    turns = [epoch for epoch in range(1, len(each)) if each[epoch] != each[epoch - 1]]
    if len(turns) > 5:
        turns = sorted({each.index(max(each)), len(each) - 1} - {0})
    later = "".join(f", {each[epoch]:.4g} in epoch {epoch}" for epoch in turns)
    return f"{each[0]:.4g} in epoch 0{later} ({recipe.rate.shape}, set every {recipe.rate.per})"


# Its cost


def _show_flops(prepared: PreparedRun, model: nn.Module, name: str, list_layers: bool) -> None:
    recipe, facts, length, method = prepared.recipe, prepared.facts, prepared.recipe.epochs, prepared.method
    samples = facts.trained(recipe.train.batch_size)
    layers = method.layers(model) if method else None  # needs weights, to estimate global magnitude
    prediction = predict.compressed(method, layers) if method and layers else None
    if prediction and method and layers and list_layers:
        _layer_table(method, layers, prediction)
    uses = count_uses(model, facts)
    cost = predict.inference(model, uses, prediction).spread()
    rows = [("dense model", si(cost.dense, digits=4), "1.00x")]
    most = "at most " if prediction and prediction.bound else ""
    if prediction:
        title = f"compressed model{' (exact)' if prediction.exact else ''}"
        rows.append((title, most + _range(cost.compressed), most + _ratios(cost.compressed, cost.dense)))
    show_table(f"Theoretical inference FLOPs per {facts.unit}", ("", "FLOPs", "of dense"), rows)
    sizes = prepared.image_sizes
    shares = predict.size_shares(model, uses, sizes, facts.shape) if sizes and isinstance(facts, ImageFacts) else {}
    dense = 3 * cost.dense * samples * length
    full = " at full size" if sizes else ""
    rows = [(f"a dense run of {length} epochs{full}", str(length), "0", si(dense, digits=4), "1.00x")]
    for stage, planned in prepared.plan.items():
        sparse, last = planned.kinds.count("sparse"), planned.first + len(planned.kinds)
        factors = [shares[sizes.at(epoch)] for epoch in range(planned.first, last)] if sizes else None
        each = predict.training(planned.kinds, cost, samples, method, factors)
        counts, bound = (str(len(planned.kinds) - sparse), str(sparse)), most if sparse else ""
        if stage != "dense" or sizes:
            rows.append((planned.title, *counts, bound + _range(each), bound + _ratios(each, dense)))
    header = ("", "dense epochs", "compressed", "FLOPs", "of that dense run")
    show_table("Theoretical training FLOPs, by the rule on the method's card", header, rows)
    if prediction and not prediction.exact:
        print(f"the compressed model is estimated: {prediction.how}")
    if method and any(phase.name == "decompressed" for phase in method.schedule.phases):
        print(
            "dense phases are counted in full: weights that stay 0 in them, which training decides, make them cheaper"
        )
    _paper(recipe, name)


def _paper(recipe: Recipe, name: str) -> None:
    """Print the paper's figures. It compares runs of any length with dense training of the recipe's own length."""
    row = row_for(recipe)
    if row is None:
        return
    costs = [f"{key} {value:.2f}x" for key in ("inference", "training") if (value := getattr(row, key))]
    usual = load.read(name).epochs
    if row.training and usual != recipe.epochs:
        costs.append(f"relative to {usual} dense epochs")
    titles = {"sparse": "sparse", "baseline": "dense", "dense": "dense twin", "finetuned": "fine-tuned"}
    models = [f"{titles[file]} {published}" for file, published in results(recipe, row).items()]
    if parts := [part for part in (", ".join(costs), ", ".join(models), row.note) if part]:
        print(f"the paper, with these settings: {'; '.join(parts)}")


def _layer_table(method: Method, layers: Layers, prediction: predict.Compressed) -> None:
    rows = []
    for weight in layers.weights:
        size, shape = weight.param.numel(), " x ".join(map(str, weight.param.shape))
        rows.append((weight.name, shape, f"{size:,}", *(f"{kept[weight.name] / size:.2%}" for kept in prediction.kept)))
    kept = ("kept if uniform", "kept of the initial weights")
    if len(prediction.kept) == 1:
        kept = ("kept at most" if prediction.bound else "kept",)
    show_table(f"Layers that are {method.compression()}", ("layer", "shape", "weights", *kept), rows)


def _show_time(prepared: PreparedRun, model: nn.Module) -> list[str]:
    """Time a few steps, and return a warning if a step does not fit into the GPU's memory."""
    recipe, facts, batch = prepared.recipe, prepared.facts, prepared.recipe.train.batch_size
    try:
        timing = time_estimate.measure(recipe, model, facts, prepared.device)
    except time_estimate.TooLargeError:
        advice = f"add --set train.accumulate={2 * recipe.train.accumulate}, or choose a smaller batch"
        return [f"train.batch_size = {batch}: a step does not fit into the GPU's memory; {advice}"]
    images = isinstance(facts, ImageFacts)
    steps = facts.train / batch if images else prepared.steps_per_epoch
    epoch = timing.step * steps + timing.evaluation * _evaluated(prepared)
    epochs = sum(len(planned.kinds) for planned in prepared.plan.values()) * len(recipe.run.seeds)
    scaled = f", scaled up from {timing.batch} because a full batch is slow" if timing.batch != batch else ""
    memory = f"; {timing.memory / 2**30:.1f} GiB of GPU memory" if timing.memory else ""
    cores = f" on {timing.threads} of {os.cpu_count()} cores" if prepared.device.type == "cpu" else ""
    print(
        f"\ntime: about {duration(epoch * epochs)} on this {prepared.device.type}: {epochs} epochs of "
        f"{duration(epoch)}, {duration(timing.step)} for a step of {batch} {facts.batch_unit}{scaled} "
        f"({timing.precision}{cores}{memory})"
    )
    if images:
        print("      timed on random images, without compiling; reading images from disk takes extra time")
        if prepared.image_sizes:
            print("      timed on images of full size; earlier epochs, with smaller ones, take less")
    else:
        speed = facts.trained(batch) / (timing.step * prepared.steps_per_epoch)
        print(f"      timed on random tokens, without compiling: {si(speed)} tokens/s in training")
    return []


def _evaluated(prepared: PreparedRun) -> int:
    """Return the number of images or tokens that are evaluated after each epoch."""
    facts, limit = prepared.facts, prepared.recipe.data.options.get("epoch_evaluation", 0)
    parts = (facts.test, facts.validation)
    return sum(parts) if isinstance(facts, ImageFacts) or not limit else sum(min(part, limit) for part in parts)


def _range(values: Sequence[int]) -> str:
    return " to ".join(dict.fromkeys(si(value, digits=4) for value in values))


def _ratios(values: Sequence[int], dense: int) -> str:
    return " to ".join(dict.fromkeys(f"{value / dense:.2f}x" for value in values))
