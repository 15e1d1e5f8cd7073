"""Weights and the layers they belong to: what every part of acdc that prunes is given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from acdc.sparsity.computed import Computation
from acdc.sparsity.kinds import AXES


@dataclass(frozen=True, eq=False)
class Weight:
    """One weight tensor of the model: its name in the state dict, and the layer it belongs to."""

    name: str
    param: nn.Parameter
    module: nn.Module
    kind: str  # one of AXES, or "other"
    computation: Computation | None = None  # how the layer computes it, where it does: `param` is then a source of it

    @property
    def out_dim(self) -> int:
        """The axis of output channels."""
        return self._axes[0]

    @property
    def in_dim(self) -> int:
        """The axis of input channels."""
        return self._axes[1]

    @property
    def _axes(self) -> tuple[int, int]:
        check_axes("out_dim and in_dim", self, "do without them")
        return AXES[self.kind]

    @property
    def depthwise(self) -> bool:
        groups = getattr(self.module, "groups", 1)
        return self.kind.startswith("conv") and groups > 1 and groups == self.module.in_channels


def check_axes(argument: str, weight: Weight, instead: str) -> None:
    """Refuse a weight whose output and input axes are not known, where `argument` needs them."""
    if weight.kind not in AXES:
        raise ValueError(
            f"{argument}: {weight.name} belongs to {type(weight.module).__name__}, a layer type whose output and input "
            "axes are not known; expected weights of convolutions, linear layers, attention or embeddings only. Leave "
            f"it dense with exclude=[{weight.name!r}]; or {instead}"
        )


@dataclass(frozen=True)
class Layers:
    """The prunable weights of a model in the order they are registered, and why each other one stays dense.

    `computed` are those that would be pruned if their layers did not compute them from other parameters.
    """

    weights: tuple[Weight, ...]
    left_dense: Mapping[str, str]
    computed: tuple[Weight, ...] = ()

    @property
    def size(self) -> int:
        return sum(w.param.numel() for w in self.weights)

    def warnings(self) -> list[str]:
        """Return what a user may not expect of these layers. The sparsifier says it as it is attached."""
        if not self.computed:
            return []
        names = [weight.name for weight in self.computed]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        size = sum(weight.param.numel() for weight in self.computed)
        whole = size + self.size
        ways = [weight.computation for weight in self.computed if weight.computation]
        by = " or ".join(dict.fromkeys(way.by for way in ways))
        undo = " or ".join(dict.fromkeys(way.undo("layer") for way in ways))
        return [
            f"some weights stay dense: {', '.join(names[:3])}{more}, which are {size:,} of {whole:,} weights "
            f"({size / whole:.0%}). At each forward pass they are computed by {by}, "
            f"so that no parameter can be pruned for them. To prune them, call {undo} before attaching; to keep them "
            f"dense without this warning, write exclude=[{names[0]!r}{', …' if len(names) > 1 else ''}]"
        ]


def merge_aliases(weights: Sequence[Weight]) -> list[list[Weight]]:
    """Group the names of each parameter, in the order given."""
    groups: dict[int, list[Weight]] = {}
    for weight in weights:
        group = groups.setdefault(id(weight.param), [])
        if all(weight.name != alias.name for alias in group):
            group.append(weight)
    return list(groups.values())
