"""What the adapters share: the steps that a host trainer gives a method, a sparsifier's file, and the end of a run."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from acdc.core.method import Method
from acdc.core.result import Result
from acdc.core.sparsifier import Sparsifier
from acdc.errors import ArgumentError, ArgumentTypeError
from acdc.io import IntegrityError, UnsealedError, seal_zip, verify_zip, write_files
from acdc.schedule import number
from acdc.sparsity.masks import bits_of

FORMAT = 1


class StateError(RuntimeError):
    """A sparsifier's state that is missing, damaged, or does not belong to the checkpoint beside it."""


def check_method(method: Any, callback: str) -> None:
    """Raise unless this is a method, not a class or a name."""
    if not isinstance(method, Method):
        raise ArgumentTypeError(
            "method",
            received=method,
            allowed="expected a method",
            instead=f"write {callback}(acdc.ACDC(sparsity=0.9, epochs=3))",
        )


def fit_steps(method: Method, *, total: int, per_epoch: int | None, by_steps: bool, host: str) -> int | None:
    """Return the method's steps_per_epoch in a host that takes `total` steps, or raise if their lengths differ.

    `by_steps` says that the user gave the host a number of steps, so that the method's epochs are shares of the run.
    """
    if not method.ends:
        return per_epoch
    schedule = method.schedule
    epochs = schedule.total.value if schedule.total and schedule.total.unit == "ep" else None
    if epochs is None:
        planned, each = schedule.total_steps(per_epoch), per_epoch
        instead = f'write a schedule with total="{total}st", or one in epochs'
    elif by_steps:
        each = int(total / epochs)
        planned = epochs * each
        instead = f"give {host} {number(epochs * max(1, each))} or {number(epochs * (each + 1))} steps"
    else:
        planned, each = epochs * (per_epoch or 0), per_epoch
        instead = f"write {type(method).__name__}(..., epochs={round(total / per_epoch)})" if per_epoch else ""
    if planned == total:
        return each
    length = f"{number(epochs)} epochs" if epochs is not None else f"{planned} steps"
    raise ArgumentError(
        "method",
        allowed=f"it is made for {length}, which cannot be the {total:,} optimizer steps that {host} takes"
        + (f", {per_epoch:,} an epoch" if per_epoch else ""),
        instead=instead,
    )


# The sparsifier's state in the host's checkpoints


def dump_state(sparsifier: Sparsifier) -> dict[str, Any]:
    """Return the sparsifier's state, with a checksum of the weights that it belongs to."""
    return {"format": FORMAT, "weights": _checksums(sparsifier), "sparsifier": sparsifier.state_dict()}


def load_state(content: Any, sparsifier: Sparsifier, origin: str) -> None:
    """Load what `dump_state` returned, after the host has loaded the model and the optimizer."""
    version = content.get("format") if isinstance(content, Mapping) else None
    if version != FORMAT:
        raise StateError(f"{origin}: its state has format {version!r}, but this version of acdc reads {FORMAT}")
    try:
        sparsifier.load_state_dict(content["sparsifier"])
    except ValueError as error:
        raise StateError(f"{origin}: {error}") from error
    if content["weights"] != _checksums(sparsifier):
        raise StateError(
            f"{origin}: its state belongs to other weights than the model holds now. Load model, optimizer and "
            "sparsifier from one checkpoint"
        )


def write_state(path: Path, sparsifier: Sparsifier) -> None:
    """Write the sparsifier's state to a file of its own, whole or not at all."""
    content = dump_state(sparsifier)

    def write(temporary: Path) -> None:
        with temporary.open("w+b") as file:
            torch.save(content, file)
            seal_zip(file)
            file.flush()
            os.fsync(file.fileno())

    write_files({path: write})


def read_state(path: Path, sparsifier: Sparsifier) -> None:
    """Load what `write_state` wrote."""
    try:
        with path.open("rb") as file:
            verify_zip(file)
            content = torch.load(file, map_location="cpu", weights_only=True)
    except UnsealedError as error:
        raise StateError(f"{path}: not written by this integration ({error})") from error
    except (IntegrityError, pickle.UnpicklingError) as error:
        raise StateError(f"{path}: damaged ({error}); resume from an earlier checkpoint") from error
    load_state(content, sparsifier, str(path))


def _checksums(sparsifier: Sparsifier) -> dict[str, int]:
    """Return a sum over the bits of each prunable weight: the same number on every device."""
    return {w.name: int(bits_of(w.param).sum(dtype=torch.int64)) for w in sparsifier.layers.weights}


# The end


def finish(sparsifier: Sparsifier) -> Result | str:
    """Return the result of a run that the host has ended, or why there is none."""
    phase = sparsifier.phase
    reached = f"{sparsifier.step:,} of {sparsifier.total_steps:,} steps"
    if not phase.final or sparsifier.step == 0:
        return (
            f"training ended after {reached}, in a {phase.name} phase, so there is no sparse model yet: resume from "
            "the last checkpoint, or train anew with a shorter method"
        )
    return sparsifier.finish(early=True)
