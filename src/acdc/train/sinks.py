"""Sinks for each epoch's numbers: TensorBoard, Weights & Biases, trackio. metrics.jsonl stays the source."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from acdc.io import write_json
from acdc.recipes.schema import Recipe
from acdc.runs.folder import RunFolder
from acdc.runs.json_files import read
from acdc.runs.records import EpochRow, LogNames

log = logging.getLogger("acdc")
Sink = Callable[[EpochRow], None]
_NUMBERS = ("loss", "train_accuracy", "test_accuracy", "test_loss", "validation_accuracy", "ema_accuracy", "sparsity",
            "flops", "lr", "seconds")  # fmt: skip
_TEXT = ("perplexity", "bits_per_byte", "word_perplexity")
_SPEED = ("tokens_per_second", "parameters", "average_parameters")


def names() -> tuple[str, ...]:
    return tuple(_OPENERS)


def missing(services: Sequence[str]) -> list[str]:
    """Return messages about services that are not installed, with what to type."""
    return [
        f'--log {name}: {name} is not installed; run: pip install "acdc-torch[{name}]" (in a checkout: ".[{name}]")'
        for name in services
        if find_spec(name) is None
    ]


@contextmanager
def opened(services: Sequence[str], recipe: Recipe, out: Path) -> Iterator[list[Sink]]:
    """Open the requested services."""
    with ExitStack() as stack:
        yield [_harmless(name, stack.enter_context(_OPENERS[name](recipe, out))) for name in services]


def _harmless(name: str, sink: Sink) -> Sink:
    """Wrap a sink so that an unreachable service does not end hours of training: metrics.jsonl has the row."""

    def send(row: EpochRow) -> None:
        try:
            sink(row)
        except Exception as error:  # each service raises its own
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            log.warning("--log %s: epoch %d of %s was not sent (%s)", name, row.epoch + 1, row.run, reason)

    return send


def numbers(row: EpochRow) -> dict[str, float]:
    """Return the numbers to plot, by "stage/name"."""
    values = asdict(row)
    plain = {f"{row.run}/{name}": values[name] for name in _NUMBERS if values[name] is not None}
    if row.language:
        own, test = values["language"], values["language"]["test"]
        picked = {**{key: test[key] for key in _TEXT if test[key] is not None}, **{key: own[key] for key in _SPEED}}
        plain |= {f"{row.run}/{name}": value for name, value in picked.items()}
    return plain | {f"{row.run}/labels/{name}": share for name, share in (row.memorization or {}).items()}


@contextmanager
def _tensorboard(recipe: Recipe, out: Path) -> Iterator[Sink]:
    from torch.utils.tensorboard.writer import SummaryWriter

    writer = SummaryWriter(str(out / "tensorboard"))

    def write(row: EpochRow) -> None:
        for name, value in numbers(row).items():
            writer.add_scalar(name, value, row.step)
        writer.flush()

    try:
        yield write
    finally:
        writer.close()


@contextmanager
def _wandb(recipe: Recipe, out: Path) -> Iterator[Sink]:
    import wandb  # pyright: ignore[reportMissingImports]

    settings = {"project": "acdc", "name": out.name, "dir": str(out), "config": recipe.to_dict()}
    with wandb.init(**settings, id=_kept(out).get("wandb"), resume="allow") as run:
        _keep(out, "wandb", run.id)
        yield lambda row: run.log(numbers(row) | {"epoch": row.epoch, "step": row.step})


@contextmanager
def _trackio(recipe: Recipe, out: Path) -> Iterator[Sink]:
    import trackio  # pyright: ignore[reportMissingImports]

    name = _kept(out).get("trackio")
    # A stored name is this run's; the folder's name may also be another run's, and trackio then chooses a new one.
    resume = "allow" if name else "never"
    run = trackio.init(project="acdc", name=name or out.name, config=recipe.to_dict(), resume=resume)
    try:
        _keep(out, "trackio", run.name)
        yield lambda row: trackio.log(numbers(row) | {"epoch": row.epoch, "step": row.step})
    finally:
        trackio.finish()


def _kept(out: Path) -> dict[str, str]:
    """Return this run's name in each service, so that a resumed run continues there, too."""
    stored = read(LogNames, RunFolder(out).logs)
    return dict(stored.names) if stored else {}


def _keep(out: Path, service: str, name: str) -> None:
    write_json(RunFolder(out).logs, _kept(out) | {service: name})


_OPENERS: dict[str, Callable[[Recipe, Path], Any]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "trackio": _trackio,
}
