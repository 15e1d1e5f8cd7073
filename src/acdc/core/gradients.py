"""Masking gradients as backward writes them, so that clipping, accumulation and the optimizer see zeros.

On a CPU each gradient is masked at once, while it is in the cache. On a GPU launching a kernel for each would cost more
than the work itself, so all wait for the end of the backward pass, and the small ones are masked together. Before the
optimizer's step, gradients that were changed since (clipped, unscaled, noised) or written by hand are masked again.

Some methods look at the gradients of pruned weights. In steps in which they do, nothing is masked until they have.
"""

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from acdc.sparsity.layers import Weight
from acdc.sparsity.masks import apply_

_SMALL = 1 << 21  # elements; a larger tensor keeps the GPU busy for as long as a launch takes


class Gradients:
    """The gradients of some weights. While `alert` is set, `on_gradient` is called before each is looked at."""

    def __init__(self, weights: Mapping[str, Weight], on_gradient: Callable[[], None]) -> None:
        self.alert = False
        self.observed = False  # in this step they are to be seen whole, and masked only then
        self._whole: dict[str, Tensor] = {}  # copies, of those that had to be masked before they were seen
        self._weights = weights
        self._on_gradient = on_gradient
        self._handles: list[RemovableHandle] = []
        self._masks: Mapping[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}
        self._masked: dict[str, tuple[weakref.ref[Tensor], int]] = {}  # gradient and version, as masking left them
        self._backward = -1  # the pass at whose end the GPU's gradients will be masked

    def watch(self) -> None:
        """Hook the gradients; until `mask` is called they are only noticed."""
        if not self._handles:
            self._handles = [
                weight.param.register_post_accumulate_grad_hook(_hook(weakref.ref(self), name))
                for name, weight in self._weights.items()
                if weight.param.requires_grad
            ]

    def mask(self, masks: Mapping[str, Tensor]) -> None:
        """Mask every gradient from now on. Small ones on a GPU get the mask as factors 0 and 1 of their own type."""
        self.watch()
        self._masks = masks
        self._masked.clear()
        for name, mask in masks.items():
            if mask.is_cuda and mask.numel() <= _SMALL:
                param = self._weights[name].param
                factor = self._factors.setdefault(name, torch.empty_like(param, requires_grad=False))
                factor.copy_(mask).neg_()  # in place: a CUDA graph goes on reading the same memory

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._masks = [], {}

    def expect(self, *, alert: bool, observed: bool) -> None:
        """What the step to come asks for."""
        self.alert, self.observed, self._whole = alert, observed, {}

    def whole(self) -> dict[str, Tensor]:
        """Those there are, by name; in a step that is observed, as they were before masking."""
        grads = {name: w.param.grad.detach() for name, w in self._weights.items() if w.param.grad is not None}
        return grads | {name: whole for name, whole in self._whole.items() if name in grads}

    def keep_whole(self) -> None:
        """Keep copies of those that masking would change, until the step to come."""
        grads = {name: self._weights[name].param.grad for name in self.unmasked()}
        self._whole |= {name: grad.detach().clone() for name, grad in grads.items() if grad is not None}

    def unmasked(self) -> list[str]:
        """Weights whose gradient is not as masking left it: written by hand, or changed since, if only by clipping."""
        return [
            name
            for name in self._masks
            if (grad := self._weights[name].param.grad) is not None and not self._is_masked(name, grad)
        ]

    def mask_now(self) -> None:
        """Mask every gradient there is that is not masked, whoever wrote it."""
        small, factors, names = [], [], self.unmasked()
        for name in names:
            grad = self._weights[name].param.grad
            if name in self._factors:
                small.append(grad)
                factors.append(self._factors[name])
            elif grad is not None:
                apply_(grad, self._masks[name])
        if small:  # 0 · ∞ is NaN: an infinite gradient of a pruned weight shows here, where an AND would hide it
            torch._foreach_mul_(small, factors)  # pyright: ignore[reportPrivateImportUsage]
        for name in names:
            self._remember(name)

    def mask_again(self) -> None:
        """Mask every gradient there is, also those that look masked: a change through .data leaves no trace."""
        self._masked.clear()
        self.mask_now()

    def _remember(self, name: str) -> None:
        if (grad := self._weights[name].param.grad) is not None:
            self._masked[name] = (weakref.ref(grad), grad._version)

    def _is_masked(self, name: str, grad: Tensor) -> bool:
        """By the object itself: a freed gradient's id may be the next one's."""
        seen, version = self._masked.get(name, (None, -1))
        return seen is not None and seen() is grad and version == grad._version

    def _written(self, name: str, param: Tensor) -> None:
        if self.alert:
            self._on_gradient()
        if self.observed:
            return
        if param.is_cuda:
            backward = torch._C._current_graph_task_id()
            if backward != self._backward:
                self._backward = backward
                _when_backward_ends(self.mask_now)
        elif name in self._masks and param.grad is not None:
            apply_(param.grad, self._masks[name])
            self._remember(name)


def _hook(gradients: "weakref.ref[Gradients]", name: str) -> Callable[[Tensor], None]:
    """A weak reference, because Python's garbage collector does not look into the hooks of a tensor."""

    def gradient_written(param: Tensor) -> None:
        if (owner := gradients()) is not None:
            owner._written(name, param)

    return gradient_written


def _when_backward_ends(call: Callable[[], Any]) -> None:
    """Run `call` when the backward pass now running ends, after what DistributedDataParallel has queued for then."""
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))
