"""The learning rate as a pure function of the epoch."""

import math

import pytest
from torch import nn

from acdc.train.recipe import Recipe, learning_rate, make_optimizer


def test_linear_warm_up_then_cosine() -> None:
    recipe = Recipe(epochs=12, lr=0.4, warmup_epochs=2)
    rates = [learning_rate(recipe, epoch) for epoch in range(12)]
    assert rates[:3] == [0.2, 0.4, 0.4]
    assert rates[7] == pytest.approx(0.2)  # half way along the cosine
    assert rates[11] == pytest.approx(0.2 * (1 + math.cos(0.9 * math.pi)))
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert rates[-1] > 0


def test_no_warm_up_starts_at_the_top() -> None:
    assert learning_rate(Recipe(epochs=4, lr=0.4, warmup_epochs=0), 0) == 0.4


def test_a_short_run_still_has_an_epoch_after_the_warm_up() -> None:
    recipe = Recipe(epochs=2, lr=0.4, warmup_epochs=5)
    assert [learning_rate(recipe, epoch) for epoch in range(2)] == [0.4, 0.4]


def test_the_optimizer_is_nesterov_sgd_with_decay_on_all_parameters() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    (group,) = make_optimizer(Recipe(momentum=0.8, weight_decay=0.02), model).param_groups
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.8, True, 0.02)
    assert len(group["params"]) == len(list(model.parameters()))


def test_without_momentum_there_is_no_nesterov() -> None:
    assert make_optimizer(Recipe(momentum=0.0), nn.Linear(1, 1)).param_groups[0]["nesterov"] is False
