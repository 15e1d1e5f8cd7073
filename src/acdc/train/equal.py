"""Equal training FLOPs: how many epochs of a method cost what another costs, by prediction."""

import statistics

import torch

from acdc import models
from acdc.flops.uses import forward_uses
from acdc.measure import predict
from acdc.recipes import load
from acdc.recipes.schema import Recipe, in_method
from acdc.train.loading import DataFacts
from acdc.train.prepare import plan_stages


def at_equal_flops(recipe: Recipe, cost: float, facts: DataFacts) -> Recipe:
    """As many epochs as this cost buys; milestones of the learning rate move along.

    Phases of another total than the recipe's are the method's own proportions. Where the total stays, so do they.
    """
    if _epochs(recipe, cost, facts) == recipe.epochs:
        return recipe
    proportions = _lasting(recipe, recipe.epochs)
    return _lasting(proportions, _epochs(proportions, cost, facts))


def _epochs(recipe: Recipe, cost: float, facts: DataFacts) -> int:
    return max(4, round(recipe.epochs * cost / cost_of(recipe, facts)))


def _lasting(recipe: Recipe, epochs: int) -> Recipe:
    changed = recipe.to_dict()
    changed["train"]["epochs"], changed["method"]["schedule"] = epochs, None
    changed["rate"]["milestones"] = [round(m * epochs / recipe.epochs, 3) for m in recipe.rate.milestones]
    return load.from_dict(changed)


def cost_of(recipe: Recipe, facts: DataFacts) -> float:
    """Predicted FLOPs of training, in dense epochs; the middle of two estimates where there are two."""
    said = recipe.model
    model = models.build(said.name, classes=facts.classes, in_channels=facts.shape[0], seed=0, **said.options)
    uses = forward_uses(model, torch.zeros(1, *facts.shape))
    method = recipe.build_method()
    found = in_method(predict.compressed, method, in_method(method.layers, model)) if method else None
    flops = predict.inference(model, uses, found)
    (planned,) = plan_stages(recipe).values()  # neither a baseline nor a twin to fine-tune
    return statistics.fmean(predict.training(planned.kinds, flops, 1, method)) / (3 * flops.dense)
