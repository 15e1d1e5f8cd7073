"""The recipes that come with acdc, against the paper (FACTS, §2 to §4)."""

import shlex
from dataclasses import asdict
from functools import cache

import pytest
import torch
from torch import nn

from acdc import models
from acdc.cli.show import command
from acdc.recipes import load
from acdc.recipes.paper import beside, row_for, settings_of
from acdc.recipes.schema import PaperRow, Recipe, setting_names

RECIPES = {name: load.read(name) for name in load.shipped()}
ROWS = [(name, index) for name, recipe in RECIPES.items() for index in range(len(recipe.paper))]
IMAGENET = [name for name in RECIPES if name.startswith("imagenet")]
WIDE = [name for name in RECIPES if name.startswith("cifar100")]


def applied(name: str, row: PaperRow) -> Recipe:
    """The recipe that the row's command trains."""
    words = iter(shlex.split(command(name, row))[3:])
    return load.read(name, [next(words) for flag in words if flag == "--set"])


def values(**numbers: float) -> dict[str, float]:
    return numbers


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
        "text-quick",
        "wiki-gpt-30m",
        "wiki-gpt-124m",
        "wikitext2-transformer-xl",
        "wikitext103-transformer-xl",
        "wikitext103-transformer-xl-dense",
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
    assert (r.model.bn_splits, r.model.options["init"]) == (4, "published")


@pytest.mark.parametrize("name", WIDE)
def test_cifar100(name: str) -> None:
    r = RECIPES[name]
    o = r.optimizer
    assert (o.name, o.lr, o.momentum, o.nesterov, o.weight_decay) == ("sgd", 0.08, 0.9, True, 5e-4)
    assert (r.rate.shape, r.rate.milestones, r.rate.gamma, r.rate.warmup) == ("step", (76, 116, 156), 0.1, 0)
    assert (r.train.batch_size, r.data.crop, r.data.flip, r.epochs) == (128, 4, True, 200)
    assert (r.model.bn_splits, r.model.options) == (2, {"variant": "published", "dropout": 0.3})


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("wikitext103")])
def test_wikitext103(name: str) -> None:
    r = RECIPES[name]
    o, t, data = r.optimizer, r.train, r.data.options
    assert (o.name, o.lr, o.betas, o.eps, o.weight_decay) == ("lamb", 0.01, (0.9, 0.999), 1e-6, 0)
    assert not o.bias_correction
    steps = 103_227_021 // 128 // 384
    assert (r.epochs, round(r.rate.warmup / 48 * 100_000)) == (48, 16_000)
    assert r.epochs * steps == pytest.approx(100_000, rel=0.01)
    assert (r.rate.shape, r.rate.per, r.rate.final * o.lr) == ("cosine", "step", pytest.approx(1e-4))
    assert (t.batch_size, t.clip_norm, data["length"], data["tokens"]) == (128, 0.25, 384, "words")
    assert (data["evaluation_length"], data["evaluation_memory"], data["evaluation_clamp"]) == (128, 1600, 1000)
    assert r.method.name == "dense" or r.method.schedule == "transformer_xl"


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
        part = getattr(recipe, table)
        got = getattr(part, setting, None) if setting in setting_names(type(part)) else part.options[setting]
        assert (list(got) if isinstance(got, tuple) else got) == (None if value == "" else value)
    assert not row.std or row.sparse or row.dense


@pytest.mark.parametrize("name", RECIPES)
def test_no_two_rows_are_of_the_same_settings(name: str) -> None:
    rows = [str(applied(name, row).to_dict()) for row in RECIPES[name].paper]
    assert len({*rows}) == len(rows)


# FACTS, §4, each recipe's rows by what they set. Accuracies (the main model's with its deviation), then costs.
STAR, UNIFORM = "first_and_last_dense=true", "first_and_last_dense=true distribution=uniform"
FIRST, MOBILE = 'exclude=["conv1"]', 'exclude=["conv1"] depthwise_dense=true'
TWICE = '{ warmup = "10ep", sparse = "5ep", dense = "2ep", final_sparse = "22ep", total = "200ep" }'
NOT_EXTENDED = '{ warmup = "10ep", sparse = "5ep", dense = "5ep", final_sparse = "20ep", total = "100ep" }'
SMOOTH = "train.label_smoothing=0.1"
EMBEDDINGS = 'embeddings=true distribution={ "embedding.*" = { global = 0.5 } }'
NUMBERS: dict[str, dict[str, dict[str, float]]] = {
    "imagenet-resnet50": {
        "sparsity=0.8": values(sparse=76.3, std=0.1, twin=73.82, finetuned=76.83, inference=0.29, training=0.65),
        "sparsity=0.9": values(sparse=75.03, std=0.1, twin=73.25, finetuned=76.56, inference=0.18, training=0.58),
        "sparsity=0.95": values(sparse=73.14, std=0.2, twin=72.9, inference=0.11, training=0.53),
        "sparsity=0.98": values(sparse=68.44, std=0.09, twin=70.8, inference=0.06, training=0.46),
        "sparsity=0.5": values(sparse=77.05),
        f"sparsity=0.9 {STAR}": values(sparse=75.64, twin=73.66, finetuned=76.85, inference=0.21, training=0.6),
        f"sparsity=0.95 {STAR}": values(sparse=74.16, inference=0.13, training=0.54),
        f"sparsity=0.98 {STAR}": values(sparse=71.27, inference=0.08, training=0.47),
        f"sparsity=0.9 {UNIFORM}": values(sparse=75.04, finetuned=76.43, inference=0.13, training=0.55),
        f"sparsity=0.95 {UNIFORM}": values(sparse=73.28, inference=0.08, training=0.5),
        "pattern=2:4 sparsity=0.5": values(sparse=76.64, std=0.05, finetuned=76.85),
        f"sparsity=0.9 schedule={NOT_EXTENDED}": values(sparse=75.18, finetuned=76.05),
        "sparsity=0.9 schedule=imagenet_150": values(sparse=75.99, finetuned=76.95, training=0.87),
        f"sparsity=0.9 {UNIFORM} schedule=imagenet_200": values(sparse=76.1),
        f"sparsity=0.95 {UNIFORM} schedule=imagenet_200": values(sparse=74.3),
        "sparsity=0.9 schedule=imagenet_130_10_10": values(sparse=75.34, finetuned=76.87, training=0.7),
        "sparsity=0.9 schedule=imagenet_130_5_10": values(sparse=75.45, finetuned=76.78, training=0.85),
        "sparsity=0.9 schedule=imagenet_short_dense": values(sparse=74.6, training=0.44),
        f"sparsity=0.9 {UNIFORM} schedule=imagenet_short_dense": values(sparse=74.7, training=0.4),
        f"sparsity=0.95 {UNIFORM} schedule=imagenet_short_dense": values(sparse=72.8, training=0.35),
        f"sparsity=0.9 {UNIFORM} schedule={TWICE}": values(sparse=75.8),
        f"name=rigl sparsity=0.8 distribution=uniform {FIRST}": values(sparse=74.6, inference=0.23, training=0.23),
        f"name=rigl sparsity=0.9 distribution=uniform {FIRST}": values(sparse=72.0, inference=0.13, training=0.13),
        f"name=rigl sparsity=0.95 distribution=uniform {FIRST}": values(sparse=67.5, inference=0.08, training=0.08),
        "name=rigl sparsity=0.8 distribution=erk": values(sparse=75.1, inference=0.42, training=0.42),
        "name=rigl sparsity=0.9 distribution=erk": values(sparse=73.0, inference=0.24, training=0.25),
        "name=rigl sparsity=0.95 distribution=erk": values(sparse=69.7, inference=0.12, training=0.13),
        f"name=top_kast sparsity=0.8 backward=0.5 {STAR}": values(sparse=75.03, inference=0.23, training=0.32),
        f"name=top_kast sparsity=0.9 backward=0.8 {STAR}": values(sparse=74.76, inference=0.13, training=0.16),
        f"name=top_kast sparsity=0.95 backward=0.5 {STAR}": values(sparse=71.96, inference=0.08, training=0.22),
        f"name=top_kast sparsity=0.98 backward=0.9 {STAR}": values(sparse=67.06, inference=0.05, training=0.08),
        "name=top_kast sparsity=0.8 backward=0.0": values(sparse=75.64),
        "name=top_kast sparsity=0.8 backward=0.5": values(sparse=74.78),
        "name=top_kast sparsity=0.8 backward=0.8": values(sparse=72.19),
        "name=top_kast sparsity=0.9 backward=0.0": values(sparse=74.42),
        "name=top_kast sparsity=0.9 backward=0.5": values(sparse=74.09),
        "name=top_kast sparsity=0.9 backward=0.8": values(sparse=73.07),
        f"name=str sparsity= start=-3200.0 optimizer.weight_decay=2.251757813e-05 {SMOOTH}": values(
            sparse=74.31, inference=0.08
        ),
    },
    "imagenet-resnet50-dense": {"": values(dense=76.84, inference=1, training=1)},
    "imagenet-mobilenet": {
        "sparsity=0.75": values(sparse=70.3, twin=68.55, finetuned=71.63, inference=0.34, training=0.64),
        "sparsity=0.9": values(sparse=66.08, twin=67.47, finetuned=70.86, inference=0.18, training=0.56),
        f"sparsity=0.75 {MOBILE}": values(sparse=70.41, inference=0.36, training=0.66),
        f"sparsity=0.9 {MOBILE}": values(sparse=66.56, twin=67.65, finetuned=70.97, inference=0.21, training=0.58),
        f"name=rigl sparsity=0.75 distribution=erk {MOBILE}": values(sparse=68.39),
        f"name=rigl sparsity=0.9 distribution=erk {MOBILE}": values(sparse=63.58),
        f"name=rigl sparsity=0.75 distribution=erk {MOBILE} train.epochs=200": values(sparse=70.49),
        f"name=rigl sparsity=0.9 distribution=erk {MOBILE} train.epochs=200": values(sparse=65.92),
        f"name=rigl sparsity=0.75 distribution=erk {MOBILE} train.epochs=500": values(sparse=71.9),
        f"name=rigl sparsity=0.9 distribution=erk {MOBILE} train.epochs=500": values(sparse=68.1),
        f"name=str sparsity= start=-12800.0 optimizer.weight_decay=3.751757813e-05 {SMOOTH}": values(sparse=62.1),
    },
    "imagenet-mobilenet-dense": {"": values(dense=71.78, inference=1, training=1)},
    "cifar100-wrn28-10": {
        "schedule=cifar100_20 sparsity=0.5": values(sparse=79.6, std=0.17, inference=0.5, training=0.72),
        "schedule=cifar100_20 sparsity=0.75": values(sparse=80.0, std=0.17, inference=0.29, training=0.6),
        "schedule=cifar100_20 sparsity=0.9": values(sparse=79.1, std=0.07, inference=0.14, training=0.51),
        "schedule=cifar100_20 sparsity=0.95": values(sparse=78.2, std=0.12, inference=0.08, training=0.47),
        "schedule=cifar100_14 sparsity=0.5 model.bn_splits=4": values(sparse=79.99, training=0.75),
        "schedule=cifar100_14 sparsity=0.75 model.bn_splits=4": values(sparse=79.5, training=0.59),
        "schedule=cifar100_14 sparsity=0.9 model.bn_splits=4": values(sparse=79.0, training=0.47),
        "schedule=cifar100_14 sparsity=0.95 model.bn_splits=4": values(sparse=78.5, training=0.41),
        "schedule=cifar100_7 sparsity=0.5": values(sparse=79.92, training=0.73),
        "schedule=cifar100_7 sparsity=0.75": values(sparse=79.7, training=0.54),
        "schedule=cifar100_7 sparsity=0.9": values(sparse=78.4, training=0.39),
        "schedule=cifar100_7 sparsity=0.95": values(sparse=77.8, training=0.33),
        "name=gmp sparsity=0.5 run.finetune=false": values(sparse=79.2, std=0.17, inference=0.46),
        "name=gmp sparsity=0.75 run.finetune=false": values(sparse=78.9, std=0.14, inference=0.26),
        "name=gmp sparsity=0.9 run.finetune=false": values(sparse=77.7, std=0.23, inference=0.08),
        "name=gmp sparsity=0.95 run.finetune=false": values(sparse=76.6, std=0.07, inference=0.07),
    },
    "cifar100-wrn28-10-dense": {"": values(dense=79.0, std=0.25, inference=1, training=1)},
    "wikitext103-transformer-xl": {  # perplexities
        "sparsity=0.8": values(sparse=20.65, twin=20.24, finetuned=19.54),
        "sparsity=0.9": values(sparse=22.32, twin=21.0, finetuned=20.28),
        f"sparsity=0.8 {EMBEDDINGS}": values(sparse=20.83, twin=20.25, finetuned=19.68),
        f"sparsity=0.9 {EMBEDDINGS}": values(sparse=22.84, twin=21.34, finetuned=20.41),
        "name=top_kast sparsity=0.8 backward=0.0": values(sparse=19.8),
        "name=top_kast sparsity=0.8 backward=0.6": values(sparse=21.3),
        "name=top_kast sparsity=0.9 backward=0.8": values(sparse=25.1),
    },
    "wikitext103-transformer-xl-dense": {"": values(dense=18.95)},
}


def told(row: PaperRow) -> dict[str, float]:
    return {key: value for key, value in asdict(row).items() if key not in ("set", "note") and value is not None}


def test_numbers_of_the_paper() -> None:
    """All of them, and of no row more."""
    found = {
        name: {" ".join(settings_of(row)).replace("method.", ""): told(row) for row in recipe.paper}
        for name, recipe in RECIPES.items()
        if any(map(told, recipe.paper))
    }
    assert found == NUMBERS


def test_how_sparse_and_dense_models_agree() -> None:
    eighty, ninety = RECIPES["imagenet-resnet50"].paper[:2]
    assert "agree on 89.8 ± 0.3 % of images, cross-entropy 0.85 (GMP: 86.0 %, 1.03; SparseVD: 98.6 %)" in eighty.note
    assert "agree on 86.8 ± 1.5 % of images, cross-entropy 1.02 (GMP: 83.5 %, 1.29; SparseVD: 98.3 %)" in ninety.note


@pytest.mark.parametrize(("name", "index"), ROWS)
def test_each_row_stands_beside_its_own_run(name: str, index: int) -> None:
    """Its settings build, and no row takes the place of another."""
    row = RECIPES[name].paper[index]
    recipe = applied(name, row)
    method = recipe.build_method()
    assert row_for(recipe) is not None
    assert (row_for(recipe), beside(recipe, "nothing")) == (row, None)
    if row.sparse is not None:
        published = beside(recipe, "sparse.safetensors") or ""
        assert f"{published} ".startswith(f"{row.sparse:g} ")
        assert published.endswith("%") == (not name.startswith("wikitext"))
    if method is not None:
        assert method.budgets(method.layers(_meta(recipe.model.name)))


def test_what_the_paper_quotes_says_so() -> None:
    """Rivals of its ImageNet tables; it trained GMP on CIFAR-100 itself."""
    for name in IMAGENET:
        for row in RECIPES[name].paper:
            assert ("as quoted by the paper" in row.note) == ("method.name" in row.set)


def test_gmp_has_the_paper_s_epochs() -> None:
    row = next(row for row in RECIPES["cifar100-wrn28-10"].paper if row.set.get("method.name") == "gmp")
    assert str(applied("cifar100-wrn28-10", row).schedule()).startswith("schedule: 200 epochs, 50 dense")


@cache
def _meta(name: str) -> nn.Module:
    size = {"vocabulary": 267_735} if models.is_language_model(name) else {"classes": 1000}
    with torch.device("meta"):
        return models.build(name, **size)


def test_the_star_of_each_model_leaves_what_the_paper_says_dense() -> None:
    for name, dense in (("imagenet-resnet50", 9_408 + 2_048_000), ("imagenet-mobilenet", 45_504)):
        row = next(row for row in RECIPES[name].paper if row.note == "⋆")
        recipe = applied(name, row)
        method, model = recipe.build_method(), _meta(recipe.model.name)
        assert method is not None
        layers = method.layers(model)
        plain = RECIPES[name].build_method()
        assert plain is not None
        assert plain.layers(model).size - layers.size == dense


def test_training_costs_of_the_paper_follow_from_its_inference_costs() -> None:
    """3·F_C in compressed epochs, or what the method's card says, and at most 3·F in dense ones, over dense training as
    long as the recipe's own."""
    for name, recipe in RECIPES.items():
        for row in recipe.paper:
            method = applied(name, row).build_method()
            if method is None or row.inference is None or row.training is None:
                continue
            schedule = method.schedule
            dense, sparse = (float(length.value) for length in (schedule.dense_length, schedule.sparse_length))
            cost = (dense + sparse * method.sparse_flops(row.inference, 1) / 3) / recipe.epochs
            assert row.training == pytest.approx(cost, abs=0.08 if method.alternates else 0.02)
