"""What a checkpoint holds: its structure, checked as a whole before anything of it is loaded.

Whether it fits the stage that it is loaded into is for Stage.load_state_dict to say.
"""

import math
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from torch import Tensor

from acdc.core.state_dict import SparsifierState
from acdc.runs.checkpoint import MismatchError
from acdc.runs.records import ModelResult
from acdc.structure import Plain, check


class Best(TypedDict):
    epoch: int
    accuracy: float
    chosen_on: str


class Generators(TypedDict):
    """A rank's random generators."""

    python: tuple[int, tuple[int, ...], float | None]
    torch: Tensor
    cuda: NotRequired[Tensor]
    numpy: NotRequired[list[Any]]


class Dynamics(TypedDict):
    last: dict[str, Tensor]
    union: dict[str, Tensor]


class Scaler(TypedDict):
    scale: float
    growth_factor: float
    backoff_factor: float
    growth_interval: int
    _growth_tracker: int


class Extra(TypedDict):
    """What belongs to the run, not to the stage."""

    recipe: dict[str, Plain]
    outcomes: list[ModelResult]
    seconds: float
    world: int


class Contents(TypedDict):
    format: int
    stage: int
    name: str
    epoch: int
    batch: int
    steps_per_epoch: int
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    sparsifier: SparsifierState | None
    scaler: Scaler | None
    ema: dict[str, Tensor] | None
    dynamics: Dynamics
    best: Best | None
    best_weights: dict[str, Tensor] | None
    seconds: float
    rng: list[Generators]  # by rank
    totals: list[list[float]]  # by rank
    skipped_images: list[str]
    extra: Extra


def check_contents(path: Path, state: Any) -> None:
    """Raise a MismatchError that names the file and the first part that is missing or of another type."""
    try:
        check(state, Contents, "state")
        for name, seconds in (("seconds", state["seconds"]), ("extra.seconds", state["extra"]["seconds"])):
            if not math.isfinite(seconds):
                raise ValueError(f"state.{name}: expected a finite number, received {seconds}")
        for key in ("rng", "totals"):
            if len(state[key]) != state["extra"]["world"]:
                raise ValueError(f"state.{key}: expected {state['extra']['world']} ranks, received {len(state[key])}")
        for rank, sums in enumerate(state["totals"]):
            if len(sums) != 5:
                raise ValueError(f"state.totals[{rank}]: expected 5 numbers, received {len(sums)}")
    except ValueError as error:
        raise MismatchError(f"{path}: not a checkpoint of this version of acdc ({error})") from error
