"""Noticing that the next training step begins, in anyone's loop.

A phase must change between two steps: after whatever the user does once a step has ended (evaluate, save, copy), and
before the next training forward pass reads the weights. No call of the loop marks that moment, so while a change is
due, and only then, three things watch for it; the first to see a training step begin reports it:

1. forward pre-hooks, on the model and on the layers about to change. They fire in training mode with gradients on;
   evaluation passes them by. A compiled model does not run hooks, so torch.compile is told to run eagerly until that
   step's backward pass (torch.compiler.set_stance): one eager step for each compression, and no graph break.
2. gradient hooks, for loops that call neither the model nor its layers as modules. By then the forward pass has read
   the old weights, so this step's gradient is taken at them; the weights change right after the step.
3. the optimizer's step pre-hook, for loops that write gradients by hand. With a closure it runs before the forward
   pass.

2 and 3 are there for other reasons too (gradients.py, sparsifier.py); this module is 1.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class _EagerForward:
    """Compiled models run eagerly while anyone holds this. The stance is the process's, so holders are counted."""

    def __init__(self) -> None:
        self._holders: set[object] = set()
        self._stance = ExitStack()

    def hold(self, token: object) -> None:
        if not self._holders:
            self._stance.enter_context(torch.compiler.set_stance("force_eager"))
        self._holders.add(token)

    def release(self, token: object) -> None:
        self._holders.discard(token)
        if not self._holders:
            self._stance.close()


_eager_forward = _EagerForward()


class NextForward:
    """Calls `begin` once, when the next training forward pass starts."""

    def __init__(self, modules: Iterable[nn.Module], begin: Callable[[], None]) -> None:
        self._modules = list(dict.fromkeys(modules))
        self._begin = begin
        self._handles: list[RemovableHandle] = []
        self._token = object()
        self._eager = False
        weakref.finalize(self, _eager_forward.release, self._token)  # a run dropped here must not leave all eager

    def arm(self) -> None:
        if self._handles:
            return
        hook = _PreHook(self._begin)
        self._handles = [module.register_forward_pre_hook(hook) for module in self._modules]
        self._eager = True
        _eager_forward.hold(self._token)

    def disarm(self) -> None:
        """Stop watching. Compiled code stays off until `release`: the pass that is running must end as it began."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def release(self) -> None:
        """Let torch.compile compile again."""
        if self._eager:
            self._eager = False
            _eager_forward.release(self._token)


class _PreHook:
    """The hook as an object, so that a copy of the model, or a pickle of it, carries an inert one and not us."""

    def __init__(self, begin: Callable[[], None] | None) -> None:
        self._begin = begin

    def __call__(self, module: nn.Module, args: Any) -> None:
        if self._begin is None or torch.compiler.is_compiling():  # traced after all: backward will notice
            return
        if module.training and torch.is_grad_enabled():
            self._begin()

    def __deepcopy__(self, memo: dict) -> "_PreHook":
        return _PreHook(None)

    def __reduce__(self) -> tuple:
        return _PreHook, (None,)
