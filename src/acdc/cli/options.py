"""Options that several verbs share: the recipe with its settings, and where to run it."""

import argparse
import os
import re
from typing import TYPE_CHECKING, Any

from acdc.errors import UsageError

if TYPE_CHECKING:
    import torch

    from acdc.recipes.schema import Recipe

DEVICES = ("auto", "cpu", "cuda")
# Options that abbreviate a setting.
SHORTCUTS = {"sparsity": "method.sparsity", "epochs": "train.epochs", "times": "train.times", "lr": "optimizer.lr"}


def add_recipe(parser: Any, *, default: str | None = None) -> None:
    usual = f" (default {default})" if default else ""
    parser.add_argument(
        "recipe", nargs="?" if default else None, default=default, help=f"a name from `acdc ls`, or a file{usual}"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=VALUE", help="change a setting of the recipe; repeatable"
    )
    for option, key in SHORTCUTS.items():
        parser.add_argument(f"--{option}", metavar="X", help=f"short for --set {key}=X")
    parser.add_argument("--seed", "--seeds", dest="seeds", metavar="N,N", help="short for --set run.seeds=[N,N]")


def add_place(parser: Any) -> None:
    parser.add_argument("--device", default="auto", help=f"{', '.join(DEVICES)} (default %(default)s)")
    parser.add_argument(
        "--data", metavar="DIR", help="folder of the data sets (default $ACDC_DATA, or ./data), or a text"
    )
    parser.add_argument("--workers", metavar="N", help="processes that decode images (default: one per core)")


def settings(args: argparse.Namespace) -> list[str]:
    """Return the settings given on top of the recipe, as `a.b=value`."""
    short = [f"{key}={getattr(args, option)}" for option, key in SHORTCUTS.items() if getattr(args, option) is not None]
    if args.seeds is not None:
        if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", args.seeds):
            raise UsageError(
                [f"--seeds {args.seeds}: expected whole numbers separated by commas, such as --seeds 0,1,2"]
            )
        short.append(f"run.seeds=[{args.seeds}]")
    return [*args.set, *short]


def readable_settings(args: argparse.Namespace, problems: list[str]) -> list[str]:
    """Return the settings as `settings` does; if seeds cannot be read, add to `problems` and use the recipe's."""
    try:
        return settings(args)
    except UsageError as error:
        problems += error.problems
        return settings(argparse.Namespace(**{**vars(args), "seeds": None}))


def read_recipe(args: argparse.Namespace) -> "Recipe":
    """Read the recipe with the given settings, or raise a UsageError with all its mistakes."""
    from acdc.recipes import load
    from acdc.recipes.findings import RecipeError

    try:
        return load.read(args.recipe, settings(args))
    except RecipeError as error:
        raise UsageError([f"{error.source}:", *error.problems]) from None


def read_device(text: str) -> "tuple[torch.device, str]":
    """Return the device, and why it was chosen."""
    if text not in DEVICES:
        raise UsageError([f"--device {text}: expected one of {', '.join(DEVICES)}; write --device auto"])
    import torch

    available = torch.cuda.is_available()
    if text == "cuda" and not available:
        raise UsageError(["--device cuda: torch sees no GPU that it can use; write --device cpu"])
    reason = "as requested"
    if text == "auto":
        text = "cuda" if available else "cpu"
        reason = f"chosen because {'a GPU was found' if available else 'torch sees no GPU'}"
    index = int(os.environ.get("LOCAL_RANK", "0")) if text == "cuda" else None
    return torch.device(text, index) if index is not None else torch.device(text), reason


def read_workers(text: str | None) -> int | None:
    if text is None or (text.isdigit() and len(text) < 5):
        return None if text is None else int(text)
    raise UsageError([f"--workers {text}: expected a whole number, 0 or more; write --workers {os.cpu_count()}"])
