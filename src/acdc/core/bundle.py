"""Layers worked on together: their weights lie one after another in one tensor, so that one operation does for all.

Launching an operation costs a GPU more than the work of a small layer, so there all layers of one kind make one bundle.
On a CPU what is worked on together should stay in its cache, so bundles are small, and a large layer is one by itself.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from acdc.sparsity.layers import Weight

_CPU_SIZE, _CPU_PIECE, _SIZE = 1 << 18, 1 << 17, 1 << 26  # elements


class Bundle:
    """Some layers of one device, type and group of the optimizer. Their order in memory is that of each parameter."""

    def __init__(self, weights: Sequence[Weight], group: int) -> None:
        self.weights, self.group = tuple(weights), group
        self.names = tuple(weight.name for weight in weights)
        self.params = [weight.param for weight in weights]
        self.sizes = [param.numel() for param in self.params]
        self.size = sum(self.sizes)
        self._strides = [torch.empty_like(param, device="meta").stride() for param in self.params]
        self._starts = [sum(self.sizes[:index]) for index in range(len(self.sizes))]
        self._views: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def new(self, *, dtype: torch.dtype | None = None) -> Tensor:
        """An unwritten tensor for all layers."""
        return torch.empty(self.size, dtype=dtype or self.params[0].dtype, device=self.params[0].device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Views of the layers' parts, in the shapes and layouts of their parameters."""
        layouts = zip(self.params, self._strides, self._starts, strict=True)
        first = flat.storage_offset()
        return [flat.as_strided(param.shape, stride, first + start) for param, stride, start in layouts]

    def split_once(self, flat: Tensor) -> list[Tensor]:
        """As `split`, of a tensor that stays where it is: the views are remembered, where there are several."""
        if len(self.params) == 1:  # it may be the parameter's own memory, which must not be kept alive here
            return self.split(flat)
        if flat.data_ptr() not in self._views:
            self._views[flat.data_ptr()] = flat, self.split(flat)
        return self._views[flat.data_ptr()][1]

    def as_one(self, parts: list[Tensor]) -> Tensor | None:
        """The layers' tensors as one without a copy, where they lie together, as those of one layer by itself do."""
        return parts[0].detach().as_strided((self.size,), (1,)) if self._together(parts) else None

    @torch.no_grad()
    def join(self, tensors: dict[str, Tensor]) -> Tensor:
        """The layers' tensors, by name, as one. Where they lie apart they are moved together, and replaced by views."""
        parts = [tensors[name] for name in self.names]
        if (together := self.as_one(parts)) is not None:
            return together
        flat = self.new(dtype=parts[0].dtype)
        views = self.split(flat)
        torch._foreach_copy_(views, parts)  # pyright: ignore[reportPrivateImportUsage]
        tensors.update(zip(self.names, views, strict=True))
        return flat

    def _together(self, parts: list[Tensor]) -> bool:
        first, width = parts[0].data_ptr(), parts[0].element_size()
        return (
            all(part.data_ptr() == first + start * width for part, start in zip(parts, self._starts, strict=True))
            and parts[0].untyped_storage().data_ptr() == parts[-1].untyped_storage().data_ptr()
            and all(part.stride() == stride for part, stride in zip(parts, self._strides, strict=True))
        )

    def sums(self, flat: Tensor) -> Tensor:
        """The sum over each layer."""
        return torch.stack([part.sum() for part in flat.split(self.sizes)])

    def spread(self, values: Tensor) -> Tensor:
        """A value of each layer for each of its weights, in a shape that broadcasts."""
        if len(self.sizes) == 1:
            return values[0]
        return torch.cat([value.expand(size) for value, size in zip(values, self.sizes, strict=True)])

    def pieces(self, *flats: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """For work of many operations on each weight by itself: matching pieces, which stay in a CPU's cache."""
        piece = _CPU_PIECE if flats[0].device.type == "cpu" else self.size
        return zip(*(flat.split(piece) for flat in flats), strict=True)

    def with_gradients(self) -> "list[Bundle]":
        """The layers that have a gradient, each by itself where others have none."""
        if all(param.grad is not None for param in self.params):
            return [self]
        return [Bundle([weight], self.group) for weight in self.weights if weight.param.grad is not None]


def bundles(weights: Iterable[Weight], optimizer: Optimizer) -> list[Bundle]:
    """All of the weights, in their order within each bundle."""
    group_of = {id(param): index for index, group in enumerate(optimizer.param_groups) for param in group["params"]}
    alike: dict[tuple, list[Weight]] = {}
    for weight in weights:
        param = weight.param
        alike.setdefault((param.device, param.dtype, group_of[id(param)], param.requires_grad), []).append(weight)
    made = []
    for (device, _, group, _), found in alike.items():
        room = limit = _CPU_SIZE if device.type == "cpu" else _SIZE
        together: list[Weight] = []
        for weight in found:
            if together and weight.param.numel() > room:
                made.append(Bundle(together, group))
                room, together = limit, []
            together.append(weight)
            room -= weight.param.numel()
        made.append(Bundle(together, group))
    return made
