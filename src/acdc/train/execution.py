"""The execution of stages: where and how they run, not what they compute."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acdc.data.images import Batches
from acdc.errors import ArgumentError
from acdc.measure.memorization import Memorization
from acdc.recipes.schema import Training
from acdc.runs.records import EpochRow
from acdc.train.distributed import World
from acdc.train.stopping import Stopped, StopRequest

_WORTH_COMPILING = 20_000  # steps; compiling takes about a minute
_MOST_SIZES = 6  # of images that may be compiled for: torch gives up at the eighth graph, and evaluation needs one too


@dataclass(frozen=True)
class Execution:
    """The way steps will run, and why."""

    compile: bool
    graphs: bool
    why: tuple[str, ...]


def choose(
    train: Training,
    device: torch.device,
    *,
    steps: int,
    world: int,
    sizes: int = 1,
    model: nn.Module | None = None,
) -> Execution:
    """Choose what the recipe leaves to "auto"; raise an ArgumentError if what it asks for is impossible here.

    Training images come in so many `sizes` one after another. A step is captured, and compiled, anew for each. A module
    of the model whose shapes depend on the data says so by `fixed_shapes = False`.
    """
    cuda, toolchain = device.type == "cuda", _toolchain(device)
    no_graphs = (
        "they need a GPU" if not cuda
        else "fp16's GradScaler looks at gradients on the host" if train.precision == "fp16"
        else "several processes exchange gradients" if world > 1
        else f"shapes in {varying} depend on the data" if (varying := _varying(model))
        else None
    )  # fmt: skip
    if train.cuda_graphs == "on" and no_graphs:
        raise ArgumentError(
            "train.cuda_graphs", received="on", allowed=f"impossible here: {no_graphs}", instead='write "auto" or "off"'
        )
    if train.compile == "on" and toolchain:
        raise ArgumentError(
            "train.compile", received="on", allowed=f"impossible here: {toolchain}", instead='write "auto" or "off"'
        )
    if train.compile == "on" and sizes > _MOST_SIZES:
        raise ArgumentError(
            "train.compile",
            received="on",
            allowed=f"training images grow through {sizes} sizes, and at most {_MOST_SIZES} are compiled for",
            instead='write "off", or raise data.size_step',
        )
    graphs = train.cuda_graphs != "off" and no_graphs is None
    why = [f"CUDA graphs: {_why(train.cuda_graphs, graphs, no_graphs or 'a whole step is launched at once')}"]
    if train.compile == "auto":
        minutes = "a minute of compiling" if sizes == 1 else f"compiling for {sizes} sizes of images"
        worth = steps >= sizes * _WORTH_COMPILING and sizes <= _MOST_SIZES
        reason = toolchain or (
            "it pays off only on a GPU" if not cuda
            else "several processes" if world > 1
            else f"{steps:,} steps" if worth
            else f"{steps:,} steps are too few to repay {minutes}"
        )  # fmt: skip
        compiled = not toolchain and cuda and world == 1 and worth
    else:
        compiled, reason = train.compile == "on", ""
    why.append(f"torch.compile: {_why(train.compile, compiled, reason)}")
    if cuda and not train.deterministic:
        why.append("cuDNN: the first step times several kernels for each layer, so it is slow; later ones are not")
    return Execution(compiled, graphs, tuple(why))


def _varying(model: nn.Module | None) -> str | None:
    """Return the type of a module whose shapes depend on the data, or None."""
    modules = model.modules() if model is not None else ()
    return next((type(module).__name__ for module in modules if not getattr(module, "fixed_shapes", True)), None)


def _why(requested: str, chosen: bool, reason: str) -> str:
    return f"{'on' if chosen else 'off'} ({'as requested' if requested != 'auto' else reason})"


def _toolchain(device: torch.device) -> str | None:
    """Return what torch.compile lacks on this machine, or None."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    return None if compiler() else "there is no C++ compiler"


def compiler() -> str | None:
    """Return the path of a C++ compiler, or None."""
    return next((path for name in ("c++", "g++", "clang++", "cc", "gcc") if (path := shutil.which(name))), None)


@contextmanager
def without_kernel_search() -> Iterator[None]:
    """Let cuDNN use its best guess at a kernel instead of timing several.

    This is for shapes and precisions too rare to repay a search, which takes as long as in the first step.
    """
    cudnn = torch.backends.cudnn
    searching = cudnn.benchmark
    cudnn.benchmark = False
    try:
        yield
    finally:
        cudnn.benchmark = searching


def compiled(model: nn.Module, execution: Execution) -> Any:
    """Return the model, compiled if that was chosen, with a graph for each batch size and mode it meets.

    There is never one graph for all sizes, which torch.compile would switch to at the second: training and evaluation
    have one each. Models of one class share their graphs. Dropout draws the same numbers as eagerly, which the
    compiler's own does not.
    """
    return torch.compile(model, dynamic=False, options={"fallback_random": True}) if execution.compile else model


# Inputs of a stage


@dataclass(frozen=True)
class Progress:
    """The progress of an epoch, for display."""

    run: str
    epoch: int
    share: float
    loss: float
    per_second: float  # images or tokens
    unit: str = "images"


@dataclass(frozen=True, kw_only=True)
class Loaders:
    """The batches to train on and to evaluate with."""

    train: Batches
    test: Batches
    validation: Batches | None = None
    memorization: Memorization | None = None  # of training images with random labels
    test_beginning: Batches | None = None  # what is evaluated after each epoch, if not all
    validation_beginning: Batches | None = None

    @property
    def epoch_test(self) -> Batches:
        return self.test_beginning or self.test

    @property
    def epoch_validation(self) -> Batches | None:
        return self.validation_beginning or self.validation


@dataclass(kw_only=True)
class Setting:
    """The surroundings of stages: device, processes and messages, but nothing that changes what they compute."""

    device: torch.device
    execution: Execution
    checkpoints: Path
    world: World = field(default_factory=World)
    stop: StopRequest = field(default_factory=StopRequest)
    watch: Callable[[Progress], None] = lambda progress: None
    say: Callable[[str], None] = lambda text: None  # a line for whoever watches
    sinks: Sequence[Callable[[EpochRow], None]] = ()
    said_overflow: bool = False  # whether fp16 overflow in evaluation was reported: once is enough

    def stop_if_asked(self) -> None:
        """Raise Stopped if asked to, between two batches that change no weight.

        Several ranks continue, since they wait for one another at the end.
        """
        if self.stop.signum is not None and self.world.size == 1:
            raise Stopped(self.stop.signum)
