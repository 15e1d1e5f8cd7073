"""What a recipe alone shows, and what its data add: errors and warnings, all at once."""

from dataclasses import replace
from functools import partial

import pytest
from torch import nn

from acdc.data.data_facts import ImageFacts
from acdc.recipes import load
from acdc.recipes.findings import Finding, RecipeError, SettingError
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


# Batch norm over parts of a batch


def test_batches_must_divide_into_the_parts_that_batch_norms_see() -> None:
    for settings, said in (
        (["model.bn_splits=3"], "train.batch_size = 64 does not divide into 3 parts of two images or more; write "
         "train.batch_size = 63, or another model.bn_splits"),
        (["model.bn_splits=64"], "train.batch_size = 64 does not divide into 64 parts of two images or more; write "
         "train.batch_size = 128"),
        (["model.bn_splits=4", "train.accumulate=8"], "with train.accumulate = 8 batch norms see 8 images at a time, "
         "which cannot be parts of 16; write model.bn_splits = 8, or 1 to split nothing more"),
        (["model.bn_splits=0"], "expected parts of a batch, 1 or more"),
    ):  # fmt: skip
        with pytest.raises(RecipeError) as caught:
            load.read("digits", settings)
        (problem,) = caught.value.problems
        assert problem.startswith(f"model.bn_splits = {settings[0].partition('=')[2]}: {said}")


def test_parts_that_accumulation_and_processes_make_count() -> None:
    recipe = load.read("digits", ["model.bn_splits=8", "train.accumulate=2"])
    assert [recipe.norm_splits(processes) for processes in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(SettingError, match=r"in 3 processes batch norms see 10 images .* write model.bn_splits = 24"):
        recipe.norm_splits(3)
    assert load.read("digits", ["train.accumulate=8"]).norm_splits(3) == 1


def test_a_model_of_one_s_own_without_batch_norm_is_refused() -> None:
    recipe = load.read("digits", ["model.name=tests.recipes.test_validate:plain", "model.bn_splits=2"])
    (problem,) = texts(validate(recipe, Facts()), "error")
    assert problem == (
        "model.bn_splits=2: it splits the batches of nn.BatchNorm2d layers, and Sequential has none inside; "
        "write bn_splits=1 or leave it out"
    )
    assert validate(load.read("digits", ["model.name=tests.recipes.test_validate:plain"]), Facts()) == []


def plain(classes: int, in_channels: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, 32), nn.ReLU(), nn.Linear(32, classes))


# Images that grow


def growing(*settings: str, shape: tuple[int, int, int] = (1, 8, 8)) -> list[str]:
    recipe = load.read("digits", ["data.first_size=4", *settings])
    return texts(validate(recipe, Facts(shape=shape)), "error")


def test_images_grow_from_a_smaller_size_that_the_model_can_process() -> None:
    assert growing() == []
    assert growing("data.first_size=8") == [
        "data.first_size = 8: images are 8 x 8 pixels, and grow to that from a smaller size; write data.first_size "
        "= 4, or leave it out"
    ]
    (problem,) = growing("data.first_size=5", shape=(1, 4, 9))
    assert problem.startswith("data.first_size = 5: images are 4 x 9 pixels")
    (problem,) = growing("model.name=tests.recipes.test_validate:plain")
    assert problem.startswith(
        "data.first_size = 4: tests.recipes.test_validate:plain: it cannot process images of 1 x 4 x 4 (mat1 and mat2"
    )
    assert problem.endswith("set it higher, or choose a model for images of any size")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("first_size=0", "expected pixels, 1 or more"),
        ("first_size=4.5", "expected a whole number"),
        ("full_size_by=0", "expected a share of the run, above 0 and up to 1"),
        ("full_size_by=1.1", "expected a share of the run, above 0 and up to 1"),
        ("size_step=0", "expected pixels, 1 or more"),
        ("firstsize=4", "no such setting; expected one of .* did you mean first_size?"),
    ],
)
def test_bad_sizes(setting: str, said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load.read("digits", [f"data.{setting}"])
    (problem,) = caught.value.problems
    before, _, after = said.partition(".*")
    assert problem.startswith(f"data.{setting.partition('=')[0]}")
    assert before in problem
    assert after in problem


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["model.heads=3"], ["model.width=128: expected a multiple of 6: "]),
        (["model.width=33"], ["model.width=33: expected a multiple of 8: "]),
        (["model.dropout=1.5"], ["model.dropout=1.5: expected a fraction"]),
        (
            ["model.norm=batch", "model.layrs=2", "model.heads=x"],
            ["model.heads", "model.layrs=2", "model.norm='batch'"],
        ),
        (["model.name=gpt"], ["model.name='gpt': expected one of"]),
    ],
)
def test_model_options_are_checked_together(settings: list[str], expected: list[str]) -> None:
    """Each mistake once; no option is refused because a default does not suit it where the recipe's value does."""
    with pytest.raises(RecipeError) as caught:
        load.read("text-quick", settings)
    problems = sorted(caught.value.problems)
    assert len(problems) == len(expected)
    for problem, beginning in zip(problems, expected, strict=True):
        assert problem.startswith(beginning)
