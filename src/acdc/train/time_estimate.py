"""An estimate of how long a recipe takes, from a few real steps on random images in its precision and batch size."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from acdc.data.data_facts import Facts, ImageFacts, TextFacts
from acdc.data.token_batches import Streams, Windows
from acdc.recipes.schema import Recipe
from acdc.train import optim
from acdc.train.execution import Execution
from acdc.train.experiment import reproducible
from acdc.train.precision import autocast, with_supported_precision
from acdc.train.step import Step, Totals
from acdc.train.tasks import ImageClassification, LanguageModelling, NextToken, Task

_SLOW = 3.0  # seconds a step may take at most; on a CPU a smaller batch is measured instead
_ENOUGH = 4.0  # seconds of measuring


@dataclass(frozen=True)
class Timing:
    """The time of a step with the recipe's batch, and of the evaluation of an image or a token, in seconds."""

    step: float
    evaluation: float
    batch: int  # that was measured; smaller than the recipe's if that is too slow
    precision: str
    threads: int
    memory: int | None = None  # peak allocation on a GPU, in bytes


class TooLargeError(Exception):
    """A batch that does not fit into the GPU's memory."""


def measure(recipe: Recipe, model: nn.Module, facts: Facts, device: torch.device) -> Timing:
    """Train `model` briefly and time it, with CUDA graphs but without compiling."""
    with reproducible(recipe, device):
        try:
            return _Bench(with_supported_precision(recipe, device), model, facts, device).run()
        except torch.OutOfMemoryError:
            raise TooLargeError from None


class _Bench:
    def __init__(self, recipe: Recipe, model: nn.Module, facts: Facts, device: torch.device) -> None:
        self._train, self._device, self._facts = recipe.train, device, facts
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
        units = self._facts.length if isinstance(self._facts, TextFacts) else 1
        evaluation = self._seconds(self._evaluator(size), warm=1, most=20) / (size * units)
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
        samples, targets = self._batch(size)
        execution = Execution(False, self._graphs, ())
        scale = self._scaler.scale if self._scaler else None
        self._model.train()
        totals, task = Totals(self._device), self._task(size)
        step = Step(
            task.module(self._model),
            self._train,
            execution,
            totals,
            device=self._device,
            full=size,
            task=task,
            scale=scale,
        )
        parts = min(self._train.accumulate, size)
        rows = [len(part) for part in targets.tensor_split(parts)]
        task.begin(self._model, 0, 0, rows)  # one text for all steps, whose memory fills as in training

        def act() -> None:
            step(samples, targets)
            if self._scaler:
                self._scaler.step(self._optimizer)
                self._scaler.update()
            else:
                self._optimizer.step()

        return act

    def _evaluator(self, size: int) -> Callable[[], object]:
        samples, targets = self._batch(size)
        self._model.eval()
        module = NextToken(self._model) if isinstance(self._facts, TextFacts) else self._model
        inputs: tuple[Any, ...] = (samples,)
        if isinstance(self._facts, TextFacts):
            start: Any = getattr(self._model, "start_memory", None)
            inputs = (samples, targets, start(size)) if start else (samples, targets)

        def act() -> object:
            with torch.no_grad(), autocast(self._train.precision, self._device):
                return module(*inputs)

        return act

    def _task(self, size: int) -> Task:
        """Return the task, of a text that has one batch and never restarts."""
        if isinstance(self._facts, ImageFacts):
            return ImageClassification(self._train)
        stored = torch.zeros(size * self._facts.length + 1, dtype=torch.int32)
        order = Streams if self._facts.order == "streams" else Windows
        return LanguageModelling(order(stored, self._device, batch_size=size, length=self._facts.length))

    def _batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        facts, device = self._facts, self._device
        if isinstance(facts, ImageFacts):
            images = torch.randn(size, *facts.shape, device=device).contiguous(memory_format=self._format)
            return images, torch.randint(facts.classes, (size,), device=device)
        tokens = facts.example(device)[0].expand(size, -1).contiguous()
        return tokens, tokens

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
