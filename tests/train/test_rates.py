"""The learning rate as a pure function of the step: the paper's values (FACTS, §3), and the edges."""

import math
from itertools import pairwise
from typing import Literal

import pytest

from acdc.recipes import load
from acdc.recipes.schema import Rate
from acdc.train.optim import Rates


def by_epoch(name: str, *settings: str, steps: int = 3) -> list[float]:
    recipe = load.read(name, settings)
    rates = Rates(recipe.rate, recipe.optimizer.lr, recipe.epochs, steps)
    each = [rates.at(epoch * steps) for epoch in range(recipe.epochs)]
    assert each == [rates.at(epoch * steps + steps - 1) for epoch in range(recipe.epochs)], "set per epoch"
    return each


@pytest.mark.parametrize("name", ["imagenet-resnet50", "imagenet-mobilenet", "imagenet-resnet50-dense"])
def test_imagenet_warms_up_over_five_epochs_then_follows_a_cosine(name: str) -> None:
    rates = by_epoch(name)
    assert rates[:5] == pytest.approx([0.256 * (e + 1) / 5 for e in range(5)])
    assert rates[5:] == pytest.approx([0.256 * (1 + math.cos(math.pi * (e - 5) / 95)) / 2 for e in range(5, 100)])


def test_wide_resnet_falls_at_76_116_156_in_longer_runs_too() -> None:
    for schedule, epochs in (("cifar100_20", 200), ("cifar100_14", 225), ("cifar100_7", 240)):
        rates = by_epoch("cifar100-wrn28-10", f"method.schedule={schedule}")
        wanted = [0.08] * 76 + [0.008] * 40 + [0.0008] * 40 + [0.00008] * (epochs - 156)
        assert rates == pytest.approx(wanted)


def test_resnet20_falls_at_66_126_186() -> None:
    rates = by_epoch("cifar10-memorization")
    assert rates == pytest.approx([0.1] * 66 + [0.01] * 60 + [0.001] * 60 + [0.0001] * 14)


def test_per_step_changes_within_an_epoch() -> None:
    rates = Rates(Rate(shape="linear", per="step", warmup=1), 1.0, 2, 4)
    assert [rates.at(step) for step in range(8)] == [0.25, 0.5, 0.75, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_a_run_ends_at_its_final_share_of_the_rate() -> None:
    for shape in ("cosine", "linear"):
        rates = Rates(Rate(shape=shape, per="step", final=0.1), 2.0, 10, 100)
        assert rates.at(0) == 2.0
        assert rates.at(999) == pytest.approx(0.2, rel=0.02)


def test_linear_decay_ends_at_0_and_falls_by_the_same_each_time() -> None:
    cases: list[tuple[Literal["step", "epoch"], range]] = [("step", range(1000)), ("epoch", range(0, 1000, 100))]
    for per, steps in cases:
        rates = Rates(Rate(shape="linear", per=per), 2.0, 10, 100)
        each = [rates.at(step) for step in steps]
        falls = {round(one - other, 9) for one, other in pairwise([*each, 0.0])}
        assert falls == {2.0 / len(each)}, "the last fall is the one to 0, where the run ends"
        assert rates.at(1000) == 0.0


def test_half_an_epoch_of_warm_up_never_exceeds_the_rate() -> None:
    rates = Rates(Rate(shape="constant", warmup=2.5), 1.0, 6, 10)
    assert [rates.at(10 * epoch) for epoch in range(6)] == [0.4, 0.8, 1.0, 1.0, 1.0, 1.0]


def test_a_short_run_has_an_epoch_after_its_warm_up() -> None:
    for epochs in (1, 2, 5):
        rates = Rates(Rate(shape="cosine", warmup=5), 1.0, epochs, 1)
        assert rates.at(epochs - 1) == 1.0


@pytest.mark.parametrize("shape", ["constant", "step", "cosine", "linear"])
def test_no_rate_is_negative_or_above_lr(shape: Literal["constant", "step", "cosine", "linear"]) -> None:
    rate = Rate(shape=shape, per="step", warmup=1.5, milestones=(2, 4))
    values = [Rates(rate, 0.3, 6, 7).at(step) for step in range(42)]
    assert 0 < min(values) <= max(values) <= 0.3


def test_every_phase_after_the_first_may_warm_up_again() -> None:
    """By step, also where the rest is by epoch: one epoch's warm-up by epochs would be none."""
    for per in ("epoch", "step"):
        rates = Rates(Rate(rewarm=1, per=per), 1.0, 8, 10, (0, 30, 60))
        assert [rates.at(step) for step in (0, 29, 30, 31, 39, 40, 59, 60)] == [1, 1, 0.1, 0.2, 1, 1, 1, 0.1]
        assert Rates(Rate(rewarm=0.5, per=per), 1.0, 8, 10, (0, 30)).at(30) == 0.2
