"""Batch norm over parts of a batch, as if each part were on its own GPU.

Under DataParallel and DistributedDataParallel every device normalises its share of the batch by that share's own
statistics, and the running statistics are those of the first device. Smaller shares mean noisier statistics, which is
part of a published result: WRN-28-10 was trained on two GPUs, so each batch norm saw 64 of 128 images.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812


class _Normalise(torch.autograd.Function):
    """Normalisation in two passes forward and two back, as torch.compile fuses them: sums over each part, then images.

    With autograd, the gradients of weight and bias would be separate sums over the whole batch. A gradient of the
    gradient is refused: it would be wrong, because `backward` treats the statistics as constants.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, splits: int, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        parts = _parts(x, splits)
        var, mean = torch.var_mean(parts, dim=_IMAGES, correction=0, keepdim=True)
        scale = torch.rsqrt(var + eps)
        ctx.save_for_backward(x, weight, mean, scale)
        ctx.splits = splits
        ctx.mark_non_differentiable(mean, var)
        # Four axes from the start: a view created in here could not be changed in place, as the next ReLU does.
        shift, slope = (each.expand(-1, parts.shape[1], -1, 1, 1).flatten(0, 1) for each in (mean, scale))
        out = (_wide(x) - shift) * (slope * _channels(weight)[0]) + _channels(bias)[0]
        return out.to(x.dtype), mean, var

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, scale = ctx.saved_tensors
        grad, centred = _parts(grads[0], ctx.splits), _parts(x, ctx.splits) - mean
        total, along = grad.sum(_IMAGES, keepdim=True), (grad * centred).sum(_IMAGES, keepdim=True)
        count = x.numel() / total.numel()
        moved = grad - total / count - centred * (scale.square() * along / count)
        images = (moved * (scale * _channels(weight))).to(x.dtype).flatten(0, 1)
        return images, (along * scale).sum(0).flatten(), total.sum(0).flatten(), None, None


_IMAGES = (1, 3, 4)  # the axes of (parts, images, channels, height, width) that statistics are taken over


def _parts(x: Tensor, splits: int) -> Tensor:
    return _wide(x).unflatten(0, (splits, -1))


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _channels(values: Tensor) -> Tensor:
    return values.view(1, 1, -1, 1, 1)


class SplitBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm2d, with its parameters, buffers and evaluation, that trains on a batch in `splits` parts.

    It works part by part with torch's kernels, and on all parts at once where torch.compile fuses that.
    """

    def __init__(self, channels: int, *, splits: int, momentum: float = 0.1) -> None:
        super().__init__(channels, momentum=momentum)
        self.splits = splits

    def forward(self, input: Tensor) -> Tensor:
        x = input
        if not self.training or self.splits == 1:
            return super().forward(x)
        uneven = len(x) % self.splits or len(x) * x.shape[2] * x.shape[3] <= self.splits  # one value has no variance
        return self._part_by_part(x) if uneven or not torch.compiler.is_compiling() else self._at_once(x)

    def _at_once(self, x: Tensor) -> Tensor:
        out, mean, var = _Normalise.apply(x, self.weight, self.bias, self.splits, self.eps)
        self._remember(mean[0].flatten(), var[0].flatten(), x.numel() / self.splits / self.num_features)
        return out

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, count: float) -> None:
        momentum: Any = self.momentum
        for kept, value in ((self.running_mean, mean), (self.running_var, var * (count / (count - 1)))):
            kept.lerp_(value.to(kept.dtype), momentum)  # pyright: ignore[reportOptionalMemberAccess]
        self.num_batches_tracked.add_(1)  # pyright: ignore[reportOptionalMemberAccess]

    def _part_by_part(self, x: Tensor) -> Tensor:
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
