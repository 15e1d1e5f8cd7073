"""acdc show: the recipe as TOML that reads back the same, the timeline, the paper's rows and their commands."""

import shlex
import tomllib
from pathlib import Path

import pytest

from acdc.cli import main
from acdc.cli.show import command, to_toml
from acdc.recipes import load
from acdc.schedule import Schedule


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["show", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", load.shipped())
def test_it_shows_the_recipe_as_a_file_would_say_it(capsys: pytest.CaptureFixture[str], name: str) -> None:
    recipe = load.read(name)
    tables = tomllib.loads(to_toml(recipe))
    tables["paper"] = tomllib.loads(load.text_of(name).decode()).get("paper", [])
    assert load.from_tables(name, tables) == recipe
    out = shown(capsys, name)
    assert to_toml(recipe) in out
    assert str(recipe.schedule() or f"dense training, {recipe.epochs} epochs") in out


def test_odd_values_survive() -> None:
    settings = ['method.distribution={ "stages.*" = 0.8, fc = 0.5 }', r'method.exclude=["a\"b", "ü\\"]']
    recipe = load.read("digits", settings)
    assert load.from_tables("digits", tomllib.loads(to_toml(recipe))) == recipe


def test_settings_show_in_recipe_and_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(
        capsys, "cifar100-wrn28-10", "--set", "method.schedule=cifar100_14", "--sparsity", "0.5", "--seed", "1,2"
    )
    assert "sparsity = 0.5" in out
    assert "seeds = [1, 2]" in out
    assert str(Schedule.cifar100_14()) in out


@pytest.mark.parametrize("name", [name for name in load.shipped() if load.read(name).paper])
def test_each_row_of_the_paper_has_its_command(capsys: pytest.CaptureFixture[str], name: str) -> None:
    out = shown(capsys, name)
    lines = [line.split(maxsplit=1)[1] for line in out.splitlines() if "acdc train" in line]
    rows = load.read(name).paper
    assert lines == [command(name, row) for row in rows]
    assert [line for line in lines if shlex.split(line)[:3] != ["acdc", "train", name]] == []
    for row in rows:
        assert row.note in out


def test_numbers_of_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "imagenet-resnet50").splitlines()
    header = next(line for line in lines if line.startswith("row"))
    assert header.split("  ")[0] == "row"
    assert all(word in header for word in ("sparse", "dense twin", "fine-tuned", "inference", "training"))
    assert ["2", "75.03", "±", "0.1", "73.25", "76.56", "0.18x", "0.58x"] in [line.split() for line in lines]
    assert "79.00 ± 0.25" in shown(capsys, "cifar100-wrn28-10-dense")


def test_a_file_s_commands_name_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "my own.toml"
    assert main(["cp", "imagenet-mobilenet", str(file)]) == 0
    capsys.readouterr()
    assert f"acdc train '{file}' --set method.sparsity=0.75" in shown(capsys, str(file))


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "digit"]) == 2
    assert "did you mean digits?" in capsys.readouterr().err
    assert main(["show", "digits", "--set", "train.lr=1", "--set", "run.keep=0"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("acdc: digits:\n")
    assert "did you mean optimizer.lr?" in error
    assert "run.keep = 0" in error
