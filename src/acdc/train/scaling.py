"""fp16's gradient scaler, whose skipped steps leave no trace in the model.

GradScaler keeps the optimizer from using gradients that overflowed. By then the forward pass has already put its
activations into batch norm's running statistics, where one that is not finite stays for good.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Scaler(torch.amp.GradScaler):
    """A model's buffers are as they were at `begin` after a step that is skipped."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(device.type)
        self._buffers = _Buffers(model)

    def begin(self) -> None:
        """Before a batch goes through the model."""
        self._buffers.keep()

    def step(self, optimizer: Optimizer, *args: Any, **knobs: Any) -> float | None:
        result = super().step(optimizer, *args, **knobs)
        (overflowed,) = self._found_inf_per_device(optimizer).values()  # one device
        self._buffers.restore_where(overflowed)
        return result


class _Buffers:
    """A model's, and what they held before the step under way. They change in place; nothing waits for the device."""

    def __init__(self, model: nn.Module) -> None:
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for buffer in model.buffers():
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self._kinds = [_Kind(buffers) for buffers in kinds.values()]

    def keep(self) -> None:
        """What they hold now."""
        for kind in self._kinds:
            _copy(kind.parts, kind.buffers)

    def restore_where(self, skipped: Tensor) -> None:
        """What was kept, if `skipped` is not 0. Chosen, not weighted: 0 · NaN is NaN."""
        for kind in self._kinds:
            torch.where(skipped != 0, kind.kept, _joined(kind.buffers), out=kind.kept)
            _copy(kind.buffers, kind.parts)


class _Kind:
    """Buffers of one type, kept in one tensor: models have hundreds of small ones, and a GPU is asked for little."""

    def __init__(self, buffers: list[Tensor]) -> None:
        self.buffers, self.kept = buffers, _joined(buffers)
        parts = self.kept.split([buffer.numel() for buffer in buffers])
        self.parts = [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)]


def _joined(buffers: list[Tensor]) -> Tensor:
    return torch.cat([buffer.flatten() for buffer in buffers])


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
