"""Damaged recipes: `acdc check` refuses them in words, and what it lets pass, `acdc train` takes as well."""

import copy
import random
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from acdc.cli import main
from acdc.errors import UsageError
from acdc.recipes.load import shipped, write_value
from acdc.train.prepare import RunOptions, prepare, read_recipe
from tests.fuzz.mutate import damaged_bytes, damaged_value

BASE = tomllib.loads(shipped()["digits"].read_text(encoding="utf-8"))
SETTINGS = (
    "method.sparsity", "method.pattern", "method.distribution", "method.schedule", "method.include", "method.name",
    "method.criterion", "method.embeddings", "train.epochs", "train.threads", "train.accumulate", "train.batch_size",
    "train.label_smoothing", "train.clip_norm", "train.distill", "train.ema", "optimizer.lr", "optimizer.betas",
    "optimizer.eps", "optimizer.weight_decay", "optimizer.momentum", "rate.shape", "rate.warmup", "rate.milestones",
    "rate.gamma", "rate.rewarm", "data.crop", "data.validation", "data.corrupt", "data.bad_limit", "run.seeds",
    "run.keep", "run.checkpoint_every", "model.width", "model.name", "data.name",
)  # fmt: skip
VALUES = (
    "0", "1", "-1", "2", "8", "0.5", "-0.5", "1.5", "1e308", "-1e308", "5e-324", "nan", "inf", "true", '""', '"x"',
    '"2:4"', '"block 4x4"', '"10ep"', '"1st"', '"0ep"', '"50%"', f'"{"9" * 400}ep"', "[]", "[1]", "[0, 1]", "[[]]",
    "{}", '{ a = 1 }', '{ warmup = "1ep" }', "1979-05-27", "9" * 30, "9" * 400, "9" * 5_000, "0x" + "f" * 5_000,
    "[" * 3_000, '"' + "a" * 20_000 + '"', "rigl", "gmp", "dense", "str", "erk", '"\\u0000"', '"("', "1_000_000",
)  # fmt: skip


def damaged(dice: random.Random) -> bytes:
    tables = damaged_value(copy.deepcopy(BASE), dice)
    try:
        lines = [f"{key} = {write_value(part)}" for key, part in tables.items()]
        return "\n".join(lines).encode()
    except (AttributeError, ValueError, UnicodeEncodeError):  # no table any more, or nothing that a file can hold
        return damaged_bytes(shipped()["digits"].read_bytes(), dice)


def train_takes(recipe: str, settings: list[str]) -> bool:
    """Whether `acdc train` would begin: all that it looks at before it makes a folder."""
    problems: list[str] = []
    read, mistakes = read_recipe(recipe, settings, problems)
    if read is None:
        return False
    try:
        prepare(read, RunOptions(device=torch.device("cpu"), workers=0), mistakes=mistakes, problems=problems)
    except UsageError:
        return False
    return True


def both(recipe: str, settings: list[str], capsys: pytest.CaptureFixture[str]) -> bool:
    words = [word for setting in settings for word in ("--set", setting)]
    code = main(["check", recipe, *words, "--no-timing", "--device", "cpu"])
    error = capsys.readouterr().err
    assert code in (0, 2)
    assert "Traceback" not in error
    assert bool(code) == bool(error), error
    assert train_takes(recipe, settings) == (code == 0), (settings, error)
    return code == 0


@pytest.mark.filterwarnings("default")
def test_files(tmp_path: Path, capsys, mutations: Callable[..., range]) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(shipped()["digits"].read_bytes())
    assert both(str(path), [], capsys), "without damage it is taken"
    for seed in mutations(short=8, long=2_000):
        dice = random.Random(f"recipe {seed}")
        text = damaged(dice) if dice.random() < 0.7 else damaged_bytes(shipped()["digits"].read_bytes(), dice)
        path.write_bytes(text)
        both(str(path), [], capsys)


@pytest.mark.filterwarnings("default")
def test_settings(capsys, mutations: Callable[..., range]) -> None:
    assert both("digits", ["train.epochs=8"], capsys), "a value that is allowed is taken"
    for seed in mutations(short=12, long=2_000):
        dice = random.Random(f"set {seed}")
        chosen = [f"{dice.choice(SETTINGS)}={dice.choice(VALUES)}" for _ in range(dice.choice((1, 1, 2)))]
        both("digits", chosen, capsys)
