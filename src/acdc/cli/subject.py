"""What a check is about: recipe, data, model and method, each built; or all that is wrong with them, at once."""

import argparse
from dataclasses import dataclass

import torch
from torch import nn

from acdc import models
from acdc.cli import common
from acdc.cli.errors import Problems, UsageError
from acdc.cli.facts import STAND_IN, Facts, facts_of
from acdc.methods.base import Base
from acdc.sparsity.layers import Layers
from acdc.sparsity.uses import forward_uses
from acdc.train import experiment, planning, step
from acdc.train.recipe import Recipe


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
    problems = Problems()
    attempt = problems.attempt
    recipe, wrong = common.examine(args)
    problems += wrong
    device = attempt(common.read_device, args.device)
    attempt(lambda: common.read_workers(args.workers))
    facts = attempt(lambda: facts_of(recipe, args.data)) if recipe and not common.data_is_wrong(wrong) else None
    if recipe:
        data = facts or STAND_IN
        steps = _steps(recipe, data) if facts and not wrong else None
        fit = planning.fit(recipe, classes=data.classes, shape=data.shape, steps=steps, wrong=wrong)
        problems += fit.problems + fit.idle
        warnings += fit.warnings
    execution = attempt(_execution, recipe, facts, device) if not problems else None
    if recipe and device and recipe.train.precision == "fp16" and device[0].type == "cpu":
        text = 'train.precision = "fp16": acdc train needs a GPU for it; on a CPU type --set train.precision=bf16'
        (problems if args.device == "cpu" else warnings).append(text)
    if problems:
        raise UsageError(problems)
    assert recipe is not None
    assert facts is not None
    assert device is not None
    assert execution is not None
    if facts.missing:
        where = "" if "--data DIR" in facts.missing else " (on the command line: --data DIR)"
        warnings.append(f"data not found: {facts.missing}{where}")
    model, method = _model(recipe, facts), recipe.build_method()
    return Subject(
        recipe=recipe,
        facts=facts,
        model=model,
        method=method,
        layers=method.layers(model) if method else None,
        uses=forward_uses(model, torch.zeros(1, *facts.shape)),
        device=device[0],
        why_device=device[1],
        execution=execution,
        warnings=warnings,
    )


def _model(recipe: Recipe, facts: Facts) -> nn.Module:
    said, seed = recipe.model, recipe.run.seeds[0]
    return models.build(said.name, classes=facts.classes, in_channels=facts.shape[0], seed=seed, **said.options)


def _execution(recipe: Recipe, facts: Facts, device: tuple[torch.device, str]) -> step.Execution:
    epochs = sum(len(planned.kinds) for planned in experiment.plan(recipe).values())
    return step.choose(recipe.train, device[0], steps=epochs * _steps(recipe, facts), world=1)


def _steps(recipe: Recipe, facts: Facts) -> int:
    return -(-facts.train // recipe.train.batch_size)
