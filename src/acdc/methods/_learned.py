"""Methods that find their sparsity by training: it cannot be set, and is reported as reached."""

from dataclasses import dataclass
from typing import ClassVar

from acdc.core.context import MethodContext
from acdc.core.method import Method
from acdc.errors import ArgumentError
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import Unstructured


@dataclass(frozen=True, kw_only=True)
class Learned(Method):
    """A method without sparsity, distribution or pattern: one sparse phase, in which latent weights are trained."""

    needs_sparsity: ClassVar[bool] = False

    def _check_sparsity(self) -> None:
        for knob, unset in (("sparsity", None), ("distribution", "global"), ("pattern", Unstructured())):
            if (value := getattr(self, knob)) != unset:
                raise ArgumentError(
                    knob,
                    received=value,
                    allowed=f"{self.title()} finds its sparsity in training",
                    instead=f"omit {knob}, and set {self.decided_by}",
                )

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def budgets(self, layers: Layers) -> list[Budget]:
        """Return budgets that keep every weight: nothing limits what is kept."""
        return [Budget((weight.name,), weight.param.numel()) for weight in layers.weights]

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.decompress(reset="momentum")
        else:
            self.begin(context)

    def begin(self, context: MethodContext) -> None:
        """Begin a sparse phase."""
        context.use_latent_weights()
