"""The forward and backward pass of a training step: eager, compiled, or replayed from a CUDA graph.

All three compute the same. A batch is trained in `accumulate` parts, whose gradients add up to the batch's mean.
"""

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.core.sparsifier import Sparsifier
from acdc.recipes.schema import Training
from acdc.runs.records import steps_per_loss
from acdc.train.execution import Execution, compiled, without_kernel_search
from acdc.train.precision import autocast
from acdc.train.tasks import ImageClassification, Task

_WARM = 3  # eager steps before the first capture: cuDNN chooses its kernels, the allocator and the optimizer settle
_WARM_AGAIN = 2  # before others: the first of a phase runs no compiled code, the second compiles what came with it
_EVERY = 0.5  # seconds between two readings of the running loss


class Totals:
    """Sums over an epoch's steps, on the device: nothing waits for them until they are read.

    An epoch of `steps` steps also has a loss curve, whose points are means over some consecutive steps.
    """

    def __init__(self, device: torch.device, steps: int = 0) -> None:
        self.values = torch.zeros(5, device=device)  # loss · samples, correct, samples, all finite so far, steps finite
        self._each = steps_per_loss(steps)
        self.curve = torch.zeros(2, -(-steps // self._each), device=device)  # loss · samples, samples
        self._step = torch.zeros(1, dtype=torch.long, device=device)
        self.reset()

    def reset(self) -> None:
        self.values.zero_()
        self.values[3] = 1
        self.curve.zero_()
        self._step.zero_()

    def load(self, values: Sequence[float], curve: Sequence[Sequence[float]] | None = None, step: int = 0) -> None:
        """Go on after `step` steps of an epoch. Checkpoints of earlier versions have no curve."""
        self.values.copy_(torch.tensor(values))
        if curve is not None:
            self.curve.copy_(torch.tensor(curve))
        self._step.fill_(step)

    def add(self, loss: Tensor, correct: Tensor, samples: int) -> None:
        """Add one step's mean loss, number of correct answers, and number of samples."""
        sums = self.values
        finite = (loss * samples).nan_to_num(0.0, 0.0, 0.0)  # under fp16 the run continues; otherwise sums[3] stops it
        sums[0] += finite
        if self.curve.shape[1]:
            point = (self._step // self._each).clamp_(max=self.curve.shape[1] - 1)
            self.curve[0].index_add_(0, point, finite.reshape(1))
            self.curve[1].index_add_(0, point, torch.full_like(finite, samples).reshape(1))
            self._step += 1
        sums[1] += correct
        sums[2] += samples
        sums[3] *= loss.isfinite()
        sums[4] += sums[3]


def loss_curve(sums: Tensor) -> tuple[float, ...] | None:
    """Return the means of a loss curve's points, from Totals.curve of one rank or the sum over all.

    None if a point has no step, as after resuming from a checkpoint without a curve.
    """
    losses, samples = sums.tolist()
    if not samples or not all(samples):
        return None
    return tuple(round(loss / each, 5) for loss, each in zip(losses, samples, strict=True))


class TotalsReader:
    """A reader that requests the sums about twice a second and gets them a moment later, slightly out of date."""

    def __init__(self, totals: Totals) -> None:
        self._totals, cuda = totals, totals.values.is_cuda
        self._copy = torch.zeros(totals.values.shape, pin_memory=cuda)
        self._event = torch.cuda.Event() if cuda else None
        self._asked, self._next = False, time.monotonic() + _EVERY

    def read(self) -> list[float] | None:
        """Return the sums, if there are new ones."""
        sums = None
        if self._asked and (self._event is None or self._event.query()):
            self._asked, sums = False, self._copy.tolist()
        if not self._asked and time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self._copy.copy_(self._totals.values, non_blocking=True)
            if self._event is not None:
                self._event.record()
            self._asked = True
        return sums


class Step:
    """A callable that leaves a batch's gradients in the parameters and its loss in `totals`.

    `phase` is anything that changes when masks do: a CUDA graph holds what was launched while it was captured.
    `full` is the size of a full batch; only full batches are compiled and captured.
    """

    def __init__(
        self,
        model: nn.Module,
        train: Training,
        execution: Execution,
        totals: Totals,
        *,
        device: torch.device,
        full: int,
        task: Task | None = None,
        scale: Callable[[Tensor], Tensor] | None = None,
        no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
        share: Callable[[int], float] = lambda samples: 1.0,
    ) -> None:
        self._model, self._train, self._totals, self._device = model, train, totals, device
        self._task = task or ImageClassification(train)
        self.fast = compiled(model, execution)
        self._graphs = execution.graphs
        self._full, self._scale, self._no_sync, self._share = full, scale, no_sync, share
        self._parameters = [param for param in model.parameters() if param.requires_grad]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._captured: object = None
        self._warm = _WARM
        self._grads: list[Tensor | None] = []
        self._inputs: tuple[Tensor, Tensor] | None = None
        self.teacher: nn.Module | None = None  # the model that train.distill draws answers towards

    def __call__(self, images: Tensor, labels: Tensor, phase: object = None, *, eagerly: bool = False) -> None:
        if len(labels) != self._full:  # the last batch of an epoch; its shape is not worth compiling
            with without_kernel_search():
                self._eager(self._model, images, labels)
        elif eagerly or not self._graphs or not self._task.steady:
            self._eager(self.fast, images, labels)
        else:
            self._replay(images, labels, phase)

    def _eager(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        for param in self._parameters:
            param.grad = None
        self._forward_backward(model, images, labels)

    def _forward_backward(self, model: nn.Module, images: Tensor, labels: Tensor) -> None:
        total, parts = len(labels), min(self._train.accumulate, len(labels))
        share = self._share(total)
        losses, correct = [], []
        for index, (x, y) in enumerate(zip(images.tensor_split(parts), labels.tensor_split(parts), strict=True)):
            with nullcontext() if index == parts - 1 else self._no_sync():
                with autocast(self._train.precision, self._device):
                    loss, logits = self._task.loss(model, x, y, index)
                    if self.teacher is not None and logits is not None:
                        loss = torch.lerp(loss.float(), self._distance(logits, x), self._train.distill)
                loss = loss.float() * (len(y) / total)
                weighted = loss * share if share != 1.0 else loss
                (self._scale(weighted) if self._scale else weighted).backward()
            self._task.end(index)
            losses.append(loss.detach())
            correct.append((logits.detach().argmax(1) == y).sum() if logits is not None else y.new_zeros(()))
        self._totals.add(sum(losses[1:], losses[0]), sum(correct[1:], correct[0]), total)

    def find_teacher(self, model: nn.Module, sparsifier: Sparsifier) -> None:
        """Set the teacher to the dense twin once the final compressed phase has begun."""
        if self.teacher is None and (twin := sparsifier.context.twin) is not None and sparsifier.phase.final:
            teacher = copy.deepcopy(model)
            teacher.load_state_dict(twin.model)
            self.teacher = teacher.eval().requires_grad_(False)

    def _distance(self, logits: Tensor, images: Tensor) -> Tensor:
        """Return the KL divergence from the teacher's softened answers, times T² to undo their smaller gradients."""
        assert self.teacher is not None, "called only if there is one"
        temperature = self._train.distill_temperature
        with torch.no_grad():
            taught = F.log_softmax(self.teacher(images).float() / temperature, 1)
        learned = F.log_softmax(logits.float() / temperature, 1)
        return F.kl_div(learned, taught, log_target=True, reduction="batchmean") * temperature**2

    def _replay(self, images: Tensor, labels: Tensor, phase: object) -> None:
        captured = (phase, images.shape)  # progressive resizing changes the shape from epoch to epoch
        if captured != self._captured:
            self._captured, self._graph, self._warm = captured, None, max(self._warm, _WARM_AGAIN)
        if self._graph is None and self._warm:
            self._warm -= 1
            self._eager(self.fast, images, labels)
            return
        if self._inputs is None or self._inputs[0].shape != images.shape:
            self._inputs = images.clone(), labels.clone()
        self._inputs[0].copy_(images)
        self._inputs[1].copy_(labels)
        if self._graph is None:
            for param in self._parameters:
                param.grad = None  # allocated again by the capture, in the graph's own memory
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream(self._device)):
                self._forward_backward(self.fast, *self._inputs)
            self._graph, self._grads = graph, [param.grad for param in self._parameters]
        for param, grad in zip(self._parameters, self._grads, strict=True):
            param.grad = grad  # an eager step in between left different ones
        self._graph.replay()
