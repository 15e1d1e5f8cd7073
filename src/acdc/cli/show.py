"""acdc show: print a recipe with every setting, its timeline, and the paper's results with a command for each."""

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from acdc.cli import options
from acdc.cli.output import show_table
from acdc.methods.acdc import ACDC
from acdc.recipes.load import write_value
from acdc.recipes.paper import settings_of
from acdc.recipes.schema import PaperRow, Recipe

_TABLES = ("model", "data", "optimizer", "rate", "train", "method", "run")


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "show",
        description="Show a recipe with every setting, its timeline, and what the paper reports for it, each with the "
        "command that trains it.",
        allow_abbrev=False,
    )
    options.add_recipe(parser)
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    recipe = options.read_recipe(args)
    print(to_toml(recipe))
    schedule = recipe.schedule()
    print(schedule if schedule else f"dense training, {recipe.epochs} epochs")
    if isinstance(method := recipe.build_method(), ACDC) and method.epochs is not None:
        print("chosen by the number of epochs; acdc check says what the number of steps makes of it, and why")
    if recipe.paper:
        _paper(recipe, args.recipe)
    return 0


def to_toml(recipe: Recipe) -> str:
    """Write every setting that has a value, including defaults, as in a recipe file, without the paper's rows."""
    return "\n".join(_lines(recipe))


def command(name: str, row: PaperRow) -> str:
    """Return the command for a row of the paper."""
    words = [word for setting in settings_of(row) for word in ("--set", setting)]
    return shlex.join(["acdc", "train", name, *words])


def _lines(recipe: Recipe) -> Iterator[str]:
    yield f"about = {write_value(recipe.about)}\n"
    for table in _TABLES:
        part = getattr(recipe, table)
        yield f"[{table}]"
        settings = {f.name: getattr(part, f.name) for f in fields(part) if f.name != "options"}
        for key, value in {**settings, **getattr(part, "options", {})}.items():
            if value is not None:
                yield f"{key} = {write_value(value)}"
        yield ""


def _paper(recipe: Recipe, name: str) -> None:
    columns = ("sparse", "dense", "twin", "finetuned", "inference", "training")
    used = [key for key in columns if any(getattr(row, key) is not None for row in recipe.paper)]
    titles = {"twin": "dense twin", "finetuned": "fine-tuned"}
    header = ("row", *(titles.get(key, key) for key in used))
    rows = [(str(number), *(_cell(row, key) for key in used)) for number, row in enumerate(recipe.paper, 1)]
    if used:
        title = "The paper's results: accuracies in %, costs as fractions of the dense model's"
        show_table(title, header, rows)
    print(
        "\nCommands for the same settings:" if used else "\nThe paper's findings, with commands for the same settings:"
    )
    for number, row in enumerate(recipe.paper, 1):
        print(f"{number:>3}  {command(name, row)}")
        if row.note:
            print(f"     {row.note}")


def _cell(row: PaperRow, key: str) -> str:
    value = getattr(row, key)
    if value is None:
        return ""
    if key in ("inference", "training"):
        return f"{value:.2f}x"
    main = "sparse" if row.sparse is not None else "dense"
    return f"{value:.2f}{f' ± {row.std:g}' if row.std is not None and key == main else ''}"
