"""The precision that a model is trained and run in, and fp16's gradient scaler.

GradScaler keeps the optimizer from using gradients that overflowed. By then the forward pass has already put its
activations into batch norm's running statistics, where a value that is not finite stays for good: `Scaler` undoes that.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.recipes.schema import Recipe
from acdc.train import hardware


def unsupported(precision: str, device: torch.device, *, begun: bool = False) -> str | None:
    """Return why this device cannot compute in this precision, and what to type instead; None if it can."""
    if device.type != "cpu":
        return None
    if precision == "fp16":
        return 'it needs a GPU; on a CPU add --set train.precision=bf16, or "fp32"'
    return hardware.bf16_advice(begun=begun) if precision == "bf16" and hardware.bf16_crash() else None


def with_supported_precision(recipe: Recipe, device: torch.device) -> Recipe:
    """Return the recipe, with fp32 if `device` lacks its precision, for evaluation; training is refused then."""
    if unsupported(recipe.train.precision, device) is None:
        return recipe
    return replace(recipe, train=replace(recipe.train, precision="fp32"))


def autocast(precision: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context that computes in bf16 or fp16 if the precision says so."""
    if precision in ("bf16", "fp16"):
        return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)
    return nullcontext()


class Scaler(torch.amp.GradScaler):
    """A GradScaler that restores a model's buffers, as they were at `begin`, after a step that it skips."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(device.type)
        self._buffers = _Buffers(model)

    def begin(self) -> None:
        """Remember the buffers, before a batch goes through the model."""
        self._buffers.keep()

    def step(self, optimizer: Optimizer, *args: Any, **knobs: Any) -> float | None:
        result = super().step(optimizer, *args, **knobs)
        (overflowed,) = self._found_inf_per_device(optimizer).values()  # one device
        self._buffers.restore_where(overflowed)
        return result


class _Buffers:
    """A copy of a model's buffers from before the current step, updated in place without waiting for the device."""

    def __init__(self, model: nn.Module) -> None:
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for buffer in model.buffers():
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self._kinds = [_Kind(buffers) for buffers in kinds.values()]

    def keep(self) -> None:
        """Copy the current contents of the buffers."""
        for kind in self._kinds:
            _copy(kind.parts, kind.buffers)

    def restore_where(self, skipped: Tensor) -> None:
        """Copy the contents back if `skipped` is not 0. This selects rather than multiplies: 0 · NaN is NaN."""
        for kind in self._kinds:
            torch.where(skipped != 0, kind.kept, _joined(kind.buffers), out=kind.kept)
            _copy(kind.buffers, kind.parts)


class _Kind:
    """Buffers of one type, copied into one tensor: models have hundreds of small ones, and launches cost a GPU."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self.buffers, self.kept = buffers, _joined(buffers)
        parts = self.kept.split([buffer.numel() for buffer in buffers])
        self.parts = [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)]


def _joined(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.flatten() for buffer in buffers])


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
