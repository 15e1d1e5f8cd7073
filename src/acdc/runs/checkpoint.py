"""Checkpoints: the whole state of a run in one file, written completely or not at all.

RUN/checkpoints/1-acdc-00012345.pt is the state of stage 1, "acdc", after 12,345 steps. A file is written under a
temporary name, synced and renamed, so a file of this name is complete unless something damaged it later. Reading one
checks its digest before anything is parsed (acdc.io), then its contents as a whole, then that they fit the stage,
before anything is loaded.
"""

import os
import pickle
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.sparsifier import Sparsifier
from acdc.core.state_dict import SparsifierState
from acdc.io import IntegrityError, UnsealedError, seal_zip, verify_zip
from acdc.measure.dynamics import Dynamics
from acdc.runs.folder import DAMAGED
from acdc.runs.records import ModelResult, steps_per_loss
from acdc.state_dicts import check_optimizer, check_tensors
from acdc.typed_data import DataError, Limits, Plain, check

FORMAT = 2
_NAME = re.compile(r"(\d+)-(\w+)-(\d{8,})\.pt")
_SUMS = 5  # numbers that train.step.Totals keeps
Seconds = Annotated[float, Limits(least=0, most=1e15, text="0 or more")]


class CheckpointError(Exception):
    """A failure to write or read a checkpoint."""


class DamagedError(CheckpointError):
    """A checkpoint that is truncated or altered, or not a checkpoint at all."""


class MismatchError(CheckpointError):
    """An intact checkpoint that does not belong to this run."""


class FormatError(CheckpointError):
    """A checkpoint that another version of acdc wrote."""


class NoCheckpointError(CheckpointError):
    """A folder with checkpoints, none of them intact."""

    def __init__(self, folder: Path, skipped: tuple[str, ...]) -> None:
        super().__init__(folder, skipped)  # it is sent to other ranks complete
        self.folder, self.skipped = folder, skipped

    def __str__(self) -> str:
        reasons = "".join(f"\n  {reason}" for reason in self.skipped)
        return f"{self.folder} has no intact checkpoint to resume from{reasons}"


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint to resume from, and why newer ones were skipped."""

    path: Path
    state: dict[str, Any]
    skipped: tuple[str, ...]


# Contents


class Best(TypedDict):
    """The best epoch so far of the phases that run.best names."""

    epoch: int
    accuracy: NotRequired[float]
    perplexity: NotRequired[float]
    chosen_on: str


class LanguageState(TypedDict):
    """The part that only language models have: the memory of each rank and part of a batch, and epochs' counts."""

    memory: list[Any]
    parameters: list[int]


class Generators(TypedDict):
    """The random generators of a rank."""

    python: tuple[int, tuple[int, ...], float | None]
    torch: Tensor
    cuda: NotRequired[Tensor]
    numpy: NotRequired[list[Any]]


class PackedMasks(TypedDict):
    """The masks of acdc.measure.dynamics."""

    last: dict[str, Tensor]
    union: dict[str, Tensor]


class ScalerState(TypedDict):
    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    _growth_tracker: int


class Lines(TypedDict):
    """The lines of metrics.jsonl and phases.jsonl so far, from which damaged files are restored."""

    metrics: str
    phases: str


class Extra(TypedDict):
    """The part that belongs to the run, not to the stage."""

    recipe: dict[str, Plain]
    outcomes: list[ModelResult]
    seconds: Seconds
    world: int
    lines: NotRequired[Lines]


class Contents(TypedDict):
    """A whole checkpoint."""

    format: int
    stage: int
    name: str
    epoch: int
    batch: int  # steps into the epoch
    steps_per_epoch: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    sparsifier: SparsifierState | None
    scaler: ScalerState | None
    ema: dict[str, Tensor] | None
    dynamics: PackedMasks
    best: Best | None
    best_weights: dict[str, Tensor] | None
    seconds: Seconds
    rng: list[Generators]  # by rank
    totals: list[list[float]]  # by rank
    curves: NotRequired[list[list[list[float]]]]  # by rank; earlier versions had none
    skipped_images: list[str]
    extra: Extra
    language: NotRequired[LanguageState]


def check_contents(path: Path, state: Any) -> None:
    """Raise a MismatchError that names the file and the first part that is missing or has the wrong type."""
    try:
        check(state, Contents, "state")
        world = state["extra"]["world"]
        for key in ("rng", "totals", *(["curves"] if "curves" in state else [])):
            if len(state[key]) != world:
                raise DataError(f"state.{key}", f"{world} ranks, received {len(state[key])}")
        language, best = state.get("language"), state["best"]
        if language is not None and len(language["memory"]) != world:
            raise DataError("state.language.memory", f"{world} ranks, received {len(language['memory'])}")
        if best is not None and (key := "accuracy" if language is None else "perplexity") not in best:
            raise DataError(f"state.best.{key}", "the best epoch's own, for this task")
        for rank, sums in enumerate(state["totals"]):
            if len(sums) != _SUMS:
                raise DataError(f"state.totals[{rank}]", f"{_SUMS} numbers, received {len(sums)}")
        points = -(-state["steps_per_epoch"] // steps_per_loss(state["steps_per_epoch"]))
        if any([*map(len, rows)] != [points, points] for rows in state.get("curves", ())):
            raise DataError("state.curves", f"2 x {points} numbers for each rank")
    except DataError as error:
        raise MismatchError(f"{path}: not a checkpoint of this version of acdc ({error})") from error


def check_fit(
    state: Mapping[str, Any],
    *,
    epochs: int,
    steps_per_epoch: int,
    model: nn.Module,
    optimizer: Optimizer,
    optimizer_keeps: Mapping[str, Any],
    sparsifier: Sparsifier | None,
    scaler: object | None,
    ema: nn.Module | None,
    dynamics: Dynamics,
) -> None:
    """Raise a DataError that names the first part of checked contents that does not fit the stage.

    `optimizer_keeps` is what the optimizer stores for each parameter once it has taken a step.
    """
    for key, value, most in (("epoch", state["epoch"], epochs), ("batch", state["batch"], steps_per_epoch)):
        if not 0 <= value <= most:
            raise DataError(key, f"0 to {most}", str(value))
    for part, own in (("sparsifier", sparsifier), ("scaler", scaler), ("ema", ema)):
        if (state[part] is None) != (own is None):
            raise DataError(part, f"{'none' if own is None else 'one'} in this stage")
    step, weights = state["epoch"] * steps_per_epoch + state["batch"], model.state_dict()
    if sparsifier and state["sparsifier"]["step"] != step:
        raise DataError("sparsifier.step", f"{step}, from epoch and batch", str(state["sparsifier"]["step"]))
    check_tensors(state["model"], weights, "model")
    for name, tensor in state["model"].items():
        if not tensor.isfinite().all():
            raise DataError(f"model.{name}", "finite numbers")
    check_optimizer(state["optimizer"], optimizer, "optimizer", optimizer_keeps)
    if optimizer_keeps and step and scaler is None:  # whose first steps may all be skipped
        trained = sum(param.requires_grad for param in model.parameters())
        stored = sum(map(bool, state["optimizer"]["state"].values()))
        if stored != trained:
            raise DataError("optimizer.state", f"the state of {trained} parameters, received {stored}")
    if state["sparsifier"] is not None and (twin := state["sparsifier"]["twin"]) is not None:
        check_optimizer(twin["optimizer"], optimizer, "sparsifier.twin.optimizer", optimizer_keeps)
    if ema is not None:
        check_tensors(state["ema"], ema.state_dict(), "ema")
    if state["best_weights"] is not None:
        check_tensors(state["best_weights"], weights, "best_weights")
    dynamics.check_fit(state["dynamics"])


# Files


def save(folder: Path, stage: int, name: str, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
    """Write a checkpoint, then remove the oldest until `keep` are left."""
    path = folder / f"{stage}-{name}-{step:08}.pt"
    temporary = folder / f".{path.name}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(".*.tmp"):  # left by a run that was killed
            unfinished.unlink(missing_ok=True)
        with temporary.open("w+b") as file:
            torch.save({"format": FORMAT, **state}, file)
            seal_zip(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync(folder)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into a RuntimeError
        temporary.unlink(missing_ok=True)
        newest = next(iter(_newest_first(folder)), None) if folder.is_dir() else None
        left = f"the newest intact one is {newest}" if newest else "there is no earlier one"
        raise CheckpointError(f"{path} could not be written ({_reason(error)}); {left}") from error
    paths = _newest_first(folder)
    for old in paths[paths.index(path) + keep :]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> Checkpoint:
    """Return the newest intact checkpoint of a run. One that may be intact but cannot be read raises an error."""
    skipped = []
    for path in _newest_first(folder) if folder.is_dir() else []:
        try:
            return Checkpoint(path, load(path), tuple(skipped))
        except DamagedError as error:
            skipped.append(str(error))
    raise NoCheckpointError(folder, tuple(skipped))


def set_aside(folder: Path, chosen: Path | None) -> None:
    """Rename the checkpoints that were skipped: those after the chosen one, or all.

    They no longer count among those to keep, but are not lost.
    """
    paths = _newest_first(folder)
    for path in paths[: paths.index(chosen)] if chosen else paths:
        path.replace(path.with_name(f"{path.name}{DAMAGED}"))


def any_in(folder: Path) -> bool:
    """Return True if the folder holds a checkpoint, intact or not."""
    return folder.is_dir() and bool(_newest_first(folder))


def listed(folder: Path) -> list[tuple[Path, str, int]]:
    """Return every checkpoint with its stage's name and the steps it was taken after, in the order of the run."""
    paths = reversed(_newest_first(folder)) if folder.is_dir() else []
    return [(path, match[2], int(match[3])) for path in paths if (match := _NAME.fullmatch(path.name))]


def load(path: Path) -> dict[str, Any]:
    """Read an intact checkpoint. It holds only tensors and plain data: nothing in it is executed."""
    try:
        with path.open("rb") as file:
            verify_zip(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except UnsealedError as error:
        raise MismatchError(f"{path}: not a checkpoint of acdc train ({error})") from error
    except IntegrityError as error:
        raise DamagedError(f"{path}: damaged ({error})") from error
    except pickle.UnpicklingError as error:  # torch's own message advises loading it anyway
        reason = "it holds more than tensors and plain data, which is not loaded because it could run code"
        raise CheckpointError(f"{path}: not a checkpoint ({reason})") from error
    except (OSError, MemoryError, RuntimeError) as error:  # the digest matched, so the machine failed
        scarce = isinstance(error, MemoryError) or "CPUAllocator" in str(error)  # torch raises a RuntimeError
        reason = "there is not enough memory" if scarce else _reason(error)
        raise CheckpointError(f"{path}: could not be read ({reason})") from error
    version = state.get("format") if isinstance(state, dict) else type(state).__name__
    if not isinstance(version, int) or version != FORMAT:
        raise FormatError(
            f"{path}: it has format {version!r}, but this version of acdc reads format {FORMAT}; resume with the "
            "version that wrote it"
        )
    return state


def _newest_first(folder: Path) -> list[Path]:
    named = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, key=lambda pair: (int(pair[0][1]), int(pair[0][3])), reverse=True)]


def _sync(folder: Path) -> None:
    """Wait until the rename itself is on disk."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    """Return the system's own message behind an error of torch's writer or reader, if there is one."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            return behind.strerror
        behind = behind.__cause__ or behind.__context__
    if "inline_container" in str(error):
        return "only part of it was written: the disk may be full"
    return str(error).partition("\n")[0] or type(error).__name__


# Random generators


def rng_state() -> dict[str, Any]:
    """Return the state of every random generator that a training step may draw from."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, gauss = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), int(position), int(has_gauss), float(gauss)]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Restore the random generators to a state from `rng_state`; raise a DataError if it is not a valid one."""
    try:
        _set_rng_state(state)
    except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        raise DataError("rng", f"the state of a random generator ({error})") from error


def _set_rng_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        import numpy

        kind, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, gauss))
