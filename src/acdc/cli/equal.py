"""Equal training FLOPs: how many epochs of a method cost what another costs, by prediction."""

import statistics
from collections.abc import Sequence

import torch

from acdc import models
from acdc.cli.facts import Facts
from acdc.measure import predict
from acdc.sparsity.uses import forward_uses
from acdc.train import experiment, reading
from acdc.train.recipe import Recipe


def at_equal_flops(
    recipe: Recipe, facts: Facts, name: str, like: str, sparsity: float, settings: Sequence[str]
) -> Recipe:
    """As many epochs as the predicted cost of `like` buys; milestones of the learning rate move along."""
    said = [*settings, f"method.name={like}", "run.finetune=false", "run.baseline=false"]
    if like != "dense":
        said.append(f"method.sparsity={sparsity}")
    scale = _cost(reading.read(name, said), facts) / _cost(recipe, facts)
    epochs = max(4, round(recipe.epochs * scale))
    milestones = [round(m * epochs / recipe.epochs, 3) for m in recipe.rate.milestones]
    changed = recipe.to_dict()
    changed["train"]["epochs"], changed["method"]["schedule"] = epochs, None
    changed["rate"]["milestones"] = milestones
    return reading.from_dict(changed)


def _cost(recipe: Recipe, facts: Facts) -> float:
    """Predicted FLOPs of training, in dense epochs; the middle of two estimates where there are two."""
    said = recipe.model
    model = models.build(said.name, classes=facts.classes, in_channels=facts.shape[0], seed=0, **said.options)
    uses = forward_uses(model, torch.zeros(1, *facts.shape))
    method = recipe.build_method()
    found = predict.compressed(method, method.layers(model)) if method else None
    flops = predict.inference(model, uses, found)
    (planned,) = experiment.plan(recipe).values()  # neither a baseline nor a twin to fine-tune
    return statistics.fmean(predict.training(planned.kinds, flops, 1)) / (3 * flops.dense)
