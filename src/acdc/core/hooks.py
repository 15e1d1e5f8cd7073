"""Hooks that notice when a training step begins, in anyone's loop, and facts about optimizers and wrappers.

A phase must change between two steps: after whatever the user does when a step has ended (evaluate, save, copy), and
before the next training forward pass reads the weights. No call in the loop marks that moment, so while a change is
due, and only then, three things watch for it; the first to see a training step begin reports it:

1. forward pre-hooks, on the model and on the layers about to change. They fire in training mode with gradients on;
   evaluation does not trigger them. A compiled model runs no hooks, so torch.compile is told to run eagerly until that
   step's backward pass (torch.compiler.set_stance): one eager step for each compression, and no graph break.
2. gradient hooks, for loops that call neither the model nor its layers as modules. By then the forward pass has read
   the old weights, so this step's gradient is taken at them; the weights change right after the step.
3. the optimizer's step pre-hook, for loops that write gradients by hand. With a closure it runs before the forward
   pass.

2 and 3 exist for other reasons too (masking.py, sparsifier.py); this module is 1.
"""

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from acdc.core.optimizers import combine, parts_of
from acdc.sparsity.layers import local_part

# These are elementwise, and zero weight, gradient and state give zero weight and state.
_KEEPS_ZEROS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
FIRST_MOMENTS = ("momentum_buffer", "exp_avg", "momentum", "m", "mu")

_WITHOUT_MOMENTUM = (torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta)  # or off

Hook = TypeVar("Hook", bound=Callable[..., Any])

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)


class _EagerForward:
    """A switch that makes compiled models run eagerly while held. It acts on the whole process: holders are counted."""

    def __init__(self) -> None:
        self._holders: set[object] = set()
        self._stance = ExitStack()

    def hold(self, token: object) -> None:
        if not self._holders:
            self._stance.enter_context(torch.compiler.set_stance("force_eager"))
        self._holders.add(token)

    def release(self, token: object) -> None:
        if token in self._holders:
            self._holders.remove(token)
            if not self._holders:
                self._stance.close()


_eager_forward = _EagerForward()


class NextForward:
    """A watch that calls `begin` once, when the next training forward pass starts.

    `first` runs it before all other hooks: those of fully_shard copy the weights that are about to change.
    """

    def __init__(self, modules: Iterable[nn.Module], begin: Callable[[], None], *, first: bool = False) -> None:
        self._modules = list(dict.fromkeys(modules))
        self._begin, self._first = begin, first
        self._handles: list[RemovableHandle] = []
        self._token = object()
        weakref.finalize(self, _eager_forward.release, self._token)  # a dropped run must not leave everything eager

    def arm(self) -> None:
        """Start watching, with compiled code, which runs no hooks, switched off meanwhile."""
        if self._handles:
            return
        hook = _PreHook(self._begin)
        self._handles = [module.register_forward_pre_hook(hook, prepend=self._first) for module in self._modules]
        _eager_forward.hold(self._token)

    def disarm(self) -> None:
        """Stop watching. Compiled code stays off until `release`: a pass must end the way it began."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def release(self) -> None:
        """Let torch.compile compile again."""
        _eager_forward.release(self._token)


class _PreHook:
    """The hook as an object, so that a copy or pickle of the model carries an inert one instead of the sparsifier."""

    def __init__(self, begin: Callable[[], None] | None) -> None:
        self._begin = begin

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._begin is None or torch.compiler.is_compiling():  # traced all the same: backward will notice
            return
        if module.training and torch.is_grad_enabled():
            self._begin()

    def __deepcopy__(self, memo: dict) -> "_PreHook":
        return _PreHook(None)

    def __reduce__(self) -> tuple:
        return _PreHook, (None,)


def untraced(hook: Hook) -> Hook:
    """Return the hook for loops that compile their whole step, or their optimizer's: it runs as it is, untraced."""
    return torch.compiler.disable(hook)  # pyright: ignore[reportReturnType]


def plain_model(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, DataParallel and torch.compile wrappers."""
    while True:
        if isinstance(model, _WRAPPERS):
            model = model.module
        elif (inner := getattr(model, "_orig_mod", None)) is not None:
            model = inner
        else:
            return model


def plain_optimizer(optimizer: Optimizer | Sequence[Optimizer]) -> Optimizer:
    """Return the optimizer inside Accelerate's wrapper, which has no hooks of its own; of several, one for all."""
    if isinstance(optimizer, Sequence):
        return combine([plain_optimizer(part) for part in optimizer])
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer


def is_first_process() -> bool:
    """Return whether this is the process that prints, of several that train together."""
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def keeps_zeros(optimizer: Optimizer) -> bool:
    """Return True if the optimizer is known to leave zero weights with zero gradient and state at zero."""
    return all(type(part) in _KEEPS_ZEROS or getattr(part, "keeps_zeros", False) for part in parts_of(optimizer))


def reset_state(optimizer: Optimizer, what: str) -> list[str]:
    """Reset "all" of the optimizer's state, its "momentum" or "nothing". Return the types that have no known state.

    State is zeroed in place: replayed CUDA graphs continue to read the same memory.
    """
    unknown: list[str] = []
    for part in parts_of(optimizer):
        if what == "all":
            part.state.clear()
        if what != "momentum" or not part.state:
            continue
        moments = [state[key] for state in part.state.values() for key in FIRST_MOMENTS if key in state]
        for moment in moments:
            if isinstance(moment, torch.Tensor):
                local_part(moment).zero_()
        if not moments and not isinstance(part, _WITHOUT_MOMENTUM):
            unknown.append(type(part).__name__)
    return unknown


def state_like(optimizer: Optimizer, param: torch.Tensor) -> list[torch.Tensor]:
    """Return the optimizer state that belongs to single weights: the tensors of the parameter's shape.

    Of a sharded parameter, it is the part that this process holds.
    """
    state = optimizer.state.get(param, {}).values()
    alike = [v for v in state if isinstance(v, torch.Tensor) and v.shape == param.shape and v.is_floating_point()]
    return [local_part(value) for value in alike]


def step_was_skipped(optimizer: Optimizer) -> bool:
    """Return True if a fused optimizer under GradScaler skipped its update in step(), whose hooks run all the same."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf.item())


def loss_scale(optimizer: Optimizer) -> torch.Tensor | None:
    """Return the number by which a fused optimizer under GradScaler will divide the gradients in step(), if any."""
    return getattr(optimizer, "grad_scale", None)


def has_closure(args: tuple, kwargs: dict) -> bool:
    """Return True if optimizer.step was called with a closure; torch passes hooks the optimizer in `args`."""
    return any(callable(value) and not isinstance(value, Optimizer) for value in (*args, *kwargs.values()))
