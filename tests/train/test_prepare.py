"""A run about to start: everything is settled once, and all that is wrong is named at once."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from acdc import methods, models
from acdc.cli import main
from acdc.core.method import Method
from acdc.errors import UsageError
from acdc.recipes import load
from acdc.recipes.schema import Recipe
from acdc.train import prepare as preparing
from acdc.train.loading import LoadedData
from acdc.train.prepare import RunOptions, inspect, plan_stages, prepare, read_recipe
from tests.train.problems import recipe

CPU = RunOptions(device=torch.device("cpu"))
SHORT = ["--epochs", "4", "--device", "cpu", "--set", "run.baseline=false", "--set", "run.finetune=false"]


class Counts:
    """How often a command built a method, a model with weights, and a plan."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.methods = self.models = self.plans = 0
        build_method, build_model, plan = methods.build, models.build, preparing.plan_stages

        def count_methods(*args: Any, **knobs: Any) -> Any:
            self.methods += 1
            return build_method(*args, **knobs)

        def count_models(*args: Any, **options: Any) -> Any:
            model = build_model(*args, **options)
            self.models += next(model.parameters()).device.type != "meta"
            return model

        def count_plans(recipe: Recipe, method: Method | None) -> Any:
            self.plans += 1
            return plan(recipe, method)

        monkeypatch.setattr(methods, "build", count_methods)
        monkeypatch.setattr(models, "build", count_models)
        monkeypatch.setattr(preparing, "plan_stages", count_plans)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    """A recipe of the user's own: one that ships is read once more, to be compared with the paper's settings."""
    assert main(["cp", "digits", str(tmp_path / "mine.toml")]) == 0
    return str(tmp_path / "mine.toml")


def test_check_builds_one_method_one_model_and_one_plan(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(monkeypatch)
    assert main(["check", mine, "--no-timing", *SHORT]) == 0
    assert (counts.methods, counts.models, counts.plans) == (1, 1, 1)


def test_train_and_resume_build_one_method_one_plan_and_a_model_for_each_use(
    mine: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out, counts = tmp_path / "run", Counts(monkeypatch)
    assert main(["train", mine, "--no-report", *SHORT, "--out", str(out)]) == 0
    left = len(json.loads((out / "result.json").read_text())["models"])
    assert left == 2, "the sparse model and its dense twin"
    assert (counts.methods, counts.models, counts.plans) == (1, 1 + left, 1), "one to train, one to measure each file"
    (out / "result.json").unlink()
    again = Counts(monkeypatch)
    assert main(["train", "--no-report", "--resume", str(out), "--device", "cpu"]) == 0
    assert (again.methods, again.models, again.plans) == (1, 1 + left, 1)
    measured = Counts(monkeypatch)
    assert main(["eval", str(out), "--device", "cpu"]) == 0
    assert (measured.methods, measured.models, measured.plans) == (1, left, 0)


def test_preparing_initialises_no_model() -> None:
    prepared = prepare(recipe(), CPU)
    assert prepared.skeleton.get_parameter("fc.weight").is_meta
    assert prepared.layers is not None
    assert prepared.layers.size == sum(weight.param.numel() for weight in prepared.layers.weights)
    assert prepared.method is prepared.recipe.build_method()
    assert not prepared.new_model().get_parameter("fc.weight").is_meta


def test_what_device_data_and_recipe_lack_is_raised_together() -> None:
    problems: list[str] = []
    read, mistakes = read_recipe("digits", ["train.precision=fp16", "data.crop=9", "run.keep=0"], problems)
    assert read is not None
    with pytest.raises(UsageError) as refused:
        prepare(read, CPU, mistakes=mistakes, problems=problems)
    text = "\n".join(refused.value.problems)
    for part in ("digits:", "run.keep", 'train.precision = "fp16": it needs a GPU', "data.crop=9: images of digits"):
        assert part in text


def test_data_is_closed_where_the_rest_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    monkeypatch.setattr(LoadedData, "close", lambda data: closed.append(data))
    with pytest.raises(UsageError, match="matches no weight"):
        prepare(recipe('method.exclude=["nope"]'), CPU)
    assert len(closed) == 1


def test_a_run_that_has_begun_is_warned_of_what_a_new_one_is_refused_for() -> None:
    idle = recipe("method.name=rigl", "method.every=1000st", "run.finetune=false")
    with pytest.raises(UsageError, match=r"method\.every"):
        prepare(idle, CPU)
    (warning,) = prepare(idle, CPU, resuming=True).warnings
    assert warning.startswith("method.every=")


def test_a_device_that_may_change_is_no_mistake() -> None:
    half = load.read("digits", ["train.precision=fp16"])
    assert any("train.precision" in text for text in inspect(half, CPU).warnings)
    with pytest.raises(UsageError, match=r"train\.precision"):
        inspect(half, CPU, device_is_final=True)


def test_stages_follow_one_another() -> None:
    plan = plan_stages(load.read("digits", ["train.epochs=8"]))
    assert list(plan) == ["dense", "acdc", "finetune"]
    assert plan["finetune"].first + len(plan["finetune"].kinds) == 8
    assert list(plan_stages(recipe("method.name=dense", "method.sparsity=", "run.finetune=false"))) == ["dense"]
