"""What a check is about: recipe, data, model and method, each built; or all that is wrong with them, at once."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from acdc import models
from acdc.cli import common
from acdc.cli.errors import UsageError
from acdc.cli.facts import STAND_IN, Facts, facts_of
from acdc.methods.base import Base
from acdc.sparsity.layers import Layers
from acdc.sparsity.uses import forward_uses
from acdc.train import experiment, step
from acdc.train.recipe import Recipe, in_method

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Subject:
    recipe: Recipe
    facts: Facts
    model: nn.Module
    method: Base | None
    layers: Layers | None  # that the method prunes
    uses: dict[str, float]
    device: torch.device
    why_device: str
    execution: step.Execution
    warnings: list[str]

    @property
    def steps(self) -> int:
        return _steps(self.recipe, self.facts)


def read(args: argparse.Namespace, warnings: list[str]) -> Subject:
    problems: list[str] = []

    def attempt(act: Callable[..., T], *given: Any) -> T | None:
        if any(value is None for value in given):
            return None  # what it builds on has failed, and said so
        try:
            return act(*given)
        except UsageError as error:
            problems.extend(error.problems)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            problems.append(str(error))
        return None

    recipe = attempt(common.read_recipe, args)
    device = attempt(common.read_device, args.device)
    attempt(lambda: common.read_workers(args.workers))
    facts = attempt(lambda: facts_of(recipe, args.data)) if recipe else None
    model = attempt(_model, recipe, facts or STAND_IN)
    uses = attempt(_uses, model, facts)
    method = recipe.build_method() if recipe else None
    layers = attempt(_layers, method, model)
    execution = attempt(_execution, recipe, facts, device)
    if recipe and device and recipe.train.precision == "fp16" and device[0].type == "cpu":
        text = 'train.precision = "fp16": acdc train needs a GPU for it; on a CPU type --set train.precision=bf16'
        (problems if args.device == "cpu" else warnings).append(text)
    if problems:
        raise UsageError(problems)
    assert recipe is not None
    assert facts is not None
    assert model is not None
    assert uses is not None
    assert device is not None
    assert execution is not None
    if facts.missing:
        warnings.append(f"data not found: {facts.missing} (on the command line: --data DIR)")
    if method is not None:
        each = _steps(recipe, facts)
        warnings += method.cautions(method.schedule.total_steps(each), each)
    late = [f"{milestone:g}" for milestone in recipe.rate.milestones if milestone >= recipe.epochs]
    if late and recipe.rate.shape == "step":
        warnings.append(f"rate.milestones: {', '.join(late)} lie past the last epoch, {recipe.epochs - 1}")
    return Subject(
        recipe=recipe,
        facts=facts,
        model=model,
        method=method,
        layers=layers,
        uses=uses,
        device=device[0],
        why_device=device[1],
        execution=execution,
        warnings=warnings,
    )


def _model(recipe: Recipe, facts: Facts) -> nn.Module:
    said, seed = recipe.model, recipe.run.seeds[0]
    return models.build(said.name, classes=facts.classes, in_channels=facts.shape[0], seed=seed, **said.options)


def _layers(method: Base, model: nn.Module) -> Layers:
    layers = in_method(method.layers, model)
    in_method(method.budgets, layers)
    return layers


def _uses(model: nn.Module, facts: Facts) -> dict[str, float]:
    try:
        return forward_uses(model, torch.zeros(1, *facts.shape))
    except RuntimeError as error:  # an image too small for a pooling layer, say
        shape = " x ".join(map(str, facts.shape))
        raise ValueError(f"model: it cannot take images of {shape} ({error}); choose another model") from None


def _execution(recipe: Recipe, facts: Facts, device: tuple[torch.device, str]) -> step.Execution:
    epochs = sum(len(planned.kinds) for planned in experiment.plan(recipe).values())
    return step.choose(recipe.train, device[0], steps=epochs * _steps(recipe, facts), world=1)


def _steps(recipe: Recipe, facts: Facts) -> int:
    return -(-facts.train // recipe.train.batch_size)
