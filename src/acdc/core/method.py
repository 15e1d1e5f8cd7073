"""What a sparse-training method tells the sparsifier, and when it is asked.

A step, as a method sees it:

    updates_at, observes_at     functions of the step: what the step to come needs
    enter, or update            as it begins, where a phase is new or an update is due; masks change here
    ...forward and backward...  with pruned weights at 0, or with the view of the dense weights behind the model's
    observe                     gradients are complete, the pruned weights' too
    pull_back, settle           around the optimizer's step, for dense weights behind a view

methods/base.py has the knobs that methods share, and hooks that do nothing.
"""

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from torch import Tensor, nn

from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import Pattern

if TYPE_CHECKING:
    from acdc.core.bundle import Bundle
    from acdc.core.sparsifier import Sparsifier


class Method(Protocol):
    """What a sparse-training method tells the sparsifier."""

    name: ClassVar[str]
    straight_through: ClassVar[bool]  # whether the dense weights take the gradient at the view as it is: no pull_back
    on_host: ClassVar[tuple[str, ...]]  # what of sparsifier.memory stays on the CPU, wherever the model is
    by_layer: ClassVar[tuple[str, ...]]  # what of it holds a number for each weight, by layer

    @property
    def schedule(self) -> Schedule: ...
    @property
    def pattern(self) -> Pattern: ...

    def layers(self, model: nn.Module) -> Layers:
        """The weights this method prunes in this model."""
        ...

    def budgets(self, layers: Layers) -> list[Budget]: ...

    def cautions(self, total_steps: int, steps_per_epoch: int | None) -> list[str]:
        """What a run of this length will not do that its user may expect. Said as it begins, and by acdc check."""
        ...

    def enter(self, sparsifier: "Sparsifier", phase: Phase) -> None:
        """A training step begins and `phase` is new: compress, decompress, keep the twin."""
        ...

    def writes_weights(self, phase: Phase) -> bool:
        """Whether `enter` changes weights as `phase` begins, so that it must come before the forward pass reads them.

        Zeroing by masks counts; lifting masks does not, since pruned weights go on from 0.
        """
        ...

    def updates_at(self, sparsifier: "Sparsifier", step: int) -> bool:
        """Whether `update` is called as step `step` begins, inside a phase. A function of the step and of what the
        method remembers."""
        ...

    def update(self, sparsifier: "Sparsifier") -> None:
        """A training step begins inside a phase: change the masks."""
        ...

    def observes_at(self, sparsifier: "Sparsifier", step: int) -> bool:
        """Whether `observe` is called in step `step`, whose gradients are then masked only after that."""
        ...

    def observe(self, sparsifier: "Sparsifier") -> None:
        """Gradients are complete, pruned weights' too, and the optimizer's step has not begun."""
        ...

    def view(self, sparsifier: "Sparsifier", bundle: "Bundle", dense: Tensor, out: Tensor) -> None:
        """What the model computes with, of some layers' dense weights, into `out`. Asked for after `shadow()` only.

        These three see the layers of a bundle one after another, as tensors of one dimension; see bundle.py.
        """
        ...

    def pull_back(self, sparsifier: "Sparsifier", bundle: "Bundle", grad: Tensor, dense: Tensor) -> None:
        """Make of the gradient at the view, in place, the gradient of the dense weights."""
        ...

    def settle(self, sparsifier: "Sparsifier", bundle: "Bundle", before: Tensor, after: Tensor) -> None:
        """The optimizer's step took dense weights from `before` to `after`: change that in place."""
        ...

    def rate_step(self, sparsifier: "Sparsifier", step: int) -> int:
        """The step whose learning rate step `step` takes: for trainers that set the rate as a function of the step."""
        ...

    def keeps_best_twin(self) -> bool:
        """Whether the twin is the best dense model reported, rather than the last."""
        ...

    def config(self) -> dict[str, Any]:
        """The method's knobs as plain data: what a checkpoint is checked against."""
        ...

    def unset(self, knob: str) -> Any:
        """What `config` says of a knob that nobody sets: what a checkpoint older than the knob had in effect."""
        ...
