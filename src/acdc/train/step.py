"""Forward and backward of one training step: eagerly, compiled, or replayed from a CUDA graph.

All three compute the same. A batch is trained in `accumulate` parts, whose gradients add up to the batch's mean.
"""

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.core.sparsifier import Sparsifier
from acdc.recipes.schema import Recipe, Training
from acdc.train import bf16

_WARM = 3  # eager steps before a first capture: cuDNN chooses its kernels, the allocator and the optimizer settle
_WORTH_COMPILING = 20_000  # steps; compiling takes about a minute


@dataclass(frozen=True)
class Execution:
    """How steps will run, and why."""

    compile: bool
    graphs: bool
    why: tuple[str, ...]


def choose(train: Training, device: torch.device, *, steps: int, world: int) -> Execution:
    """Settle what the recipe leaves to "auto". What was asked for and cannot be is refused."""
    cuda, toolchain = device.type == "cuda", _toolchain(device)
    no_graphs = (
        "they need a GPU" if not cuda
        else "fp16's GradScaler looks at gradients on the host" if train.precision == "fp16"
        else "several processes exchange gradients" if world > 1
        else None
    )  # fmt: skip
    if train.cuda_graphs == "on" and no_graphs:
        raise ValueError(f'train.cuda_graphs = "on": not here, {no_graphs}; write "auto" or "off"')
    if train.compile == "on" and toolchain:
        raise ValueError(f'train.compile = "on": not here, {toolchain}; write "auto" or "off"')
    graphs = train.cuda_graphs != "off" and no_graphs is None
    why = [f"CUDA graphs: {_why(train.cuda_graphs, graphs, no_graphs or 'steps are launched at once')}"]
    if train.compile == "auto":
        reason = toolchain or (
            "it pays on a GPU only" if not cuda
            else "several processes" if world > 1
            else f"{steps:,} steps" if steps >= _WORTH_COMPILING
            else f"{steps:,} steps do not repay a minute of compiling"
        )  # fmt: skip
        compiled = not toolchain and cuda and world == 1 and steps >= _WORTH_COMPILING
    else:
        compiled, reason = train.compile == "on", ""
    why.append(f"torch.compile: {_why(train.compile, compiled, reason)}")
    if cuda and not train.deterministic:
        why.append("cuDNN: the first step times several kernels for each layer, and is slow; no later one is")
    return Execution(compiled, graphs, tuple(why))


def _why(said: str, chosen: bool, reason: str) -> str:
    return f"{'on' if chosen else 'off'} ({'as asked' if said != 'auto' else reason})"


def _toolchain(device: torch.device) -> str | None:
    """What torch.compile lacks on this machine."""
    if device.type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    return None if compiler() else "there is no C++ compiler"


def compiler() -> str | None:
    return next((path for name in ("c++", "g++", "clang++", "cc", "gcc") if (path := shutil.which(name))), None)


def unsupported(precision: str, device: torch.device, *, begun: bool = False) -> str | None:
    """Why this device cannot compute in this precision, and what to type instead; None if it can."""
    if device.type != "cpu":
        return None
    if precision == "fp16":
        return 'it needs a GPU; on a CPU type --set train.precision=bf16, or "fp32"'
    return bf16.advice(begun=begun) if precision == "bf16" and bf16.crash_on_cpu() else None


def computable(recipe: Recipe, device: torch.device) -> Recipe:
    """The recipe as its model is run on `device`: in fp32 where its own precision is not to be had there. Training is
    refused instead."""
    if unsupported(recipe.train.precision, device) is None:
        return recipe
    return replace(recipe, train=replace(recipe.train, precision="fp32"))


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    if precision in ("bf16", "fp16"):
        return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)
    return nullcontext()


@contextmanager
def without_kernel_search() -> Iterator[None]:
    """cuDNN takes its best guess at a kernel instead of timing several: for shapes and precisions that come too rarely
    to repay a search, which takes as long as at the first step."""
    cudnn = torch.backends.cudnn
    searching = cudnn.benchmark
    cudnn.benchmark = False
    try:
        yield
    finally:
        cudnn.benchmark = searching


def compiled(model: nn.Module, execution: Execution) -> Any:
    """The model, compiled where that was chosen: a graph for each batch size and mode it meets.

    Never one for all sizes, which torch.compile would turn to at the second: training and evaluation have one each.
    Models of one class share their graphs. Dropout draws what it draws eagerly, which the compiler's own does not.
    """
    return torch.compile(model, dynamic=False, options={"fallback_random": True}) if execution.compile else model


class Totals:
    """Sums over an epoch's steps, on the device: nothing waits for them until they are read."""

    def __init__(self, device: torch.device) -> None:
        self.values = torch.zeros(5, device=device)  # loss · samples, correct, samples, all finite so far, steps finite
        self.reset()

    def reset(self) -> None:
        self.values.zero_()
        self.values[3] = 1

    def load(self, values: Sequence[float]) -> None:
        self.values.copy_(torch.tensor(values))

    def add(self, loss: Tensor, correct: Tensor, samples: int) -> None:
        """One step's mean loss, right answers, and number of samples."""
        sums = self.values
        sums[0] += (loss * samples).nan_to_num(0.0, 0.0, 0.0)  # under fp16 the run goes on; else sums[3] stops it
        sums[1] += correct
        sums[2] += samples
        sums[3] *= loss.isfinite()
        sums[4] += sums[3]


class Step:
    """Calling it with a batch leaves the batch's gradients in the parameters and its loss in `totals`.

    `phase` is anything that changes when masks do: a CUDA graph holds what was launched while it was captured.
    `full` is the size of a full batch, which alone is compiled and captured.
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
        scale: Callable[[Tensor], Tensor] | None = None,
        no_sync: Callable[[], AbstractContextManager[Any]] = nullcontext,
        share: Callable[[int], float] = lambda samples: 1.0,
    ) -> None:
        self._model, self._train, self._totals, self._device = model, train, totals, device
        self.fast = compiled(model, execution)
        self._graphs = execution.graphs
        self._full, self._scale, self._no_sync, self._share = full, scale, no_sync, share
        self._parameters = [param for param in model.parameters() if param.requires_grad]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._phase: object = None
        self._warm = _WARM
        self._grads: list[Tensor | None] = []
        self._inputs: tuple[Tensor, Tensor] | None = None
        self.teacher: nn.Module | None = None  # what the model's answers are drawn towards, by train.distill

    def __call__(self, images: Tensor, labels: Tensor, phase: object = None, *, eagerly: bool = False) -> None:
        if len(labels) != self._full:  # the last batch of an epoch; a shape of its own is not worth compiling
            with without_kernel_search():
                self._eager(self._model, images, labels)
        elif eagerly or not self._graphs:
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
                    logits = model(x)
                    loss = F.cross_entropy(logits, y, label_smoothing=self._train.label_smoothing)
                    if self.teacher is not None:
                        loss = torch.lerp(loss.float(), self._distance(logits, x), self._train.distill)
                loss = loss.float() * (len(y) / total)
                weighted = loss * share if share != 1.0 else loss
                (self._scale(weighted) if self._scale else weighted).backward()
            losses.append(loss.detach())
            correct.append((logits.detach().argmax(1) == y).sum())
        self._totals.add(sum(losses[1:], losses[0]), sum(correct[1:], correct[0]), total)

    def find_teacher(self, model: nn.Module, sparsifier: Sparsifier) -> None:
        """The dense twin, once the final compressed phase has begun."""
        if self.teacher is None and (twin := sparsifier.context.twin) is not None and sparsifier.phase.final:
            teacher = copy.deepcopy(model)
            teacher.load_state_dict(twin.model)
            self.teacher = teacher.eval().requires_grad_(False)

    def _distance(self, logits: Tensor, images: Tensor) -> Tensor:
        """KL from the teacher's softened answers, times T²: gradients of the size they have without softening."""
        assert self.teacher is not None, "asked for where there is one"
        temperature = self._train.distill_temperature
        with torch.no_grad():
            taught = F.log_softmax(self.teacher(images).float() / temperature, 1)
        learned = F.log_softmax(logits.float() / temperature, 1)
        return F.kl_div(learned, taught, log_target=True, reduction="batchmean") * temperature**2

    def _replay(self, images: Tensor, labels: Tensor, phase: object) -> None:
        if phase != self._phase:
            self._phase, self._graph, self._warm = phase, None, max(self._warm, 1)
        if self._graph is None and self._warm:
            self._warm -= 1
            self._eager(self.fast, images, labels)
            return
        if self._inputs is None:
            self._inputs = images.clone(), labels.clone()
        self._inputs[0].copy_(images)
        self._inputs[1].copy_(labels)
        if self._graph is None:
            for param in self._parameters:
                param.grad = None  # allocated anew by the capture, in the graph's own memory
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream(self._device)):
                self._forward_backward(self.fast, *self._inputs)
            self._graph, self._grads = graph, [param.grad for param in self._parameters]
        for param, grad in zip(self._parameters, self._grads, strict=True):
            param.grad = grad  # an eager step in between left others
        self._graph.replay()
