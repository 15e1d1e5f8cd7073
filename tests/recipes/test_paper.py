"""The paper's value stands beside its own experiment, and beside no other."""

from dataclasses import fields, replace
from typing import Any

import pytest

from acdc.recipes import schema
from acdc.recipes.load import read
from acdc.recipes.paper import _decides, beside

NAME, PUBLISHED = "cifar100-wrn28-10", "79.1 ± 0.07 %"
DECIDE: dict[str, Any] = {
    "model.name": "resnet20", "model.bn_splits": 1, "model.options": {"depth": 10},
    "data.name": "cifar10", "data.crop": 1, "data.flip": False, "data.validation": 5, "data.corrupt": 5,
    "data.corrupt_kind": "uniform", "data.first_size": 16, "data.options": {"classes": 3},
    "optimizer.name": "adam", "optimizer.lr": 0.2, "optimizer.momentum": 0.5, "optimizer.nesterov": False,
    "optimizer.betas": (0.5, 0.5), "optimizer.eps": 0.1, "optimizer.weight_decay": 0.1,
    "rate.shape": "linear", "rate.per": "step", "rate.warmup": 3, "rate.milestones": (7,), "rate.gamma": 0.3,
    "rate.rewarm": 1.0, "rate.final": 0.5,
    "train.times": 2, "train.batch_size": 7, "train.label_smoothing": 0.1, "train.clip_norm": 0.001,
    "train.distill": 0.5,
    "method.name": "dense", "method.sparsity": 0.91, "method.schedule": "imagenet_200",
    "method.pattern": "block 4x4", "method.distribution": "uniform", "method.include": ("conv",),
    "method.exclude": ("fc",), "method.first_and_last_dense": True, "method.depthwise_dense": True,
    "method.options": {"reset": "nothing"},
}  # fmt: skip
DO_NOT: dict[str, Any] = {
    "data.bad_limit": 7, "data.full_size_by": 0.9, "data.size_step": 2,  # nothing grows
    "optimizer.bias_correction": False,  # which only LAMB has
    "train.epochs": 200,  # as many as there are already
    "train.accumulate": 2, "train.precision": "fp16", "train.ema": 0.9, "train.distill_temperature": 5.0,
    "train.channels_last": False, "train.threads": 3, "train.deterministic": True, "train.compile": "off",
    "train.cuda_graphs": "off", "train.parallel": "fsdp",
    "run.seeds": (5,), "run.baseline": True, "run.finetune": False, "run.recalibrate": False, "run.best": "compressed",
    "run.checkpoint_every": "1ep", "run.keep": 9,
}  # fmt: skip


def changed(setting: str, value: Any, said: schema.Recipe | None = None) -> schema.Recipe:
    said, (table, key) = said or read(NAME), setting.split(".")
    return replace(said, **{table: replace(getattr(said, table), **{key: value})})


def test_every_setting_is_known_to_decide_the_result_or_not() -> None:
    """A setting that is new here counts as one that decides, until someone knows better."""
    tables = (schema.Model, schema.Data, schema.Optimizer, schema.Rate, schema.Training, schema.Method, schema.Run)
    names = dict(zip(tables, ("model", "data", "optimizer", "rate", "train", "method", "run"), strict=True))
    settings = {f"{name}.{field.name}" for table, name in names.items() for field in fields(table)}
    assert settings == {*DECIDE, *DO_NOT}
    assert {field.name for field in fields(schema.Recipe)} == {*names.values(), "name", "about", "paper"}


@pytest.mark.parametrize("setting", DECIDE)
def test_another_result_is_not_the_paper_s(setting: str) -> None:
    other = changed(setting, DECIDE[setting], changed("train.epochs", 200))
    assert other != read(NAME)
    assert beside(other, "sparse.safetensors") != PUBLISHED


@pytest.mark.parametrize("setting", DO_NOT)
def test_the_same_result_computed_otherwise_is(setting: str) -> None:
    other = changed(setting, DO_NOT[setting])
    assert other != read(NAME)
    assert beside(other, "sparse.safetensors") == PUBLISHED


def test_bias_correction_counts_for_lamb() -> None:
    lamb = changed("optimizer.name", "lamb")
    assert _decides(lamb) != _decides(changed("optimizer.bias_correction", False, lamb))


def test_the_temperature_counts_where_something_is_distilled() -> None:
    """No row of the paper is of such a run."""
    distilled = changed("train.distill", 0.5)
    assert _decides(distilled) != _decides(changed("train.distill_temperature", 5.0, distilled))
