"""Shortens the steps of weights that came back at the last decompression, and leaves those of the survivors.

A weight that comes back starts at 0 beside weights that were trained all along. Its step, whatever optimizer computes
it, is the difference between the weight after the optimizer's step and before it; here a factor, usually below 1,
multiplies that difference:

    θ ← θ_before + f · (θ_after − θ_before)        where the last masks pruned; survivors keep every bit

Which weights these are is kept among what a method remembers, so that a run resumes inside a ramp. A step whose factor
is 1 costs nothing; others cost a copy of the prunable weights, one pass over them, and 1 byte a weight. In a loop whose
optimizer steps are captured in a CUDA graph nothing is shortened.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from acdc.sparsity import masks as working
from acdc.sparsity.layers import Weight

SURVIVORS = "survivors"  # the key of a method's memory: packed masks of the phase before, by layer


def remember(memory: dict[str, Any], masks: Mapping[str, Tensor]) -> None:
    """Remember which weights survived: boolean masks, True where a weight was kept."""
    memory[SURVIVORS] = {name: working.pack(working.from_bool(mask)) for name, mask in masks.items()}


class ReturningWeights:
    """Scales one optimizer step at a time: `before_step` with the step's factor, then `after_step`."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = weights
        self._before: dict[str, Tensor] = {}
        self._factor = 1.0
        self._packed: Mapping[str, Tensor] | None = None  # what `_masks` were made of
        self._masks: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_step(self, factor: float, memory: Mapping[str, Any]) -> None:
        """Keep the weights as they are if the coming step is to be shortened."""
        self._factor, packed = factor, memory.get(SURVIVORS)
        if factor == 1.0 or packed is None or self._is_captured():
            self._before, self._masks, self._packed = {}, {}, None
            return
        if packed is not self._packed:
            self._packed = packed
            self._masks = {
                name: working.as_bool(working.unpack(bits, self._weights[name].local)) for name, bits in packed.items()
            }
        self._before = {name: self._weights[name].local.clone() for name in self._masks}

    def _is_captured(self) -> bool:
        """Return whether a CUDA graph is being captured: it would take this step's factor in all its replays."""
        on_gpu = any(weight.param.is_cuda for weight in self._weights.values())
        return on_gpu and torch.cuda.is_current_stream_capturing()

    @torch.no_grad()
    def after_step(self, names: Iterable[str] | None = None) -> None:
        """Take back what is too much of the step that has been taken, by all of the weights or some."""
        for name in [*self._before] if names is None else names:
            if (before := self._before.pop(name, None)) is not None:
                now = self._weights[name].local
                now.copy_(torch.where(self._masks[name], now, torch.lerp(before, now, self._factor)))
