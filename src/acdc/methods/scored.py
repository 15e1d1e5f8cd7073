"""Methods that compress by a score, which need not be the magnitude."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from acdc import criteria
from acdc.core.sparsifier import Sparsifier, log
from acdc.criteria import Criterion
from acdc.methods.base import Base
from acdc.sparsity.distributions import Budget

_MAGNITUDE: Any = "magnitude"

if TYPE_CHECKING:

    class _CriterionField:
        """Tells type checkers that a name, a table or a Criterion goes in, and that a Criterion comes out."""

        def __get__(self, method: "Scored", kind: type["Scored"]) -> Criterion: ...

        def __set__(self, method: "Scored", value: str | Mapping[str, Any] | Criterion) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Scored(Base):
    """criterion  "magnitude", "saliency", "movement", "woodfisher", "snip", "synflow", or one of acdc.criteria"""

    criterion: "_CriterionField" = _MAGNITUDE  # always a Criterion after __post_init__

    def __post_init__(self) -> None:
        object.__setattr__(self, "criterion", criteria.find(self.criterion))
        super().__post_init__()

    def next_compression(self, steps_per_epoch: int | None, step: int) -> int | None:
        """The first step from `step` on that begins with a compression."""
        starts = self.schedule.starts(steps_per_epoch)
        return next((start for start, phase in starts if start >= step and phase.kind == "sparse"), None)

    def cautions(self, total_steps: int, steps_per_epoch: int | None) -> list[str]:
        said = super().cautions(total_steps, steps_per_epoch)
        return said + self.criterion.cautions(self._gradients(steps_per_epoch)) if self.criterion.window else said

    def _gradients(self, steps_per_epoch: int | None) -> dict[int, int]:
        """How many the criterion looks at before each compression: those since the one before, up to its window."""
        seen, before = {}, 0
        step = self.next_compression(steps_per_epoch, 0)
        while step is not None:
            seen[step] = min(self.criterion.window, step - before)
            before, step = step, self.next_compression(steps_per_epoch, step + 1)
        return seen

    def observes_at(self, sparsifier: Sparsifier, step: int) -> bool:
        if not self.criterion.window:
            return False
        upcoming = self.next_compression(sparsifier.steps_per_epoch, step + 1)
        return upcoming is not None and upcoming - step <= self.criterion.window

    def observe(self, sparsifier: Sparsifier) -> None:
        self.criterion.observe(sparsifier)

    @torch.no_grad()
    def compress(
        self, sparsifier: Sparsifier, *, budgets: Sequence[Budget] | None = None, keep_twin: bool = False
    ) -> None:
        """As the sparsifier's, by the criterion's scores; the twin is kept before the criterion corrects weights."""
        budgets = budgets or sparsifier.budgets
        scores = self.criterion.scores(sparsifier, budgets)
        changes = {}
        if scores is not None and type(self.criterion).correction is not Criterion.correction:
            changes = self.criterion.correction(sparsifier, sparsifier.write_masks(scores, budgets))
        if changes:
            if keep_twin:
                sparsifier.keep_twin()
                keep_twin = False
            if sparsifier.late:
                log.warning("criterion=%r: weights are not corrected, the forward pass has run", self.criterion.name)
                changes = {}
        weights = sparsifier.weights
        for name, change in changes.items():
            weights[name].add_(change)
        sparsifier.compress(scores=scores, budgets=budgets, keep_twin=keep_twin)
        sparsifier.memory.pop("criterion", None)

    def config(self) -> dict[str, Any]:
        said = None if self.criterion.name == "magnitude" else repr(self.criterion)  # None: as before there was one
        return {**super().config(), "criterion": said}
