"""acdc ls: list what can be named in a command or a recipe."""

import argparse
import tomllib
from collections.abc import Callable, Mapping
from inspect import getdoc
from typing import Any

from acdc import data, methods, models
from acdc.cli.output import show_table
from acdc.errors import UsageError
from acdc.recipes import load
from acdc.schedule import Schedule


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "ls",
        description="List what can be named: recipes for acdc train, and models, data sets, schedules, methods and "
        "criteria for a recipe.",
        allow_abbrev=False,
    )
    parser.add_argument("what", nargs="?", default="recipes", choices=tuple(_LISTS), help="default %(default)s")
    parser.add_argument("name", nargs="?", help="a method or criterion, to show its card")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        _LISTS[args.what]()
        return 0
    if args.what not in _CARDS:
        raise UsageError(
            [f"acdc ls {args.what} {args.name}: only methods and criteria have cards; for a recipe, use acdc show"]
        )
    try:
        print(_CARDS[args.what](args.name))
    except ValueError as error:
        raise UsageError([str(error)]) from None
    return 0


def _recipes() -> None:
    rows = []
    for name, path in load.shipped().items():
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        model, data_set = tables["model"]["name"], tables["data"]["name"]
        rows.append((name, model, data_set, str(_epochs(name, tables)), tables["about"]))
    show_table("Recipes, for acdc train NAME", ("name", "model", "data", "epochs", "about"), rows, text=5)
    print("\nacdc show NAME shows one, acdc check NAME predicts its cost, acdc cp NAME FILE copies it for editing")


def _epochs(name: str, tables: Mapping[str, Any]) -> int:
    """Return a recipe's epochs without reading it, which would import torch: a list should appear at once."""
    epochs, schedule = tables.get("train", {}).get("epochs"), tables.get("method", {}).get("schedule")
    if epochs is None and isinstance(schedule, str):
        return Schedule.named()[schedule]().total_steps(1)
    if epochs is None:
        return load.read(name).epochs
    return epochs


def _models() -> None:
    rows = [(name, models.describe(name)) for name in models.names()]
    show_table("Models, for model.name", ("name", "about"), rows, text=2)


def _data() -> None:
    rows = [(name, data.describe(name).summary) for name in data.names()]
    show_table("Data sets, for data.name", ("name", "about"), rows, text=2)
    print(f"\nfiles are expected in {data.find_root()}: set ACDC_DATA or use --data DIR for another folder")


def _schedules() -> None:
    rows = []
    for name, make in Schedule.named().items():
        schedule = make()
        lengths = (schedule.total, schedule.dense_length, schedule.sparse_length)
        rows.append((name, _first_line(make), *(f"{int(length.value)}" for length in lengths if length)))
    header = ("name", "about", "epochs", "dense", "compressed")
    show_table("Schedules, for method.schedule", header, rows, text=2)
    knobs = 'warmup = "10ep", sparse = "5ep", dense = "5ep", last_dense = "10ep", final_sparse = "15ep"'
    print(f"\nor your own lengths: method.schedule = {{ {knobs} }}, and train.epochs")
    print('or "paper" and train.epochs, for the proportions of imagenet over any number of epochs')
    print("or train.epochs alone, for phases chosen by the number of epochs and steps")


def _methods() -> None:
    rows = [(name, methods.card(name).partition("\n")[0].rstrip(".")) for name in methods.names()]
    rows.append(("dense", "plain training: nothing is pruned"))
    show_table("Methods, for method.name", ("name", "about"), rows, text=2)
    print("\nacdc ls methods NAME shows a method's card: idea, equation, knobs, costs, reference")


def _criteria() -> None:
    from acdc import criteria

    rows = [(name, criteria.card(name).partition("\n")[0].rstrip(".")) for name in criteria.names()]
    show_table("Criteria, for method.criterion of acdc, gmp and one_shot", ("name", "keeps"), rows, text=2)
    print("\nwith knobs: --set method.criterion='{name=\"woodfisher\", steps=20}'")
    print("acdc ls criteria NAME shows a criterion's card: formula, costs, reference, knobs")


def _criterion(name: str) -> str:
    from acdc import criteria

    return criteria.card(name)


def _first_line(thing: object) -> str:
    return (getdoc(thing) or "").partition("\n")[0].rstrip(".")


_LISTS: dict[str, Callable[[], None]] = {
    "recipes": _recipes,
    "models": _models,
    "data": _data,
    "schedules": _schedules,
    "methods": _methods,
    "criteria": _criteria,
}
_CARDS: dict[str, Callable[[str], str]] = {"methods": methods.card, "criteria": _criterion}
