"""train.times: the same run, so many times as long."""

import pytest

from acdc.data.data_facts import ImageFacts
from acdc.errors import Problems
from acdc.recipes import load
from acdc.recipes.findings import RecipeError
from acdc.recipes.paper import row_for
from acdc.recipes.validate import validate
from acdc.schedule import Schedule
from acdc.train.cells import Grid, Variant, at_equal_flops, plan_cells
from acdc.train.optim import Rates

WIDE = "cifar100-wrn28-10"


def test_phases_milestones_and_warm_up_grow_together() -> None:
    recipe = load.read(WIDE, ["train.times=2", "rate.warmup=3", "rate.rewarm=0.5"])
    schedule = recipe.schedule()
    assert schedule is not None
    assert recipe.epochs == 400
    assert schedule.transitions == ((20, 100, 180, 260, 340), (60, 140, 220, 300))
    rate = recipe.stretched_rate()
    assert (rate.milestones, rate.warmup, rate.rewarm) == ((152, 232, 312), 6, 1.0)
    once = load.read(WIDE, ["rate.warmup=3"])
    slow, fast = (Rates(one.stretched_rate(), 0.08, one.epochs, 5) for one in (recipe, once))
    assert [slow.at(step) for step in range(6 * 5, 400 * 5)] == [
        fast.at(step // 10 * 5) for step in range(6 * 5, 400 * 5)
    ]


PHASES = '{ warmup = "2ep", sparse = "2ep", dense = "2ep", final_sparse = "4ep" }'


@pytest.mark.parametrize("schedule", ["", "paper", PHASES])
def test_epochs_that_the_recipe_sets_grow_too(schedule: str) -> None:
    recipe = load.read("digits", ["train.epochs=10", f"method.schedule={schedule}", "train.times=3"])
    method = recipe.build_method()
    assert method is not None
    assert recipe.epochs == method.schedule.total_steps(1) == 30
    if "warmup" in schedule:
        assert method.schedule.transitions == ((6, 18), (12,))
    dense = load.read("digits", ["method.name=dense", "run.baseline=false", "run.finetune=false", "train.times=3"])
    assert dense.epochs == 120


def test_other_methods_keep_their_proportions() -> None:
    gmp = load.read("digits", ["method.name=gmp", "train.times=2"]).build_method()
    assert gmp is not None
    assert gmp.schedule == Schedule.from_phases([("dense", "20ep"), ("sparse", "60ep")])


def test_once_is_the_recipe_itself_and_twice_is_no_row_of_the_paper() -> None:
    assert load.read(WIDE, ["train.times=1"]) == load.read(WIDE)
    assert row_for(load.read(WIDE, ["train.times=1"])) is not None
    assert row_for(load.read(WIDE, ["train.times=2"])) is None
    twice = load.read(WIDE, ["train.times=2"])
    assert load.from_dict(twice.to_dict()) == twice, "and what config.json holds is not stretched again"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["train.times=0"], "train.times = 0: expected 1 or more, such as 2"),
        (["train.times=1.5"], "train.times = 1.5: expected a whole number"),
        (["train.times=1001"], "train.times = 1001: expected 1 or more, such as 2, and at most 1,000"),
        (["train.epochs=60000", "train.times=2"],
         "train.times = 2: with train.epochs = 60000 it makes 120,000 epochs; write 1 or less"),
    ],
)  # fmt: skip
def test_bad_values(settings: list[str], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load.read("digits", settings)
    assert caught.value.problems == (said,)


def test_epochs_that_contradict_a_schedule_are_said_as_they_were_written() -> None:
    with pytest.raises(RecipeError, match=r"train.epochs = 150: method.schedule lasts 200 epochs"):
        load.read(WIDE, ["method.schedule=cifar100_20", "train.epochs=150", "train.times=2"])


def test_a_comparison_multiplies_once() -> None:
    settings = ("train.times=2", "train.epochs=10")
    entries = (Variant("acdc", "acdc"), Variant("gmp", "gmp"))
    grid = Grid(recipe="digits", settings=settings, entries=entries, sparsities=(0.9,))
    cells = plan_cells(grid, load.read("digits", settings), Problems())
    assert [cell.recipe and cell.recipe.epochs for cell in cells] == [20, 20]


def test_equal_flops_start_from_the_stretched_run() -> None:
    facts = ImageFacts(train=1397, test=400, shape=(1, 8, 8), classes=10)
    alone = ["method.name=dense", "run.baseline=false", "run.finetune=false", "rate.shape=step", "rate.milestones=[20]"]
    recipe = load.read("digits", [*alone, "train.times=2"])
    half = at_equal_flops(recipe, 40.0, facts)
    assert (half.epochs, half.train.times, half.rate.milestones, half.rate.warmup) == (40, 1, (20.0,), 4.0)
    assert validate(half) == []
