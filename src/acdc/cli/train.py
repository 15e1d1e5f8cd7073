"""acdc train: the default run, on scikit-learn's digits."""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acdc.cli.errors import UsageError
from acdc.data import digits
from acdc.methods.acdc import ACDC
from acdc.models.resnet_cifar import digits_net
from acdc.sparsity.distributions import check_sparsity
from acdc.sparsity.layers import find_prunable
from acdc.sparsity.patterns import NM, Unstructured
from acdc.train import experiment, folder
from acdc.train.console import Console, open_console
from acdc.train.loop import DivergedError
from acdc.train.recipe import Recipe

DEFAULT = Recipe()
SPARSITY = 0.9
PATTERNS = {"unstructured": Unstructured(), "2:4": NM(2, 4)}
DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Settings:
    recipe: Recipe
    method: ACDC
    device: torch.device
    why_device: str
    out: Path | None


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "train",
        help="train the default run: a dense baseline, then AC/DC",
        description="Train a small residual network on scikit-learn's digits: a dense baseline, AC/DC by the same "
        "recipe, and AC/DC's dense twin. Writes a run folder and ends with a table.",
        allow_abbrev=False,
    )
    # Values stay text here: `resolve` reads them, so that it can report all that is wrong at once.
    parser.add_argument("--sparsity", metavar="S", help=f"fraction of zeros (default {SPARSITY})")
    parser.add_argument("--pattern", default="unstructured", help=f"{' or '.join(PATTERNS)} (default unstructured)")
    parser.add_argument("--epochs", default=str(DEFAULT.epochs), metavar="N", help="4 or more (default %(default)s)")
    parser.add_argument("--batch-size", default=str(DEFAULT.batch_size), metavar="N", help="default %(default)s")
    parser.add_argument("--lr", default=str(DEFAULT.lr), help="highest learning rate (default %(default)s)")
    parser.add_argument("--seed", default=str(DEFAULT.seed), metavar="N", help="default %(default)s")
    parser.add_argument("--device", default="auto", help=f"{', '.join(DEVICES)} (default %(default)s)")
    parser.add_argument("--out", metavar="DIR", help="a new or empty folder (default runs/digits-0001, -0002, ...)")
    parser.set_defaults(verb=run)


def run(args: argparse.Namespace) -> int:
    settings = resolve(args)
    try:
        data = digits.load_digits(settings.device)
    except ModuleNotFoundError as error:
        raise UsageError([str(error)]) from None
    try:
        out = folder.claim(settings.out, "digits")
    except OSError as error:
        problem = f"--out {settings.out or 'runs'}: {error.strerror}; type another folder after --out"
        raise UsageError([problem]) from None

    recipe, method = settings.recipe, settings.method
    asked = {"command": "train", "dataset": "digits", "model": "digits_net"}
    try:
        with open_console(experiment.plan(recipe, method)) as console:
            _introduce(console, settings, data, out)
            outcomes = experiment.run(
                lambda: digits_net(seed=recipe.seed), data, recipe, method, out, console, settings=asked
            )
            _show(console, outcomes, out)
    except KeyboardInterrupt:
        print(f"\nacdc: stopped; the epochs so far are in {out / 'metrics.jsonl'}", file=sys.stderr)
        return 130
    except DivergedError as error:
        print(f"acdc: {error}; type a lower --lr, such as --lr {recipe.lr / 10:g}", file=sys.stderr)
        print(f"acdc: the epochs so far are in {out / 'metrics.jsonl'}", file=sys.stderr)
        return 1
    return 0


def resolve(args: argparse.Namespace) -> Settings:
    """Read and check every option. Nothing is created yet."""
    problems: list[str] = []

    def read(option: str, reader: Callable[[str], Any]) -> Any:
        text = getattr(args, option.removeprefix("--").replace("-", "_"))
        try:
            return None if text is None else reader(text)
        except ValueError as error:
            problems.append(f"{option} {text}: {error}")

    epochs = read("--epochs", lambda text: _whole(text, 4, 100_000, f"--epochs {DEFAULT.epochs}"))
    batch_size = read("--batch-size", lambda text: _whole(text, 1, digits.TRAIN, f"--batch-size {DEFAULT.batch_size}"))
    seed = read("--seed", lambda text: _whole(text, 0, 2**32 - 1, "--seed 0"))
    lr = read("--lr", _positive)
    pattern = read("--pattern", lambda text: PATTERNS[_choice(text, PATTERNS, "--pattern 2:4")])
    sparsity = read("--sparsity", lambda text: _sparsity(text, pattern))
    device = read("--device", _device)
    out = read("--out", _out)
    if problems:
        raise UsageError(problems)
    if sparsity is None and pattern.sparsity is None:
        sparsity = SPARSITY
    return Settings(
        recipe=Recipe(epochs=epochs, batch_size=batch_size, lr=lr, seed=seed),
        method=ACDC(sparsity=sparsity, epochs=epochs, pattern=pattern),
        device=device[0],
        why_device=device[1],
        out=out,
    )


def _whole(text: str, least: int, most: int, instead: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise ValueError(f"expected a whole number from {least} to {most}; type {instead}")
    return value


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"expected a number above 0; type --lr {DEFAULT.lr}")
    return value


def _choice(text: str, choices: Any, instead: str) -> str:
    if text not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}; type {instead}")
    return text


def _sparsity(text: str, pattern: Any) -> float:
    try:
        value = float(text)
        check_sparsity("sparsity", value)
    except ValueError:
        percent = text.strip().removesuffix("%").strip()
        likely = f"{float(percent) / 100:g}" if _is_percent(percent) else str(SPARSITY)
        raise ValueError(f"expected the fraction of zeros, from 0 to below 1; type --sparsity {likely}") from None
    fixed = pattern.sparsity if pattern is not None else None
    if fixed is not None and value != fixed:
        raise ValueError(f"--pattern 2:4 always makes {fixed:g}; leave --sparsity out, or type --pattern unstructured")
    size = find_prunable(digits_net(seed=0)).size
    if round(value * size) == size:
        raise ValueError(f"expected some of the {size:,} weights to be left; type --sparsity {SPARSITY}")
    return value


def _is_percent(text: str) -> bool:
    try:
        return 1 <= float(text) < 100
    except ValueError:
        return False


def _device(text: str) -> tuple[torch.device, str]:
    _choice(text, DEVICES, "--device auto")
    available = torch.cuda.is_available()
    if text == "cuda" and not available:
        raise ValueError("expected a GPU that torch can use, and it sees none; type --device cpu")
    if text == "auto":
        found = "a GPU was found" if available else "torch sees no GPU"
        return torch.device("cuda" if available else "cpu"), f"chosen because {found}"
    return torch.device(text), "as asked"


def _out(text: str) -> Path:
    out = Path(text)
    if reason := folder.why_not(out):
        raise ValueError(f"{reason}; type another folder, or leave --out out for the next free runs/digits-NNNN")
    return out


def _introduce(console: Console, settings: Settings, data: digits.Split, out: Path) -> None:
    layers = settings.method.layers(digits_net(seed=0))
    console.say(f"digits: {len(data.labels)} training and {len(data.test_labels)} test images of 8 x 8 pixels")
    console.say(f"model: residual network, {layers.size:,} weights to prune in {len(layers.weights)} layers")
    for name, reason in layers.left_dense.items():
        console.say(f"left dense: {name} ({reason})")
    threads = ", one thread (faster on images this small)" if settings.device.type == "cpu" else ""
    console.say(f"device: {settings.device.type} ({settings.why_device}){threads}")
    console.say(f"sparsity: {settings.method.sparsity:.4g}, {settings.method.pattern}; seed {settings.recipe.seed}")
    console.say(str(settings.method.schedule))
    console.say(f"folder: {out}\n")


def _show(console: Console, outcomes: list[experiment.Outcome], out: Path) -> None:
    header = ("model", "test accuracy", "sparsity", "inference FLOPs", "of dense")
    rows = [
        (o.model, f"{o.test_accuracy:.2%}", f"{o.sparsity:.2%}", f"{o.flops / 1e6:.3f} M", f"{o.flops_ratio:.2f}x")
        for o in outcomes
    ]
    console.table(f"Test accuracy on {digits.TEST} images; FLOPs in theory, per image", header, rows)
    console.say(f"\nmodels, metrics and settings are in {out}")
