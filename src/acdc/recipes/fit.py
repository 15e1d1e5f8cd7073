"""Checks that a recipe fits its data: its model accepts the images or tokens, its method has layers and steps.

The model is built on the meta device, without memory for its weights. A user's own model is really built: its code may
need values, which tensors on that device do not have.
"""

import logging
import warnings as python_warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc import models
from acdc.core.context import SparsityWarning
from acdc.core.method import Method
from acdc.core.sparsifier import Sparsifier
from acdc.criteria import SynFlow
from acdc.data.data_facts import Facts, ImageFacts, TextFacts
from acdc.data.image_sizes import ImageSizes, scaled
from acdc.errors import ArgumentError
from acdc.flops import counting
from acdc.flops.uses import forward_uses
from acdc.measure import predict
from acdc.methods._choice import RECOVERY
from acdc.methods.acdc import ACDC
from acdc.recipes.findings import Finding, SettingError, naming_settings
from acdc.recipes.schema import Recipe, read_pattern
from acdc.sparsity.patterns import Unstructured

log = logging.getLogger("acdc")

# FLOPs per second of fp32 training on one core. Busy cores of an EPYC reach half of this, idle modern ones more.
_CORE_RATE = 20e9
_DAY = 24 * 3600.0


def check_fit(
    recipe: Recipe,
    data: Facts,
    known: Sequence[Finding] = (),
    *,
    unread: bool = False,
    begun: bool = False,
    method_table: str = "method",
    cpu_cores: int | None = None,
) -> list[Finding]:
    """Return the errors and warnings about a recipe on this data.

    If something is `known` to be wrong, or the data is `unread`, only what does not depend on it is checked. See
    `validate` for the rest.
    """
    errors: list[ArgumentError] = []

    def attempt(act: Callable[[], object]) -> bool:
        try:
            with naming_settings():
                act()
        except ArgumentError as error:
            errors.append(error)
        except RuntimeError as error:  # torch's, for a model that cannot be attached to
            errors.append(SettingError("", allowed=str(error)))
        return not errors

    if any(finding.table == "model" for finding in known):
        return []
    try:
        model = build_skeleton(recipe, data)
        uses = _forward(model, recipe, data) if not unread else {}
        if not unread and isinstance(data, ImageFacts) and (sizes := recipe.image_sizes(data.shape)) is not None:
            _check_smallest(model, recipe, sizes, data)
    except ArgumentError as error:
        return [Finding(error)]
    if known or unread:
        if recipe.method.name != "dense":
            attempt(lambda: _layers_only(recipe).layers(model))
        return list(map(Finding, errors))
    warnings: list[ArgumentError] = []
    try:
        steps = data.steps(recipe.train.batch_size)
    except ArgumentError as error:  # a text shorter than a batch
        return [Finding(error)]
    if (built := recipe.build_method()) is not None:
        method = built.for_steps(steps, whole_epochs=True)
        if attempt(lambda: _whole_epochs(recipe, method)) and attempt(lambda: method.budgets(method.layers(model))):
            # Refused when attached: phases without a step, a rewinding point that is never passed.
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            attempt(lambda: attach_quietly(model, optimizer, method, steps).detach())
        attempt(lambda: _criterion(method, data))
        total = recipe.epochs * steps
        idle = method.idle(total, steps)
        if idle:
            text = SettingError("", allowed=idle.message("method.every", f"{method_table}.every"))
            (warnings if begun else errors).append(text)
        warnings += _short_phases(recipe, method, steps)
        warnings += [
            SettingError("", allowed=f"method.{text}")
            for text in method.warnings(total, steps)
            if not idle or text != idle.message()
        ]
    warnings += _odd_rates(recipe)
    warnings += _uncounted(model, recipe, data)
    if cpu_cores is not None:
        warnings += _takes_days(recipe, data, predict.inference(model, uses, None).dense, cpu_cores)
    return [*map(Finding, errors), *(Finding(warning, "warning") for warning in warnings)]


# Model


def build_skeleton(recipe: Recipe, data: Facts) -> nn.Module:
    """Build the recipe's model for inspection: without memory for its weights, unless its code is the user's own."""
    settings = recipe.model
    own, text = models.is_import_path(settings.name), isinstance(data, TextFacts)
    if not own and settings.name in models.names() and models.is_language_model(settings.name) != text:
        kinds = ("a language model, but the data are images", "an image model, but the data are text")
        raise SettingError(
            "model.name", received=settings.name, allowed=kinds[text], instead="acdc ls models lists both"
        )
    try:
        with nullcontext() if own else torch.device("meta"):
            sizes, splits = data.model_arguments(), settings.bn_splits
            return models.build(settings.name, **sizes, seed=0, bn_splits=splits, **settings.options)
    except ArgumentError as error:
        raise error.under("model") from None


def _check_smallest(model: nn.Module, recipe: Recipe, sizes: ImageSizes, data: ImageFacts) -> None:
    """Raise if the model cannot process images of the size that they have at first."""
    try:
        _forward(model, recipe, replace(data, shape=scaled(data.shape, sizes.first)))
    except ArgumentError as error:
        allowed = f"{recipe.model.name}: {error.allowed}"
        instead = "set it higher, or choose a model for images of any size"
        raise SettingError("data.first_size", received=sizes.first, allowed=allowed, instead=instead) from None


def has_memory(model: nn.Module) -> bool:
    """Return True if a language model reads on where it stopped: model(tokens, targets, memory)."""
    return callable(getattr(model, "start_memory", None))


def count_uses(model: nn.Module, data: Facts) -> dict[str, float]:
    """Return how often an image, or a token, uses each weight; see flops.uses."""
    inputs, units = _example(model, data)
    return {name: times / units for name, times in forward_uses(model, inputs).items()}


def _example(model: nn.Module, data: Facts) -> tuple[Any, int]:
    """Return the arguments of a forward pass, and how many images or tokens they are."""
    device = next((param.device for param in model.parameters()), torch.device("cpu"))
    sample, units = data.example(device)
    inputs = (sample, sample, model.start_memory(1)) if has_memory(model) else sample  # pyright: ignore[reportCallIssue]
    return inputs, units


def _forward(model: nn.Module, recipe: Recipe, data: Facts) -> dict[str, float]:
    """Return how often an image or a token uses each weight; raise if the model cannot process them."""
    if isinstance(data, TextFacts):
        _check_rows(model, recipe, data)
    outputs: list[object] = []
    handle = model.register_forward_hook(lambda *call: outputs.append(call[-1]))
    try:
        uses = count_uses(model, data)
    except Exception as error:  # an image too small for a pooling layer, say; a user's own model may raise anything
        if not isinstance(error, RuntimeError) and not models.is_import_path(recipe.model.name):
            raise
        reason = str(error).partition("\n")[0]
        allowed = f"it cannot process {data.sample} ({reason})"
        raise SettingError("model.name", allowed=allowed, instead="choose another model") from None
    finally:
        handle.remove()
    output = outputs[-1]
    if isinstance(data, TextFacts):
        _check_text_output(output, model, recipe, data)
    elif not isinstance(output, Tensor) or output.shape != (1, data.classes):
        raise SettingError(
            "model.name",
            received=recipe.model.name,
            allowed=f"for one image of {' x '.join(map(str, data.shape))} it returns {_described(output)}; expected "
            f"one number for each of the {data.classes:,} classes of the data, [1, {data.classes}]",
            instead="make it accept classes= and end in a layer with that many outputs",
        )
    return uses


def _described(output: object) -> str:
    return f"a tensor of {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"


def _check_rows(model: nn.Module, recipe: Recipe, data: TextFacts) -> None:
    """Raise if rows are longer than the model's positions, or do not continue one another as its memory needs."""
    limits = {"context": getattr(model, "context", None), "target_length": getattr(model, "target_length", None)}
    for option, most in limits.items():
        for setting, length in (("length", data.length), ("evaluation_length", data.evaluation_length)):
            if isinstance(most, int) and length > most and not (setting != "length" and hasattr(model, "evaluation")):
                raise SettingError(
                    f"data.{setting}",
                    received=length,
                    allowed=f"the model has positions for {most:,} tokens (model.{option})",
                    instead=f"set it to {most} or less, or add model.{option} = {length}",
                )
    if has_memory(model) and data.order != "streams":
        raise SettingError(
            "data.order",
            received=data.order,
            allowed="this model has a memory, which must read a text from left to right",
            instead='write order = "streams"',
        )
    for setting in ("evaluation_memory", "evaluation_clamp"):
        if recipe.data.options.get(setting) is not None and not callable(getattr(model, "evaluation", None)):
            raise SettingError(
                f"data.{setting}",
                received=recipe.data.options[setting],
                allowed="this model has no memory whose length can be changed (no evaluation method)",
                instead="remove it",
            )


def _check_text_output(output: object, model: nn.Module, recipe: Recipe, data: TextFacts) -> None:
    expected = (1, data.length, data.vocabulary)
    if has_memory(model):
        if isinstance(output, tuple) and len(output) == 2 and isinstance(loss := output[0], Tensor) and not loss.ndim:
            return
        described, wanted = f"{_described(output)}", "(mean loss, new memory), as it has start_memory"
    elif isinstance(output, Tensor) and output.shape == expected:
        return
    else:
        described, wanted = _described(output), f"a number for each token of the vocabulary, {list(expected)}"
    raise SettingError(
        "model.name",
        received=recipe.model.name,
        allowed=f"for one row of {data.length:,} tokens it returns {described}; expected {wanted}",
        instead="make it accept vocabulary= and return logits: batch x time x vocabulary",
    )


# Method


def _layers_only(recipe: Recipe) -> Method:
    """Return a method with only the recipe's choice of layers, which can be built even if the rest is wrong."""
    settings = recipe.method
    kind = partial(ACDC, epochs=4, include=settings.include, exclude=settings.exclude)
    kind = partial(kind, first_and_last_dense=settings.first_and_last_dense, depthwise_dense=settings.depthwise_dense)
    try:
        pattern = read_pattern(settings.pattern or "unstructured")
    except ValueError:  # reported already
        pattern = Unstructured()
    return kind(pattern=pattern, sparsity=0.5 if pattern.sparsity is None else None)


def _whole_epochs(recipe: Recipe, method: Method) -> None:
    """Raise if a phase is shorter than an epoch: a run is planned and reported by epochs, each in one phase."""
    try:
        method.schedule.boundaries(1)
    except ValueError:
        lengths = ", ".join(str(phase.length) for phase in method.schedule.phases)
        raise SettingError(
            "train.epochs",
            received=recipe.epochs,
            allowed=f"a phase of {type(method).title()} would be shorter than an epoch ({lengths})",
            instead="set train.epochs higher",
        ) from None


def attach_quietly(model: nn.Module, optimizer: Optimizer, method: Method, steps: int) -> Sparsifier:
    """Attach without the method's warnings, which a command prints once, with the recipe's names.

    Warnings during the run itself go to its log.
    """
    with python_warnings.catch_warnings():
        python_warnings.simplefilter("ignore", SparsityWarning)
        sparsifier = Sparsifier(model, optimizer, method, steps_per_epoch=steps)  # attach would refuse meta weights
    sparsifier.context.show_warning = log.warning
    return sparsifier


def _criterion(method: Method, data: Facts) -> None:
    criterion = getattr(method, "criterion", None)
    if criterion is not None and criterion.window and method.schedule.phases[0].kind == "sparse":
        raise SettingError(
            "method.criterion",
            received=criterion.name,
            allowed=f"it looks at gradients before a compression, but {method.title()} begins with one here",
            instead="start with a dense phase, or omit criterion",
        )
    if isinstance(criterion, SynFlow) and isinstance(data, TextFacts):
        allowed = "SynFlow needs inputs of numbers, but tokens are names"
        raise SettingError("method.criterion", received=criterion.name, allowed=allowed, instead="omit criterion")
    elif isinstance(criterion, SynFlow) and isinstance(data, ImageFacts) and tuple(criterion.shape[1:]) != data.shape:
        shape = data.shape
        raise SettingError(
            "method.criterion",
            allowed=f"SynFlow's shape is {list(criterion.shape)}, but images are {' x '.join(map(str, shape))}",
            instead=f"write shape = {[1, *shape]}",
        )


# Warnings


def _short_phases(recipe: Recipe, method: Method, steps: int) -> list[ArgumentError]:
    """Warn of phases that end before a decompression, or the compression after it, has been made good."""
    if not isinstance(method, ACDC) or all(phase.name != "decompressed" for phase in method.schedule.phases):
        return []
    ends = (0, *method.schedule.boundaries(steps))
    short = {phase: end - start for phase, (start, end) in zip(method.schedule.phases, pairwise(ends), strict=True)}
    short = {phase: length for phase, length in short.items() if phase.index and length < RECOVERY}
    if not short:
        return []
    least, most = min(short.values()), max(short.values())
    lengths = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return [
        SettingError(
            "method.schedule",
            received=recipe.method.schedule,
            allowed=f"{len(short)} of {len(method.schedule.phases)} phases have {lengths} steps, too few to recover "
            f"from a decompression (about {RECOVERY})",
            instead="leave it out (method.schedule=) for phases that suit the number of steps, or train longer",
        )
    ]


def _odd_rates(recipe: Recipe) -> list[ArgumentError]:
    rate, warnings = recipe.stretched_rate(), list[ArgumentError]()
    late = [f"{milestone:g}" for milestone in rate.milestones if milestone >= recipe.epochs]
    if late and rate.shape == "step":
        past = f"{', '.join(late)} come after the last epoch, {recipe.epochs - 1}"
        warnings.append(SettingError("rate.milestones", allowed=past))
    if rate.warmup >= recipe.epochs:
        whole = f"the run of {recipe.epochs} epochs is all warm-up"
        warmup = int(rate.warmup) if rate.warmup == int(rate.warmup) else rate.warmup
        warnings.append(SettingError("rate.warmup", received=warmup, allowed=whole))
    return warnings


def _uncounted(model: nn.Module, recipe: Recipe, data: Facts) -> list[ArgumentError]:
    """Return a warning if a user's own model computes what no FLOPs are counted for."""
    if not models.is_import_path(recipe.model.name):
        return []
    flops, _ = counting.count(model, _example(model, data)[0])
    if not flops.lower_bound:
        return []
    allowed = f"its FLOPs, in all tables, are {flops.doubt}"
    return [SettingError("model.name", received=recipe.model.name, allowed=allowed)]


def _takes_days(recipe: Recipe, data: Facts, flops: int, cores: int) -> list[ArgumentError]:
    """Return a warning if the run would take a CPU a day or more, by the FLOPs of dense training."""
    stages = 1 + recipe.run.baseline
    trained, unit = data.trained(recipe.train.batch_size), data.unit
    days = 3 * flops * trained * recipe.epochs * stages * len(recipe.run.seeds) / (_CORE_RATE * cores) / _DAY
    if days < 1:
        return []
    runs = stages * len(recipe.run.seeds)
    size = f" of {' x '.join(map(str, data.shape))}" if isinstance(data, ImageFacts) else ""
    smaller = "smaller images, " if isinstance(data, ImageFacts) else ""
    several = f", {runs} times" if runs > 1 else ""
    return [
        SettingError(
            "model.name",
            received=recipe.model.name,
            allowed=f"about {days:,.0f} days on this CPU: {flops / 1e9:.2g} GFLOPs per {unit}{size}, times 3 to "
            f"train on it, {trained:,} {unit}s, {recipe.epochs} epochs{several}, at an assumed "
            f"{_CORE_RATE * cores / 1e9:.0f} GFLOPs per second on {cores} core{'s' * (cores > 1)}",
            instead=f"train on a GPU, or use {smaller}a smaller model or fewer epochs (acdc check times a step)",
        )
    ]
