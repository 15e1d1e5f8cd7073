"""Masking gradients as backward writes them, so that clipping, accumulation and the optimizer see zeros.

On a CPU each gradient is masked at once, while it is in the cache. On a GPU launching a kernel for each would cost more
than the work itself, so they wait for the end of the backward pass and the small ones are masked together.
"""

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
        self.masked: set[str] = set()  # names of weights whose gradient was masked; the owner clears it
        self._weights = weights
        self._on_gradient = on_gradient
        self._handles: list[RemovableHandle] = []
        self._masks: Mapping[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}
        self._waiting: list[str] = []

    def watch(self) -> None:
        """Hook the gradients; until `mask` is called they are only noticed."""
        if not self._handles:
            self._handles = [
                weight.param.register_post_accumulate_grad_hook(
                    self._gpu_hook(name) if weight.param.is_cuda else self._cpu_hook(name)
                )
                for name, weight in self._weights.items()
                if weight.param.requires_grad
            ]

    def mask(self, masks: Mapping[str, Tensor]) -> None:
        """Mask every gradient from now on. Small ones on a GPU get the mask as factors 0 and 1 of their own type."""
        self.watch()
        self._masks = masks
        self._factors = {
            name: mask.neg().to(self._weights[name].param.dtype)
            for name, mask in masks.items()
            if mask.is_cuda and mask.numel() <= _SMALL
        }

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._masks, self._factors = [], {}, {}
        self._waiting.clear()

    def mask_now(self) -> None:
        """Mask the gradients there are, whether backward wrote them or the user did."""
        self._waiting[:] = self._masks
        self.finish_waiting()

    def finish_waiting(self) -> None:
        """Mask what waits for the end of a backward pass: when it has come, or when the pass broke off."""
        small, factors = [], []
        for name in self._waiting:
            grad = self._weights[name].param.grad
            if grad is None or name not in self._masks:
                continue
            self.masked.add(name)
            if name in self._factors:
                small.append(grad)
                factors.append(self._factors[name])
            else:
                apply_(grad, self._masks[name])
        if small:  # 0 · ∞ is NaN: an infinite gradient of a pruned weight shows here, where an AND would hide it
            torch._foreach_mul_(small, factors)  # pyright: ignore[reportPrivateImportUsage]
        self._waiting.clear()

    def _cpu_hook(self, name: str) -> Callable[[Tensor], None]:
        def mask_gradient(param: Tensor) -> None:
            if self.alert:
                self._on_gradient()
            if name in self._masks and param.grad is not None:
                apply_(param.grad, self._masks[name])
                self.masked.add(name)

        return mask_gradient

    def _gpu_hook(self, name: str) -> Callable[[Tensor], None]:
        waiting = self._waiting

        def let_wait(param: Tensor) -> None:
            if self.alert:
                self._on_gradient()
            if not waiting:
                _when_backward_ends(self.finish_waiting)
            waiting.append(name)

        return let_wait


def _when_backward_ends(call: Callable[[], Any]) -> None:
    """Run `call` when the backward pass now running ends, after what DistributedDataParallel has queued for then."""
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))
