"""Batch norm's running statistics, taken anew without a change to any weight."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from acdc.errors import ArgumentError, ArgumentTypeError

T = TypeVar("T")
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def recalibrate(model: nn.Module, batches: Iterable[Any], forward: Callable[[Any], object] | None = None) -> None:
    """Recompute batch norm's running statistics, in place, as means over `batches` of training data. No weight changes.

    The averages that training leaves cover its last batches only. And if dropout comes before a batch norm, they are of
    activations more spread out than those of evaluation, which misleads a sparse model most: WRN-28-10 at 95 % zeros
    went from 75.3 to 80.1 % (docs/wrn.md). Here dropout is off, as is everything else that training mode changes.

        acdc.recalibrate(model, loader)
        result = sparsifier.finish()        # which copies the model as it is now; a dense twin needs a call of its own

    A batch is a tensor, a tuple or list that begins with one, or a mapping of the model's arguments, and is brought to
    the model's device; for others say what to do: forward=lambda batch: model(batch.graph). Batches count by their
    samples. Frozen norms keep their statistics: those in evaluation mode while the model is in training mode, and in a
    model in evaluation mode those whose weights need no gradient. Several processes all call it, each with its share of
    the data. Compiled models run without their graphs meanwhile. If it fails or is broken off, nothing has changed.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", received=model, allowed="expected a torch.nn.Module")
    if forward is not None and not callable(forward):
        raise ArgumentTypeError("forward", received=forward, allowed="expected a function of a batch")
    if isinstance(batches, Tensor) or not hasattr(batches, "__iter__"):
        raise ArgumentTypeError(
            "batches",
            received=batches,
            allowed="expected a loader or another iterable of batches",
            instead="write batches=[x] for one",
        )
    norms = norms_of(model)
    if any(is_lazy(buffer) for norm in norms for buffer in norm.buffers()):
        lazy = "its batch norms do not know their sizes yet"
        raise ArgumentError("model", received=type(model).__name__, allowed=lazy, instead="call it once with a batch")
    if not norms:
        allowed = "it has no batch norm that keeps running statistics and is not frozen: there is nothing to recompute"
        raise ArgumentError("model", received=type(model).__name__, allowed=allowed, instead="leave the call out")
    with _undone_on_failure(norms):
        if not recompute(model, batches, forward or partial(_call, model)):
            raise ArgumentError(
                "batches",
                received=batches,
                allowed="no batch reached a batch norm of this model",
                instead="give a loader or a list (a generator that was read to its end gives nothing more), and a "
                "forward that calls this model, but not its eval()",
            )
        if not all(bool(torch.isfinite(norm.running_mean + norm.running_var).all()) for norm in norms):
            raise ArgumentError(
                "batches",
                received=batches,
                allowed="the statistics would be NaN or infinite",
                instead="look for such values in the data and, if training has diverged, in the weights",
            )


def recompute(model: nn.Module, batches: Iterable[T], forward: Callable[[T], object]) -> int:
    """Recompute them over what `forward` makes of each batch, without a look at the outcome.

    Return how many norms a batch has reached; the others keep their statistics.
    """
    norms = norms_of(model)
    with torch.no_grad(), _undone_on_failure(norms), _only_these_in_training(model, norms), _summed(norms) as sums:
        for batch in batches:
            forward(batch)
    return sum([each.write() for each in sums])


def norms_of(model: nn.Module) -> list[Any]:
    """Return the batch norms that keep statistics and are not frozen, in the model's order."""
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm) and module.track_running_stats)
    return [norm for norm in norms if norm.running_mean is not None and not _is_frozen(norm, model)]


def _is_frozen(norm: Any, model: nn.Module) -> bool:
    return not norm.training if model.training else norm.affine and not norm.weight.requires_grad


def _call(model: nn.Module, batch: Any) -> object:
    """Give a batch to the model, as most loops do."""
    device = next((param.device for param in model.parameters()), None)
    if isinstance(batch, Sequence) and batch and isinstance(batch[0], Tensor):
        batch = batch[0]
    if isinstance(batch, Tensor):
        return model(batch.to(device))
    if isinstance(batch, Mapping):
        return model(**{key: value.to(device) if isinstance(value, Tensor) else value for key, value in batch.items()})
    raise ArgumentTypeError(
        "batches",
        received=batch,
        allowed="each batch is a tensor, a tuple or list that begins with one, or a mapping of the model's arguments",
        instead="say what to do with others: forward=lambda batch: model(...)",
    )


@dataclass(eq=False)
class _Sums:
    """Sums of the statistics of single batches, in float32: those of a norm may be in half precision."""

    norm: Any
    mean: Tensor | float = 0.0
    var: Tensor | float = 0.0
    samples: int = 0
    batches: int = 0

    def add(self, _: nn.Module, inputs: object, output: Tensor) -> None:
        """Take what the norm has just written: with momentum 1 that is the batch's own."""
        count = output.numel() // self.norm.num_features
        self.mean = self.mean + count * self.norm.running_mean.float()
        self.var = self.var + count * self.norm.running_var.float()
        self.samples, self.batches = self.samples + count, self.batches + 1

    def write(self) -> bool:
        """Write the means over all batches of all processes, if there was one; return whether there was."""
        norm = self.norm
        total = norm.running_mean.new_zeros((2, norm.num_features), dtype=torch.float32)
        total[0], total[1] = self.mean, self.var
        counts = torch.tensor([self.samples, self.batches], device=total.device)
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(total)
            distributed.all_reduce(counts)
        samples, batches = counts.tolist()
        if samples:
            norm.running_mean.copy_(total[0] / samples)
            norm.running_var.copy_(total[1] / samples)
            if norm.num_batches_tracked is not None:
                norm.num_batches_tracked.fill_(batches)
        return bool(samples)


@contextmanager
def _summed(norms: Sequence[Any]) -> Iterator[list[_Sums]]:
    """Let each norm write the statistics of one batch at a time, and sum them."""
    sums, momenta = [_Sums(norm) for norm in norms], [norm.momentum for norm in norms]
    handles = [each.norm.register_forward_hook(each.add) for each in sums]
    try:
        for norm in norms:
            norm.momentum = 1.0
        with torch.compiler.set_stance("force_eager"):  # graphs that were compiled do not know the hooks
            yield sums
    finally:
        for norm, momentum, handle in zip(norms, momenta, handles, strict=True):
            norm.momentum = momentum
            handle.remove()


@contextmanager
def _undone_on_failure(norms: Sequence[Any]) -> Iterator[None]:
    """Put statistics back if an error comes."""
    buffers = [getattr(norm, name) for norm in norms for name in _STATISTICS if getattr(norm, name) is not None]
    before = [buffer.clone() for buffer in buffers]
    try:
        yield
    except BaseException:
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        raise


@contextmanager
def _only_these_in_training(model: nn.Module, norms: Sequence[Any]) -> Iterator[None]:
    """Let these norms alone be in training mode, each over a whole batch."""
    modes = [(module, module.training) for module in model.modules()]
    split = [(norm, norm.splits) for norm in norms if hasattr(norm, "splits")]
    try:
        model.eval()
        for norm in norms:
            norm.train()
        for norm, _ in split:
            norm.splits = 1
        yield
    finally:
        for norm, splits in split:
            norm.splits = splits
        for module, training in modes:  # parents first: train() reaches the children, too, and may do more than it says
            module.train(training)
