"""Where and how stages run, as against what they compute."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from acdc.data.images import Batches
from acdc.measure.memorization import Memorization
from acdc.runs.records import EpochRow
from acdc.train.distributed import World
from acdc.train.rows import Live
from acdc.train.step import Execution
from acdc.train.stopping import Stopped, StopRequest


@dataclass(frozen=True, kw_only=True)
class Loaders:
    train: Batches
    test: Batches
    validation: Batches | None = None
    memorization: Memorization | None = None  # of training images with random labels


@dataclass(kw_only=True)
class Setting:
    device: torch.device
    execution: Execution
    checkpoints: Path
    world: World = field(default_factory=World)
    stop: StopRequest = field(default_factory=StopRequest)
    watch: Callable[[Live], None] = lambda live: None
    say: Callable[[str], None] = lambda text: None  # a line for whoever watches
    sinks: Sequence[Callable[[EpochRow], None]] = ()
    said_overflow: bool = False  # of fp16, in evaluation: once is enough

    def stop_if_asked(self) -> None:
        """Between two batches that change no weight; several ranks go on, as they wait for one another at the end."""
        if self.stop.signum is not None and self.world.size == 1:
            raise Stopped(self.stop.signum)
