"""What a recipe alone shows, and what its data add: errors and warnings, all at once."""

from dataclasses import replace
from functools import partial

import pytest

from acdc.data.data_facts import ImageFacts
from acdc.recipes import load
from acdc.recipes.findings import Finding, SettingError
from acdc.recipes.schema import Recipe
from acdc.recipes.validate import validate

Facts = partial(ImageFacts, train=1397, test=400, shape=(1, 8, 8), classes=10)


def texts(found: list[Finding], level: str) -> list[str]:
    return [str(one) for one in found if one.level == level]


def changed(recipe: Recipe, table: str, **values: object) -> Recipe:
    return replace(recipe, **{table: replace(getattr(recipe, table), **values)})


def test_a_sound_recipe_has_no_findings() -> None:
    recipe = load.read("digits")
    assert validate(recipe) == []
    assert validate(recipe, Facts(), cpu_cores=1) == []


def test_a_recipe_that_was_built_in_python_is_checked_too() -> None:
    recipe = changed(changed(load.read("digits"), "optimizer", lr=-1.0), "run", keep=0)
    assert [finding.setting for finding in validate(recipe)] == ["optimizer.lr", "run.keep"]


def test_what_follows_from_a_known_error_is_not_said_again() -> None:
    recipe = changed(load.read("digits"), "train", accumulate=100)
    (finding,) = validate(recipe)
    assert finding.setting == "train.accumulate"
    assert validate(recipe, known=[finding]) == []
    assert validate(recipe, known=[Finding(SettingError("train.batch_size", allowed="expected a whole number"))]) == []
    assert validate(recipe, known=[Finding(SettingError("train", allowed="expected a table"))]) == []
    (again,) = validate(recipe, known=[Finding(SettingError("train.batch", allowed="no such setting"))])
    assert str(again) == str(finding)


def test_errors_and_warnings_come_together() -> None:
    recipe = load.read("digits", ["rate.warmup=50", "method.name=rigl", 'method.every="100000st"'])
    found = validate(recipe, Facts())
    assert texts(found, "warning") == ["rate.warmup = 50: the run of 40 epochs is all warm-up"]
    (idle,) = texts(found, "error")
    assert idle.startswith('method.every="100000st": the first update of RigL is due at step 100,000')
    assert texts(validate(recipe, Facts(), begun=True), "warning") == [idle, *texts(found, "warning")]
    assert 'write rigl.every="' in texts(validate(recipe, Facts(), method_table="rigl"), "error")[0]


def test_of_data_that_could_not_be_read_nothing_is_concluded() -> None:
    recipe = load.read("digits", ["rate.warmup=50", 'method.exclude=["nope"]'])
    (finding,) = validate(recipe, Facts(train=1), unread=True)
    assert finding.setting == "method.exclude"


# Phases too short to recover


def test_phases_too_short_to_recover_are_named_with_their_steps() -> None:
    """1,397 images in batches of 64 make 22 steps an epoch, and the paper's phases last one of eight epochs each."""
    (warning,) = texts(validate(load.read("digits", ["train.epochs=8", "method.schedule=paper"]), Facts()), "warning")
    assert warning.startswith('method.schedule = "paper": 7 of 8 phases have 22 steps, too few to recover from a ')
    assert "leave it out (method.schedule=) for phases that suit the number of steps" in warning
    for settings in (["train.epochs=8"], ["train.epochs=8", "method.schedule=paper", "train.batch_size=8"]):
        assert texts(validate(load.read("digits", settings), Facts()), "warning") == []


# Days on a CPU


def days(*settings: str, cores: int | None = 16, **facts: object) -> list[str]:
    shape = {"train": 1_281_167, "shape": (3, 224, 224), "classes": 1000}
    found = validate(load.read("imagenet-resnet50", settings), Facts(**{**shape, **facts}), cpu_cores=cores)
    assert texts(found, "error") == []
    return texts(found, "warning")


def test_a_run_that_takes_days_on_a_cpu_says_how_many() -> None:
    (warning,) = days()
    # 3 · 8.17 GFLOPs · 1,281,167 images · 100 epochs at 20 GFLOPs a second and core
    assert warning.startswith('model.name = "resnet50": about 114 days on this CPU: 8.2 GFLOPs per image of 3 x 224')
    assert "at an assumed 320 GFLOPs per second on 16 cores; train on a GPU, or use smaller images" in warning


@pytest.mark.parametrize(
    ("settings", "cores", "facts"),
    [
        ((), None, {}),  # a GPU
        ((), 2048, {}),
        ((), 16, {"train": 5000}),
        ((), 16, {"shape": (3, 16, 16)}),
    ],
)
def test_one_that_does_not_says_nothing(settings: tuple[str, ...], cores: int | None, facts: dict) -> None:
    assert days(*settings, cores=cores, **facts) == []
