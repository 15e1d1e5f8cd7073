"""Methods that compress by a score, not necessarily the magnitude."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import nn

from acdc import criteria
from acdc.core.context import MethodContext
from acdc.core.dropout import dropout_rates
from acdc.core.method import Method
from acdc.criteria import Criterion
from acdc.errors import ArgumentError
from acdc.methods._knobs import check_fraction
from acdc.schedule import Phase
from acdc.sparsity.distributions import Budget, ranks_layers
from acdc.sparsity.floors import with_floors
from acdc.sparsity.layers import Layers

_MAGNITUDE: Any = "magnitude"

if TYPE_CHECKING:

    class _CriterionField:
        """A declaration for type checkers: a name, a table or a Criterion goes in, and a Criterion comes out."""

        def __get__(self, method: "Scored", kind: type["Scored"]) -> Criterion: ...

        def __set__(self, method: "Scored", value: str | Mapping[str, Any] | Criterion) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Scored(Method):
    """criterion  "magnitude", "saliency", "movement", "woodfisher", "snip", "synflow", or one of acdc.criteria

    floor      the share of what a layer would keep at its Erdős–Rényi–Kernel density that it keeps at least, where
               layers are ranked together (distribution="global"): 0, the ranking alone, or up to 1.

    dropout    "kept", or "scaled": in the final compressed phase, from its beginning to detach(), rates of nn.Dropout
               and its kin are multiplied by the root of the share of parameters that the target leaves (Han et al.
               2015, §3.2).
    """

    criterion: "_CriterionField" = _MAGNITUDE  # always a Criterion after __post_init__
    floor: float | None = 0.0
    dropout: Literal["kept", "scaled"] | None = "kept"

    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"dropout": ("kept", "scaled")}
    off: ClassVar[Mapping[str, Any]] = {"floor": 0.0, "dropout": "kept"}

    def __post_init__(self) -> None:
        object.__setattr__(self, "criterion", criteria.build(self.criterion))
        if self.floor is not None or type(self).floor is not None:  # where None is the default it is chosen
            check_fraction("floor", self.floor, "0.75, or 0 for none", of="a layer's Erdős–Rényi–Kernel share")
        super().__post_init__()
        if self.floor and not self.ranks_layers():
            fixed = self.pattern.sparsity is not None
            giver = str(self.pattern) if fixed else f"distribution={self.distribution!r}"
            allowed = f"{giver} gives each layer its own share, and a floor is for layers ranked together"
            instead = f"omit floor or {'pattern' if fixed else 'distribution'}"
            raise ArgumentError("floor", received=self.floor, allowed=allowed, instead=instead)

    def ranks_layers(self) -> bool:
        """Return True if scores of different layers are compared, so that one layer can lose more than another."""
        return self.pattern.sparsity is None and ranks_layers(self.distribution)

    def budgets(self, layers: Layers) -> list[Budget]:
        return with_floors(super().budgets(layers), layers.weights, self.floor or 0)

    def budgets_along(self, layers: Layers, path: Callable[[float], float]) -> list[Budget]:
        return with_floors(super().budgets_along(layers, path), layers.weights, self.floor or 0)

    def sharding_obstacle(self) -> str | None:
        if not self.criterion.supports_shards:
            return f"criterion={self.criterion.name!r} needs whole weights in every process"
        return super().sharding_obstacle()

    def lowers_dropout(self, phase: Phase) -> bool:
        return self.dropout == "scaled" and phase.final

    def looks_at_gradients(self) -> bool:
        return bool(self.criterion.window)

    def next_compression(self, steps_per_epoch: int | None, step: int, memory: Mapping[str, Any]) -> int | None:
        """Return the first step, `step` or later, that begins with a compression; `memory` is empty before a run."""
        starts = self.schedule.starts(steps_per_epoch)
        return next((start for start, phase in starts if start >= step and phase.kind == "sparse"), None)

    def warnings(self, total_steps: int, steps_per_epoch: int | None) -> list[str]:
        warnings = super().warnings(total_steps, steps_per_epoch)
        if self.criterion.window:
            warnings += self.criterion.warnings(self._gradients(steps_per_epoch))
        return warnings

    def _gradients(self, steps_per_epoch: int | None) -> dict[int, int]:
        """Count the gradients the criterion sees before each compression: those since the last, up to its window."""
        counts, before = {}, 0
        step = self.next_compression(steps_per_epoch, 0, {})
        while step is not None:
            counts[step] = min(self.criterion.window, step - before)
            before, step = step, self.next_compression(steps_per_epoch, step + 1, {})
        return counts

    def observes_at(self, context: MethodContext, step: int) -> bool:
        if not self.criterion.window:
            return False
        upcoming = self.next_compression(context.steps_per_epoch, step + 1, context.memory)
        return upcoming is not None and upcoming - step <= self.criterion.window

    def observe(self, context: MethodContext) -> None:
        self.criterion.observe(context)

    @torch.no_grad()
    def compress(
        self, context: MethodContext, *, budgets: Sequence[Budget] | None = None, keep_twin: bool = False
    ) -> None:
        """Compress by the criterion's scores; the twin is kept before the criterion corrects weights."""
        budgets = budgets or context.budgets
        scores = self.criterion.scores(context, budgets)
        changes = {}
        if scores is not None and type(self.criterion).correction is not Criterion.correction:
            changes = self.criterion.correction(context, context.choose_masks(scores, budgets))
        if changes:
            if keep_twin:
                context.keep_twin()
                keep_twin = False
            if context.forward_already_ran:
                context.warn(f"criterion={self.criterion.name!r}: weights are not corrected: the forward pass has run")
                changes = {}
        weights = context.weights
        for name, change in changes.items():
            weights[name].add_(change)
        context.compress(scores=scores, budgets=budgets, keep_twin=keep_twin)
        context.memory.pop("criterion", None)

    def config(self, model: nn.Module | None = None) -> dict[str, Any]:
        config = super().config(model)
        if model is not None and not dropout_rates(model):
            config.pop("dropout", None)
        return {**config, "criterion": None if self.criterion.name == "magnitude" else repr(self.criterion)}
