"""An estimate of how long a recipe takes, from a few real steps on random images in its precision and batch size."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from acdc.recipes.schema import Recipe
from acdc.train import optim
from acdc.train.execution import Execution
from acdc.train.experiment import reproducible
from acdc.train.precision import autocast, with_supported_precision
from acdc.train.step import Step, Totals

_SLOW = 3.0  # seconds a step may take at most; on a CPU a smaller batch is measured instead
_ENOUGH = 4.0  # seconds of measuring


@dataclass(frozen=True)
class Timing:
    """The time of a step with the recipe's batch, and of the evaluation of an image, in seconds."""

    step: float
    evaluation: float
    batch: int  # that was measured; smaller than the recipe's if that is too slow
    precision: str
    threads: int
    memory: int | None = None  # peak allocation on a GPU, in bytes


class TooLargeError(Exception):
    """A batch that does not fit into the GPU's memory."""


def measure(recipe: Recipe, model: nn.Module, shape: tuple[int, ...], classes: int, device: torch.device) -> Timing:
    """Train `model` briefly and time it, with CUDA graphs but without compiling."""
    with reproducible(recipe, device):
        try:
            return _Bench(with_supported_precision(recipe, device), model, shape, classes, device).run()
        except torch.OutOfMemoryError:
            raise TooLargeError from None


class _Bench:
    def __init__(
        self, recipe: Recipe, model: nn.Module, shape: tuple[int, ...], classes: int, device: torch.device
    ) -> None:
        self._train, self._device, self._shape, self._classes = recipe.train, device, shape, classes
        self._format = torch.channels_last if recipe.train.channels_last else torch.contiguous_format
        self._model = model.to(device).to(memory_format=self._format)  # pyright: ignore[reportCallIssue]
        self._optimizer = optim.build(recipe.optimizer, model, device, recipe.train.precision)
        for group in self._optimizer.param_groups:
            group["lr"] = 1e-6  # random labels are nothing to learn from
        fp16 = recipe.train.precision == "fp16"
        self._scaler = torch.amp.GradScaler("cuda") if fp16 else None
        self._graphs = device.type == "cuda" and recipe.train.cuda_graphs != "off" and not fp16

    def run(self) -> Timing:
        batch, cuda = self._train.batch_size, self._device.type == "cuda"
        size, step = batch, None
        if not cuda:  # start small: a whole batch may take minutes
            size = min(batch, 4 * self._train.accumulate)
            once = self._seconds(self._stepper(size), warm=1, most=1)
            fits = batch if once * batch / size <= _SLOW else int(size * _SLOW / once)
            size, step = (fits, None) if fits >= 2 * size or fits == batch > size else (size, once)
        else:
            torch.cuda.reset_peak_memory_stats(self._device)
        if step is None:
            step = self._seconds(self._stepper(size), warm=6 if cuda else 1, most=50)
        memory = torch.cuda.max_memory_allocated(self._device) if cuda else None
        evaluation = self._seconds(self._evaluator(size), warm=1, most=20) / size
        return Timing(step * batch / size, evaluation, size, self._train.precision, torch.get_num_threads(), memory)

    def _seconds(self, act: Callable[[], object], *, warm: int, most: int) -> float:
        for _ in range(warm):
            act()
        self._wait()
        start, count = time.perf_counter(), 0
        at_once = 5 if self._device.type == "cuda" else 1  # a GPU is kept busy, as in training
        while count < most and time.perf_counter() - start < _ENOUGH:
            for _ in range(at_once):
                act()
            count += at_once
            self._wait()
        return (time.perf_counter() - start) / count

    def _stepper(self, size: int) -> Callable[[], None]:
        images, labels = self._images(size), torch.randint(self._classes, (size,), device=self._device)
        execution = Execution(False, self._graphs, ())
        scale = self._scaler.scale if self._scaler else None
        self._model.train()
        totals = Totals(self._device)
        step = Step(self._model, self._train, execution, totals, device=self._device, full=size, scale=scale)

        def act() -> None:
            step(images, labels)
            if self._scaler:
                self._scaler.step(self._optimizer)
                self._scaler.update()
            else:
                self._optimizer.step()

        return act

    def _evaluator(self, size: int) -> Callable[[], object]:
        images = self._images(size)
        self._model.eval()

        def act() -> object:
            with torch.no_grad(), autocast(self._train.precision, self._device):
                return self._model(images)

        return act

    def _images(self, size: int) -> torch.Tensor:
        return torch.randn(size, *self._shape, device=self._device).contiguous(memory_format=self._format)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
