"""Batch norm over parts of a batch, as if each part were on a GPU of its own.

Under DataParallel and DistributedDataParallel every device normalises its share of the batch by that share's own
statistics, and the running statistics kept are those of the first. Smaller shares mean noisier statistics, which is
part of a published result: WRN-28-10 was trained on two GPUs, so each batch norm saw 64 of 128 images.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class SplitBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d with the same parameters, buffers and evaluation; training batches are normalised in `splits` parts.

    Written as plain arithmetic where the batch divides, which torch.compile fuses into as many passes as batch norm.
    """

    def __init__(self, channels: int, *, splits: int, momentum: float = 0.1) -> None:
        super().__init__(channels, momentum=momentum)
        self.splits = splits

    def forward(self, input: Tensor) -> Tensor:
        x = input
        if not self.training or self.splits == 1:
            return super().forward(x)
        if len(x) % self.splits:
            return self._one_by_one(x)
        parts = x.unflatten(0, (self.splits, -1)).float()
        var, mean = torch.var_mean(parts, dim=(1, 3, 4), correction=0, keepdim=True)
        with torch.no_grad():
            count = parts[0].numel() / parts.shape[2]
            self._remember(mean[0].flatten(), var[0].flatten() * (count / (count - 1)))
        out = (parts - mean) * torch.rsqrt(var + self.eps) * self.weight.view(1, 1, -1, 1, 1)
        return (out + self.bias.view(1, 1, -1, 1, 1)).to(x.dtype).flatten(0, 1)

    def _remember(self, mean: Tensor, var: Tensor) -> None:
        momentum: Any = self.momentum
        for kept, value in ((self.running_mean, mean), (self.running_var, var)):
            kept.lerp_(value, momentum)  # type: ignore[union-attr]
        self.num_batches_tracked.add_(1)  # type: ignore[union-attr]

    def _one_by_one(self, x: Tensor) -> Tensor:
        first, *rest = x.tensor_split(self.splits)
        out = [super().forward(first)]
        out += [
            F.batch_norm(part, None, None, self.weight, self.bias, training=True, eps=self.eps)
            for part in rest
            if len(part)
        ]
        return torch.cat(out)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, splits={self.splits}"
