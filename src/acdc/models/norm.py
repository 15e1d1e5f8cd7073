"""Batch norm over parts of a batch, as if each part were on its own GPU.

Under DataParallel and DistributedDataParallel every device normalises its share of the batch by that share's own
statistics, and the running statistics are those of the first device. Smaller shares mean noisier statistics, which is
part of a published result: WRN-28-10 was trained on two GPUs, so each batch norm saw 64 of 128 images, and the ImageNet
networks on four, so each saw 64 of 256.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812
from torch.nn.modules.batchnorm import _BatchNorm

from acdc.errors import ArgumentError


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

    def __init__(self, channels: int, *, splits: int, momentum: float | None = 0.1, **options: Any) -> None:
        super().__init__(channels, momentum=momentum, **options)
        self.splits = splits

    def forward(self, input: Tensor) -> Tensor:
        x = input
        if not self.training or self.splits == 1:
            return super().forward(x)
        uneven = len(x) % self.splits or len(x) * x.shape[2] * x.shape[3] <= self.splits  # one value has no variance
        plain = self.affine and self.track_running_stats and self.momentum is not None
        at_once = plain and not uneven and torch.compiler.is_compiling()
        return self._at_once(x) if at_once else self._part_by_part(x)

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
        # A short last batch makes fewer parts where one image has no variance: one value per channel.
        few = max(1, len(x) // 2) if x.shape[2] * x.shape[3] == 1 else self.splits
        first, *rest = x.tensor_split(min(self.splits, few))
        out = [super().forward(first)]
        out += [
            F.batch_norm(part, None, None, self.weight, self.bias, training=True, eps=self.eps)
            for part in rest
            if len(part)
        ]
        return torch.cat(out)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, splits={self.splits}"


def split_batch_norms(model: nn.Module, splits: int) -> None:
    """Replace every BatchNorm2d in the model by one that sees a batch in `splits` parts; with 1 change nothing."""
    if isinstance(splits, bool) or not isinstance(splits, int) or splits < 1:
        expected = "expected the number of parts of a batch, a whole number, 1 or more"
        raise ArgumentError("bn_splits", received=splits, allowed=expected, instead="write bn_splits=2, or 1 for none")
    if splits == 1:
        return
    norms = {id(module): module for module in model.modules() if type(module) is nn.BatchNorm2d}
    others = [(name, m) for name, m in model.named_modules() if isinstance(m, _BatchNorm) and id(m) not in norms]
    if others or not norms or model is norms.get(id(model)):
        found = f"{type(model).__name__} has none inside"
        if others:
            found = f"{others[0][0]} is a {type(others[0][1]).__name__}"
        allowed = f"it splits the batches of nn.BatchNorm2d layers, and {found}"
        raise ArgumentError("bn_splits", received=splits, allowed=allowed, instead="write bn_splits=1 or leave it out")
    split = {key: _split(norm, splits) for key, norm in norms.items()}
    for module in list(model.modules()):
        for name, child in module.named_children():
            if id(child) in split:
                setattr(module, name, split[id(child)])


def _split(norm: nn.BatchNorm2d, splits: int) -> SplitBatchNorm2d:
    """Return a split batch norm with the same parameters and buffers, not copies."""
    options = {"eps": norm.eps, "affine": norm.affine, "track_running_stats": norm.track_running_stats}
    with torch.device("meta"):
        split = SplitBatchNorm2d(norm.num_features, splits=splits, momentum=norm.momentum, **options)
    for name, param in norm.named_parameters():
        setattr(split, name, param)
    for name, buffer in norm.named_buffers():
        split.register_buffer(name, buffer)
    return split.train(norm.training)
