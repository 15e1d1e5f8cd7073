"""What a check is about: recipe, data, model and method, each built; or all that is wrong with them, at once."""

import argparse
from dataclasses import dataclass

import torch
from torch import nn

from acdc import models
from acdc.cli import common
from acdc.core.method import Method
from acdc.errors import Problems, UsageError
from acdc.flops.uses import forward_uses
from acdc.recipes.schema import Recipe
from acdc.sparsity.layers import Layers
from acdc.train.facts import Facts, facts_of
from acdc.train.place import execution, fit, not_here
from acdc.train.step import Execution


@dataclass(frozen=True, kw_only=True)
class Subject:
    recipe: Recipe
    facts: Facts
    model: nn.Module
    method: Method | None
    layers: Layers | None  # that the method prunes
    uses: dict[str, float]
    device: torch.device
    why_device: str
    execution: Execution
    warnings: list[str]

    @property
    def steps(self) -> int:
        return self.facts.steps(self.recipe.train.batch_size)


def read(args: argparse.Namespace, warnings: list[str]) -> Subject:
    problems = Problems()
    attempt = problems.attempt
    examined = common.examine(args)
    recipe, facts = examined.recipe, None
    problems += examined.problems
    device, why_device = attempt(common.read_device, args.device) or (None, "")
    attempt(lambda: common.read_workers(args.workers))
    if recipe:
        facts = attempt(lambda: facts_of(recipe, args.data)) if not common.data_is_wrong(examined.wrong) else None
        warnings += attempt(lambda: fit(recipe, facts, device, wrong=examined.wrong)) or ()
    if recipe and device:
        (problems if args.device == "cpu" else warnings).extend(not_here(recipe, device))
    if problems:
        raise UsageError(problems)
    assert recipe is not None
    assert facts is not None
    assert device is not None
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
        device=device,
        why_device=why_device,
        execution=execution(recipe, facts, device),
        warnings=warnings,
    )


def _model(recipe: Recipe, facts: Facts) -> nn.Module:
    said, seed = recipe.model, recipe.run.seeds[0]
    return models.build(said.name, classes=facts.classes, in_channels=facts.shape[0], seed=seed, **said.options)
