"""Every command in README and docs is accepted by acdc, make or Python: its options, recipes and settings exist."""

import argparse
import re
from importlib import import_module
from importlib.util import find_spec

import pytest

from acdc import methods
from acdc.cli import options
from acdc.recipes import load
from acdc.recipes.findings import RecipeError
from acdc.train.cells import read_variants
from tests.docs import commands
from tests.docs.blocks import ROOT

# Commands with names that the reader has just added; tests/test_contributing.py runs them.
ADDED = ("method.name=halfway", "model.name=perceptron")
COMMANDS = [command for command in commands.every() if not {*command.words} & {*ADDED}]
# Words that stand for a recipe of the reader's.
OWN_RECIPES = re.compile(r"[A-Z]+|[\w-]+\.toml")


def parsed(words: tuple[str, ...]) -> argparse.Namespace:
    """Read the words by the verb's own parser."""
    parser = argparse.ArgumentParser(prog="acdc", allow_abbrev=False, exit_on_error=False)
    import_module(f"acdc.cli.{words[0].replace('-', '_')}").add_to(parser.add_subparsers())
    return parser.parse_args(words)


def check_acdc(words: tuple[str, ...]) -> None:
    verb = import_module(f"acdc.cli.{words[0].replace('-', '_')}") if words != ("--help",) else None
    if verb is None or len(words) == 1:  # the help, or a verb by its name alone
        return
    args = parsed(words)
    recipe = getattr(args, "recipe", None)
    if recipe is not None and not OWN_RECIPES.fullmatch(recipe):
        load.read(recipe, options.settings(args) if hasattr(args, "set") else ())
    names = getattr(args, "methods", None) or ""
    assert set(filter(None, names.split(","))) <= {*methods.names(), "dense"}
    problems: list[str] = []
    read_variants(getattr(args, "variant", None) or [], problems)
    assert not problems


def check_make(words: tuple[str, ...]) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert next(word for word in words if "=" not in word and not word.startswith("-")) in targets


def check_module(words: tuple[str, ...]) -> None:
    assert find_spec(words[0]) is not None


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_are_accepted(command: commands.Command) -> None:
    program, *words = command.words
    try:
        if program == "acdc":
            check_acdc(tuple(words))
        elif program == "make":
            check_make(tuple(words))
        else:
            check_module(tuple(words[1:]))
    except SystemExit as refused:
        pytest.fail(f"acdc does not accept it: {refused}")


def test_what_is_wrong_would_be_noticed() -> None:
    for wrong in ("train digits --epoch 3", "train digit", "train digits --set train.epoch=3", "trian digits"):
        with pytest.raises((SystemExit, RecipeError, ImportError)):
            check_acdc(tuple(wrong.split()))


def test_commands_were_found_in_blocks_and_in_sentences() -> None:
    found = {str(command) for command in COMMANDS}
    assert "README.md: acdc train --resume runs/cifar100-wrn28-10-0001" in found
    assert "docs/methods-compared.md: acdc ls methods rigl" in found
    assert len(found) > 80
