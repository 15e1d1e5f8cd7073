"""Whether a recipe fits its data and its model: acdc check, train and compare-methods ask before all else."""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch.optim import Optimizer

from acdc import models
from acdc.core.context import SparsityWarning
from acdc.core.method import Method
from acdc.core.sparsifier import Sparsifier, attach
from acdc.criteria import SynFlow
from acdc.flops.uses import forward_uses
from acdc.methods.acdc import ACDC
from acdc.recipes.mistakes import SettingError
from acdc.recipes.schema import Recipe, in_method, read_pattern
from acdc.sparsity.patterns import Unstructured

log = logging.getLogger("acdc")


@dataclass
class Fit:
    """Everything that is wrong, and what is allowed and may surprise."""

    problems: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)  # as wrong, of a new run; one that has begun may go on
    warnings: list[str] = field(default_factory=list)


def fit(
    recipe: Recipe,
    *,
    classes: int,
    shape: tuple[int, int, int],
    steps: int | None,
    wrong: Sequence[SettingError] = (),
    typed: str = "method",
) -> Fit:
    """`steps` are those of an epoch; None where the data is not known. `wrong` is what reading the recipe found: then
    only that is looked at which does not build on it. `typed` is the table to set a method's knobs by."""
    found = Fit()

    def attempt(act: Callable[[], object]) -> bool:
        try:
            act()
        except (ValueError, TypeError, RuntimeError) as error:
            found.problems.append(str(error))
        return not found.problems

    if any(mistake.table == "model" for mistake in wrong):
        return found
    said = recipe.model
    with torch.device("meta"):
        model = models.build(said.name, classes=classes, in_channels=shape[0], **said.options)
    if steps is not None:
        attempt(lambda: _takes_images(model, shape))
    if wrong or steps is None:
        if recipe.method.name != "dense":
            attempt(lambda: in_method(_layers_only(recipe).layers, model))
        return found
    method = recipe.build_method()
    if method is not None:
        if attempt(lambda: _whole_epochs(recipe, method)) and attempt(
            lambda: in_method(method.budgets, in_method(method.layers, model))
        ):
            # Refused as it is attached: phases without a step, a point to rewind to that is never passed.
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            attempt(lambda: in_method(attach_quietly, model, optimizer, method, steps).detach())
        attempt(lambda: _criterion(method, shape))
        total = recipe.epochs * steps
        if idle := method.idle(total, steps):
            found.idle.append(idle.message("method.every", f"{typed}.every"))
        warned = [text for text in method.warnings(total, steps) if not idle or text != idle.message()]
        found.warnings += [f"method.{text}" for text in warned]
    found.warnings += _odd_rates(recipe)
    return found


def _takes_images(model: nn.Module, shape: tuple[int, int, int]) -> None:
    try:
        forward_uses(model, torch.zeros(1, *shape, device="meta"))
    except RuntimeError as error:  # an image too small for a pooling layer, say
        size, reason = " x ".join(map(str, shape)), str(error).partition("\n")[0]
        raise ValueError(f"model.name: it cannot take images of {size} ({reason}); choose another model") from None


def _layers_only(recipe: Recipe) -> Method:
    """A method of which nothing but the choice of layers is the recipe's: there also where the rest is wrong."""
    said = recipe.method
    kind = partial(ACDC, epochs=4, include=said.include, exclude=said.exclude)
    kind = partial(kind, first_and_last_dense=said.first_and_last_dense, depthwise_dense=said.depthwise_dense)
    try:
        pattern = read_pattern(said.pattern or "unstructured")
    except ValueError:  # named already
        pattern = Unstructured()
    return kind(pattern=pattern, sparsity=0.5 if pattern.sparsity is None else None)


def _whole_epochs(recipe: Recipe, method: Method) -> None:
    """A run is planned and told by epochs, each of one phase."""
    try:
        method.schedule.boundaries(1)
    except ValueError:
        raise ValueError(
            f"train.epochs = {recipe.epochs}: a phase of {type(method).title()} would be shorter than an epoch "
            f"({', '.join(str(phase.length) for phase in method.schedule.phases)}); set train.epochs higher"
        ) from None


def attach_quietly(model: nn.Module, optimizer: Optimizer, method: Method, steps: int) -> Sparsifier:
    """Attach without the method's warnings, which `fit` gathers and the command prints once, by the recipe's names.

    Warnings of the run itself are lines of the log.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparsityWarning)
        sparsifier = attach(model, optimizer, method, steps_per_epoch=steps)
    sparsifier.context.show_warning = log.warning
    return sparsifier


def _criterion(method: Method, shape: tuple[int, int, int]) -> None:
    criterion = getattr(method, "criterion", None)
    if criterion is not None and criterion.window and method.schedule.phases[0].kind == "sparse":
        raise ValueError(
            f"method.criterion={criterion.name!r}: it looks at gradients before a compression, and {method.title()} "
            "begins with one here; let a dense phase come first, or leave criterion out"
        )
    if isinstance(criterion, SynFlow) and tuple(criterion.shape[1:]) != shape:
        raise ValueError(
            f"method.criterion: SynFlow's shape is {list(criterion.shape)}, and images are "
            f"{' x '.join(map(str, shape))}; write shape = {[1, *shape]}"
        )


def _odd_rates(recipe: Recipe) -> list[str]:
    rate, found = recipe.rate, []
    late = [f"{milestone:g}" for milestone in rate.milestones if milestone >= recipe.epochs]
    if late and rate.shape == "step":
        found.append(f"rate.milestones: {', '.join(late)} lie past the last epoch, {recipe.epochs - 1}")
    if rate.warmup >= recipe.epochs:
        found.append(f"rate.warmup = {rate.warmup:g}: the run of {recipe.epochs} epochs is all warm-up")
    return found
