"""Groups channels into units, which are kept or removed together wherever they appear in a network.

Every position along a channel axis, of an activation or of a parameter, belongs to a unit. A residual addition joins
the units of what it adds, position by position; a batch norm's parameters belong to the units of its input; flattening
repeats a unit for each pixel. Removing a unit removes all its positions, so shapes fit again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Units:
    """Joins units in a union-find structure. A pinned unit must stay, with all units joined to it."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._pinned: list[bool] = []

    def new(self, count: int, *, pinned: bool = False) -> list[int]:
        """Return `count` new units, joined with nothing."""
        first = len(self._parent)
        self._parent += range(first, first + count)
        self._pinned += [pinned] * count
        return list(range(first, first + count))

    def root(self, unit: int) -> int:
        """Return the unit that represents all units joined with this one."""
        parent = self._parent
        while parent[unit] != unit:
            parent[unit] = parent[parent[unit]]
            unit = parent[unit]
        return unit

    def join(self, some: Sequence[int], others: Sequence[int]) -> None:
        """Join two rows of units, position by position."""
        for one, other in zip(some, others, strict=True):
            low, high = sorted((self.root(one), self.root(other)))
            self._parent[high] = low
            self._pinned[low] |= self._pinned[high]

    def pin(self, units: Iterable[int]) -> None:
        for unit in units:
            self._pinned[self.root(unit)] = True

    def pinned(self, unit: int) -> bool:
        return self._pinned[self.root(unit)]


@dataclass
class Channels:
    """Describes the channel axis of an activation: the unit at each position, and its value if it is constant.

    `constant` holds NaN if a channel's value depends on the input, or on the position in an image.
    """

    axis: int
    units: list[int]
    constant: Tensor

    @classmethod
    def unknown(cls, axis: int, units: list[int]) -> "Channels":
        return cls(axis, units, torch.full((len(units),), torch.nan, dtype=torch.float64))


def moved(channels: Channels, before: Tensor, after: Tensor) -> Channels | None:
    """Follow channels through an operation that moves elements without changing them, such as flatten or transpose.

    `before` held each element's position along the axis, and `after` is the result of the operation on it. Return None
    if the positions no longer lie along one axis, for example if channels are split into heads.
    """
    axes = [axis for axis in range(after.ndim) if _lies_along(after, axis)]
    if len(axes) != 1 or before.numel() != after.numel():
        return None
    positions = _along(after, axes[0]).tolist()
    return Channels(axes[0], [channels.units[at] for at in positions], channels.constant[positions])


def positions(channels: Channels, shape: Sequence[int]) -> Tensor:
    """Return a tensor of this shape that holds each element's position along the channels' axis."""
    view = [1] * len(shape)
    view[channels.axis] = -1
    return torch.arange(len(channels.units)).view(view).expand(*shape).contiguous()


def _along(tensor: Tensor, axis: int) -> Tensor:
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1)[:, 0]


def _lies_along(tensor: Tensor, axis: int) -> bool:
    rows = tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1)
    return bool((rows == rows[:, :1]).all())
