"""What several verbs share: options that say where to run, and reading a recipe with settings on top."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acdc.errors import UsageError
from acdc.recipes.mistakes import RecipeError, SettingError
from acdc.train import tabulate

if TYPE_CHECKING:
    import torch

    from acdc.core.method import Method
    from acdc.recipes.schema import Recipe
    from acdc.sparsity.layers import Layers

DEVICES = ("auto", "cpu", "cuda")
# Options that are short for a setting.
SHORTCUTS = {"sparsity": "method.sparsity", "epochs": "train.epochs", "lr": "optimizer.lr"}


def add_recipe(parser: Any, *, default: str | None = None) -> None:
    said = f" (default {default})" if default else ""
    parser.add_argument(
        "recipe", nargs="?" if default else None, default=default, help=f"a name from `acdc ls`, or a file{said}"
    )
    add_settings(parser)


def add_settings(parser: Any) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=VALUE", help="change a setting of the recipe; repeatable"
    )
    for option, key in SHORTCUTS.items():
        parser.add_argument(f"--{option}", metavar="X", help=f"short for --set {key}=X")
    parser.add_argument("--seed", "--seeds", dest="seeds", metavar="N,N", help="short for --set run.seeds=[N,N]")


def add_place(parser: Any) -> None:
    parser.add_argument("--device", default="auto", help=f"{', '.join(DEVICES)} (default %(default)s)")
    parser.add_argument("--data", metavar="DIR", help="where data sets lie (default $ACDC_DATA, or ./data)")
    parser.add_argument("--workers", metavar="N", help="processes that decode images (default: one for each core)")


def settings(args: argparse.Namespace) -> list[str]:
    """Everything said on top of the recipe, as `a.b=value`."""
    said = [f"{key}={getattr(args, option)}" for option, key in SHORTCUTS.items() if getattr(args, option) is not None]
    if args.seeds is not None:
        if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", args.seeds):
            raise UsageError([f"--seeds {args.seeds}: expected whole numbers with commas between; type --seeds 0,1,2"])
        said.append(f"run.seeds=[{args.seeds}]")
    return [*args.set, *said]


def read_recipe(args: argparse.Namespace) -> "Recipe":
    return read(args.recipe, settings(args))


@dataclass(frozen=True)
class Examined:
    """A recipe with settings on top, and all that is wrong with it; what is not can be looked at further."""

    recipe: "Recipe | None"  # None where too little of it can be read
    wrong: tuple[SettingError, ...]
    problems: tuple[str, ...]  # the same for people, under the recipe's name


def data_is_wrong(wrong: Sequence[SettingError]) -> bool:
    """Whether what is wrong with a recipe keeps its data from being looked at."""
    return any(one.table == "data" or one.setting in ("run.seeds", "train.batch_size") for one in wrong)


def examine(args: argparse.Namespace) -> Examined:
    typed: list[str] = []
    found = examine_with(args.recipe, readable_settings(args, typed))
    wrong = (*found.wrong, *(SettingError("", text) for text in typed))
    return replace(found, wrong=wrong, problems=(*found.problems, *typed))


def readable_settings(args: argparse.Namespace, problems: list[str]) -> list[str]:
    """As `settings`; seeds that cannot be read go to `problems`, and the recipe's own stand in."""
    try:
        return settings(args)
    except UsageError as error:
        problems += error.problems
        return settings(argparse.Namespace(**{**vars(args), "seeds": None}))


def examine_with(name: str, said: Sequence[str]) -> Examined:
    from acdc.recipes import load

    try:
        return Examined(load.read(name, said), (), ())
    except RecipeError as error:
        return Examined(error.recipe, error.mistakes, (f"{error.source}:", *error.problems))


def read(name: str, said: Sequence[str]) -> "Recipe":
    """A recipe with settings on top; what is wrong with it is the user's to fix."""
    from acdc.recipes import load

    try:
        return load.read(name, said)
    except RecipeError as error:
        raise UsageError([f"{error.source}:", *error.problems]) from None


def resume(out: Path, processes: int = 1) -> str:
    """What to type to go on with a run; on every node, where there are several."""
    if processes == 1:
        return f"acdc train --resume {out}"
    nodes = max(1, processes // int(os.environ.get("LOCAL_WORLD_SIZE", processes)))
    several = f"--nnodes {nodes} " if nodes > 1 else ""
    return f"torchrun {several}--nproc-per-node {processes // nodes} -m acdc train --resume {out}"


def report_of(run: Path) -> str:
    """Write a run's report, and say where it is, or why there is none: a run is complete without it."""
    from acdc.report.read import ReportError
    from acdc.report.write import write_report
    from acdc.runs.decode import RecordError

    try:
        return f"report: {write_report(run)}"
    except (ReportError, RecordError, OSError) as error:
        return f"no report: {error}"
    except Exception as error:  # a figure that cannot be drawn must not fail hours of training
        return f"no report: it could not be drawn ({type(error).__name__}: {error}); acdc report {run} says where"


def read_device(text: str) -> "tuple[torch.device, str]":
    """The device, and why this one."""
    if text not in DEVICES:
        raise UsageError([f"--device {text}: expected one of {', '.join(DEVICES)}; type --device auto"])
    import torch

    available = torch.cuda.is_available()
    if text == "cuda" and not available:
        raise UsageError(["--device cuda: expected a GPU that torch can use, and it sees none; type --device cpu"])
    if text == "auto":
        found = "a GPU was found" if available else "torch sees no GPU"
        return _device("cuda" if available else "cpu"), f"chosen because {found}"
    return _device(text), "as asked"


def read_workers(text: str | None) -> int | None:
    if text is None or (text.isdigit() and len(text) < 5):
        return None if text is None else int(text)
    raise UsageError([f"--workers {text}: expected a whole number, 0 or more; type --workers {os.cpu_count()}"])


def show_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> None:
    """The first `text` columns are words, the others numbers. Lines and no colour where stdout is no terminal."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        from rich.console import Console as Terminal

        terminal = Terminal()
        if not terminal.is_dumb_terminal:
            tabulate.show(terminal, title, header, rows, text=text)
            return
    for line in tabulate.plain(title, header, rows, text=text):
        print(line)


def in_fp32(recipe: "Recipe") -> str:
    """What is said of a model that is run in fp32, as this device cannot compute in the precision it was trained in."""
    why = "needs a GPU" if recipe.train.precision == "fp16" else "crashes on this CPU: see acdc doctor"
    return f"precision: fp32 (trained in {recipe.train.precision}, which {why})"


def judged(images: int, unreadable: int, noun: str = "images") -> str:
    """The test images an accuracy is of."""
    if not unreadable:
        return f"{images:,} {noun}"
    return f"{images - unreadable:,} of {images:,} {noun} ({unreadable:,} cannot be read)"


def compressed(method: "Method", layers: "Layers") -> list[str]:
    """Which weights a method prunes, or rounds, and which it leaves."""
    left = [f"left dense: {name} ({reason})" for name, reason in layers.left_dense.items()]
    return [f"{method.compression()}: {layers.size:,} weights in {len(layers.weights)} layers", *left]


def sparsity_of(method: "Method") -> str:
    """As a run's introduction says it."""
    if method.sparsity is not None:
        return f"{method.sparsity:.4g}"
    return "by layer" if method.needs_sparsity else f"decided by {method.decided_by}"


def si(value: float, digits: int = 3) -> str:
    """1.23 G, 45.6 M: with the prefix of a thousand's power."""
    for factor, unit in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.{digits}g} {unit}"
    return f"{value:.{digits}g}"


def _device(kind: str) -> "torch.device":
    import torch

    return torch.device(kind, int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device(kind)
