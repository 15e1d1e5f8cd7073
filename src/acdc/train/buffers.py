"""A step that GradScaler skips leaves no trace in the model's buffers.

GradScaler keeps the optimizer from using gradients that overflowed. By then the forward pass has already put its
activations into batch norm's running statistics, where one that is not finite stays for good.
"""

import torch
from torch import Tensor, nn


class Buffers:
    """A model's, and what they held before the step under way. They change in place; nothing waits for the device."""

    def __init__(self, model: nn.Module) -> None:
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for buffer in model.buffers():
            kinds.setdefault(buffer.dtype, []).append(buffer)
        self._kinds = [(buffers, _joined(buffers)) for buffers in kinds.values()]

    def keep(self) -> None:
        """What they hold now."""
        for buffers, before in self._kinds:
            _copy(_split(before, buffers), buffers)

    def restore_where(self, skipped: Tensor) -> None:
        """What was kept, if `skipped` is not 0. Chosen, not weighted: 0 · NaN is NaN."""
        for buffers, before in self._kinds:
            _copy(buffers, _split(torch.where(skipped != 0, before, _joined(buffers)), buffers))


def _joined(buffers: list[Tensor]) -> Tensor:
    """All in one tensor: a few launches on a GPU, where models have hundreds of small buffers."""
    return torch.cat([buffer.detach().flatten() for buffer in buffers])


def _split(joined: Tensor, buffers: list[Tensor]) -> list[Tensor]:
    parts = joined.split([buffer.numel() for buffer in buffers])
    return [part.view(buffer.shape) for part, buffer in zip(parts, buffers, strict=True)]


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
