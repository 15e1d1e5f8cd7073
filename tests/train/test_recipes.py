"""The recipes that come with acdc, against the paper (FACTS, §2 to §4)."""

import shlex

import pytest
import torch

from acdc import models
from acdc.cli.show import command
from acdc.train import reading
from acdc.train.recipe import PaperRow, Recipe

RECIPES = {name: reading.read(name) for name in reading.shipped()}
ROWS = [(name, index) for name, recipe in RECIPES.items() for index in range(len(recipe.paper))]
IMAGENET = [name for name in RECIPES if name.startswith("imagenet")]
WIDE = [name for name in RECIPES if name.startswith("cifar100")]


def applied(name: str, row: PaperRow) -> Recipe:
    """The recipe that the row's command trains."""
    words = iter(shlex.split(command(name, row))[3:])
    return reading.read(name, [next(words) for flag in words if flag == "--set"])


def row_of(name: str, **wanted: object) -> PaperRow:
    """The one row that sets just this."""
    keys = {key.replace("__", "."): value for key, value in wanted.items()}
    (row,) = (row for row in RECIPES[name].paper if row.set == keys)
    return row


def test_names() -> None:
    assert set(RECIPES) == {
        "digits",
        "digits-2-4",
        "digits-blocks",
        "digits-channels",
        "digits-4-bits",
        "cifar10-resnet20",
        "cifar10-memorization",
        "cifar100-wrn28-10",
        "cifar100-wrn28-10-dense",
        "imagenet-resnet50",
        "imagenet-resnet50-dense",
        "imagenet-mobilenet",
        "imagenet-mobilenet-dense",
    }


@pytest.mark.parametrize("name", RECIPES)
def test_each_says_in_a_line_what_it_is(name: str) -> None:
    assert 20 < len(RECIPES[name].about) < 120
    assert "\n" not in RECIPES[name].about


@pytest.mark.parametrize("name", IMAGENET)
def test_imagenet(name: str) -> None:
    r = RECIPES[name]
    o, t = r.optimizer, r.train
    assert (o.name, o.lr, o.momentum, o.nesterov, o.weight_decay) == ("sgd", 0.256, 0.875, False, 2**-15)
    assert (r.rate.shape, r.rate.per, r.rate.warmup, r.rate.final) == ("cosine", "epoch", 5, 0)
    assert (t.batch_size, t.precision, t.label_smoothing, t.channels_last) == (256, "fp16", 0, True)
    assert (r.data.name, r.epochs, r.run.finetune) == ("imagenet", 100, not name.endswith("dense"))


@pytest.mark.parametrize("name", WIDE)
def test_cifar100(name: str) -> None:
    r = RECIPES[name]
    o = r.optimizer
    assert (o.name, o.lr, o.momentum, o.nesterov, o.weight_decay) == ("sgd", 0.08, 0.9, True, 5e-4)
    assert (r.rate.shape, r.rate.milestones, r.rate.gamma, r.rate.warmup) == ("step", (76, 116, 156), 0.1, 0)
    assert (r.train.batch_size, r.data.crop, r.data.flip, r.epochs) == (128, 4, True, 200)


def test_cifar10_memorization() -> None:
    r = RECIPES["cifar10-memorization"]
    o = r.optimizer
    assert (o.name, o.lr, o.momentum, o.nesterov, o.weight_decay) == ("sgd", 0.1, 0.9, False, 5e-4)
    assert (r.rate.milestones, r.train.batch_size, r.train.precision) == ((66, 126, 186), 128, "fp32")
    assert (r.data.corrupt, r.data.crop, r.data.flip, r.run.baseline) == (1000, 0, False, True)
    assert {row.set["method.sparsity"] for row in r.paper} == {0.5, 0.75, 0.9, 0.95}
    assert all(row.note for row in r.paper)


@pytest.mark.parametrize("dense", [name for name in RECIPES if name.endswith("-dense")])
def test_a_baseline_differs_from_its_recipe_in_the_method_only(dense: str) -> None:
    one, other = RECIPES[dense], RECIPES[dense.removesuffix("-dense")]
    for part in ("model", "data", "optimizer", "rate", "epochs"):
        assert getattr(one, part) == getattr(other, part)
    assert one.build_method() is None
    assert (one.train.batch_size, one.train.precision) == (other.train.batch_size, other.train.precision)


@pytest.mark.parametrize(("name", "index"), ROWS)
def test_the_command_of_each_row_of_the_paper_gives_that_row(name: str, index: int) -> None:
    row = RECIPES[name].paper[index]
    recipe = applied(name, row)
    for key, value in row.set.items():
        table, _, setting = key.partition(".")
        got = getattr(getattr(recipe, table), setting)
        assert (list(got) if isinstance(got, tuple) else got) == value
    assert not row.std or row.sparse or row.dense


@pytest.mark.parametrize("name", RECIPES)
def test_no_two_rows_are_of_the_same_settings(name: str) -> None:
    rows = [str(applied(name, row).to_dict()) for row in RECIPES[name].paper]
    assert len({*rows}) == len(rows)


def test_numbers_of_the_paper() -> None:
    row = row_of("imagenet-resnet50", method__sparsity=0.9)
    got = (row.sparse, row.std, row.twin, row.finetuned, row.inference, row.training)
    assert got == (75.03, 0.1, 73.25, 76.56, 0.18, 0.58)
    star = {"method__first_and_last_dense": True}
    row = row_of("imagenet-resnet50", method__sparsity=0.98, **star)
    assert (row.sparse, row.inference, row.training) == (71.27, 0.08, 0.47)
    row = row_of("imagenet-resnet50", method__sparsity=0.95, method__distribution="uniform", **star)
    assert (row.sparse, row.inference, row.training) == (73.28, 0.08, 0.50)
    row = row_of("imagenet-resnet50", method__pattern="2:4", method__sparsity=0.5)
    assert (row.sparse, row.std, row.finetuned) == (76.64, 0.05, 76.85)
    row = row_of("imagenet-resnet50", method__sparsity=0.9, method__schedule="imagenet_150")
    assert (row.sparse, row.finetuned, row.training) == (75.99, 76.95, 0.87)
    star = {"method__exclude": ["conv1"], "method__depthwise_dense": True}
    row = row_of("imagenet-mobilenet", method__sparsity=0.9, **star)
    assert (row.sparse, row.twin, row.finetuned, row.inference, row.training) == (66.56, 67.65, 70.97, 0.21, 0.58)
    row = row_of("cifar100-wrn28-10", method__schedule="cifar100_20", method__sparsity=0.75)
    assert (row.sparse, row.std, row.inference, row.training) == (80.0, 0.17, 0.29, 0.60)
    row = row_of("cifar100-wrn28-10", method__schedule="cifar100_7", method__sparsity=0.95)
    assert (row.sparse, row.training) == (77.8, 0.33)
    assert [RECIPES[f"{name}-dense"].paper[0].dense for name in ("imagenet-resnet50", "imagenet-mobilenet")] == [
        76.84,
        71.78,
    ]
    row = row_of("cifar100-wrn28-10", method__name="gmp", method__sparsity=0.9, run__finetune=False)
    assert (row.sparse, row.std, row.inference) == (77.7, 0.23, 0.08)
    assert str(applied("cifar100-wrn28-10", row).schedule()).startswith("schedule: 200 epochs, 50 dense")
    assert (RECIPES["cifar100-wrn28-10-dense"].paper[0].dense, len(RECIPES["cifar100-wrn28-10"].paper)) == (79.0, 16)


def test_the_star_of_each_model_leaves_what_the_paper_says_dense() -> None:
    for name, dense in (("imagenet-resnet50", 9_408 + 2_048_000), ("imagenet-mobilenet", 45_504)):
        row = next(row for row in RECIPES[name].paper if row.note == "⋆")
        recipe = applied(name, row)
        method = recipe.build_method()
        with torch.device("meta"):
            model = models.build(recipe.model.name, classes=1000)
        assert method is not None
        layers = method.layers(model)
        plain = RECIPES[name].build_method()
        assert plain is not None
        assert plain.layers(model).size - layers.size == dense


def test_training_costs_of_the_paper_follow_from_its_inference_costs() -> None:
    """3·F_C in compressed epochs and at most 3·F in dense ones, over dense training as long as the recipe's own."""
    for name, recipe in RECIPES.items():
        for row in recipe.paper:
            schedule = applied(name, row).schedule()
            if schedule is None or row.inference is None or row.training is None:
                continue
            dense, sparse = (float(length.value) for length in (schedule.dense_length, schedule.sparse_length))
            assert row.training == pytest.approx((dense + sparse * row.inference) / recipe.epochs, abs=0.08)
