"""Checkpoints: the whole state of a run in one file, written whole or not at all.

RUN/checkpoints/1-acdc-00012345.pt is the state of stage 1, "acdc", after 12,345 steps. A file is written under a
temporary name, synced and renamed, so a file of this name is complete unless something damaged it later. Reading one
checks the digest in it before anything is parsed (acdc.io); finding the newest says which were passed over.
"""

import os
import pickle
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from acdc.io import IntegrityError, UnsealedError, seal_zip, verify_zip

FORMAT = 2  # format 1 had no digest
ASIDE = ".damaged"  # what follows the name of one that was passed over
_NAME = re.compile(r"(\d+)-(\w+)-(\d{8,})\.pt")


class CheckpointError(Exception):
    """A checkpoint that cannot be written, or none that can be read."""


class DamagedError(CheckpointError):
    """One that was cut short, altered, or is none."""


class MismatchError(CheckpointError):
    """One that is as it was written, and not of this run."""


class FormatError(CheckpointError):
    """One that another version of acdc wrote."""


class NoCheckpointError(CheckpointError):
    """There are checkpoints, and none is whole."""


@dataclass(frozen=True)
class Found:
    path: Path
    state: dict[str, Any]
    skipped: tuple[str, ...]  # newer ones, and why


def save(folder: Path, stage: int, name: str, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
    """Write one, then remove those before it, but for the newest `keep` with this one."""
    path = folder / f"{stage}-{name}-{step:08}.pt"
    temporary = folder / f".{path.name}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob(".*.tmp"):  # of a run that was killed
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
        left = f"the newest one left is {newest}" if newest else "there is none before it"
        raise CheckpointError(f"{path} could not be written ({_reason(error)}); {left}") from error
    found = _newest_first(folder)
    for old in found[found.index(path) + keep :]:
        old.unlink(missing_ok=True)
    return path


def newest(folder: Path) -> Found:
    """The newest whole checkpoint of a run. One that may be whole and cannot be read is an error, not passed over."""
    skipped = []
    for path in _newest_first(folder) if folder.is_dir() else []:
        try:
            return Found(path, load(path), tuple(skipped))
        except DamagedError as error:
            skipped.append(str(error))
    reasons = "".join(f"\n  {reason}" for reason in skipped)
    raise NoCheckpointError(f"{folder} holds no whole checkpoint to go on from{reasons}")


def set_aside(found: Found) -> None:
    """Rename what was passed over, so that it takes no whole one's place among those kept, and is not lost either."""
    paths = _newest_first(found.path.parent)
    for path in paths[: paths.index(found.path)]:
        path.replace(path.with_name(f"{path.name}{ASIDE}"))


def any_in(folder: Path) -> bool:
    """Whether there is one, whole or not."""
    return folder.is_dir() and bool(_newest_first(folder))


def load(path: Path) -> dict[str, Any]:
    """Read a whole checkpoint. It holds tensors and plain data only: nothing in it is executed."""
    try:
        with path.open("rb") as file:
            verify_zip(file)
            state = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such file") from None
    except UnsealedError as error:
        raise _other_format(path, 1) from error
    except IntegrityError as error:
        raise DamagedError(f"{path}: damaged ({error})") from error
    except pickle.UnpicklingError as error:  # torch's own words advise to load it all the same
        reason = "it holds more than tensors and plain data, which is not loaded, as it could run code"
        raise CheckpointError(f"{path}: not a checkpoint ({reason})") from error
    except (OSError, MemoryError, RuntimeError) as error:  # what is parsed is what was written: the machine failed
        scarce = isinstance(error, MemoryError) or "CPUAllocator" in str(error)  # a RuntimeError of torch's
        reason = "there is not enough memory" if scarce else _reason(error)
        raise CheckpointError(f"{path}: could not be read ({reason})") from error
    found = state.get("format") if isinstance(state, dict) else type(state).__name__
    if not isinstance(found, int) or found != FORMAT:
        raise _other_format(path, found)
    return state


def _other_format(path: Path, found: object) -> FormatError:
    return FormatError(
        f"{path}: format {found!r}, and this version of acdc reads format {FORMAT}; resume with the version that wrote "
        "it"
    )


def rng_state() -> dict[str, Any]:
    """Of every random generator a training step may draw from."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, gauss = sys.modules["numpy"].random.get_state()
        state["numpy"] = [kind, keys.tolist(), int(position), int(has_gauss), float(gauss)]
    return state


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Go on with random numbers where `rng_state` was taken; raise a ValueError for what no generator was in."""
    try:
        _set_rng_state(state)
    except (TypeError, ValueError, IndexError, RuntimeError, OverflowError) as error:
        raise ValueError(f"rng: it is not the state of a random generator ({error})") from error


def _set_rng_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    if "numpy" in state:
        import numpy

        kind, keys, position, has_gauss, gauss = state["numpy"]
        numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, gauss))


def _newest_first(folder: Path) -> list[Path]:
    named = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, key=lambda pair: (int(pair[0][1]), int(pair[0][3])), reverse=True)]


def _sync(folder: Path) -> None:
    """The rename itself, too."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: BaseException) -> str:
    """In words: of what torch's writer and reader say, the system's own error where there is one behind it."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            return behind.strerror
        behind = behind.__cause__ or behind.__context__
    if "inline_container" in str(error):
        return "only part of it was written: the disk may be full"
    return str(error).partition("\n")[0] or type(error).__name__
