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
    """The gradients of some weights. `on_gradient` is called before each is looked at."""

    def __init__(self, weights: Mapping[str, Weight], on_gradient: Callable[[], None]) -> None:
        self._weights = weights
        self._on_gradient = on_gradient
        self._handles: list[RemovableHandle] = []
        self._masks: Mapping[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}
        self._waiting: list[str] = []
        self.masked: set[str] = set()  # names of weights whose gradient was masked; the owner clears it

    def watch(self) -> None:
        """Hook the gradients; until `mask` is called they are only noticed."""
        if not self._handles:
            self._handles = [
                weight.param.register_post_accumulate_grad_hook(self._hook(name, weight.param.is_cuda))
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
        self._handles, self._masks, self._factors, self._waiting = [], {}, {}, []

    def mask_now(self) -> None:
        """Mask the gradients there are, whether backward wrote them or the user did."""
        self._waiting = list(self._masks)
        self._mask_waiting()

    def _hook(self, name: str, on_gpu: bool) -> Callable[[Tensor], None]:
        def gradient_written(param: Tensor) -> None:
            self._on_gradient()
            if name not in self._masks or param.grad is None:
                return
            if on_gpu:
                self._waiting.append(name)
                if len(self._waiting) == 1:
                    _when_backward_ends(self._mask_waiting)
            else:
                apply_(param.grad, self._masks[name])
                self.masked.add(name)

        return gradient_written

    def finish_waiting(self) -> None:
        """Only needed where a backward pass broke off."""
        if self._waiting:
            self._mask_waiting()

    def _mask_waiting(self) -> None:
        waiting = {name: self._weights[name].param.grad for name in self._waiting if name in self._masks}
        gradients = {name: grad for name, grad in waiting.items() if grad is not None}
        small = [name for name in gradients if name in self._factors]
        if small:  # 0 · ∞ is NaN: an infinite gradient of a pruned weight shows here, where an AND would hide it
            factors = [self._factors[name] for name in small]
            torch._foreach_mul_([gradients[name] for name in small], factors)  # pyright: ignore[reportPrivateImportUsage]
        for name in gradients.keys() - self._factors.keys():
            apply_(gradients[name], self._masks[name])
        self.masked.update(gradients)
        self._waiting = []


def _when_backward_ends(call: Callable[[], Any]) -> None:
    """Run `call` when the backward pass now running ends, after what DistributedDataParallel has queued for then."""
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))
