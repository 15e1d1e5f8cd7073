"""Methods that find their sparsity by training: it is reported as reached, and none can be asked for."""

from dataclasses import dataclass
from typing import ClassVar

from acdc.core.sparsifier import Sparsifier
from acdc.methods.base import Base
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import Unstructured


@dataclass(frozen=True, kw_only=True)
class Learned(Base):
    """Takes no sparsity, distribution or pattern. One sparse phase, in which dense weights train behind a view."""

    needs_sparsity: ClassVar[bool] = False

    def _check_sparsity(self) -> None:
        for knob, unset in (("sparsity", None), ("distribution", "global"), ("pattern", Unstructured())):
            if (value := getattr(self, knob)) != unset:
                raise ValueError(
                    f"{knob}={value!r}: {self.title()} finds its sparsity in training; leave {knob} out, and set "
                    f"{self.decided_by}"
                )

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def budgets(self, layers: Layers) -> list[Budget]:
        """Nothing bounds what is kept."""
        return [Budget((weight.name,), weight.param.numel()) for weight in layers.weights]

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        if phase.kind == "dense":
            sparsifier.decompress(reset="momentum")
        else:
            self.begin(sparsifier)

    def begin(self, sparsifier: Sparsifier) -> None:
        """A sparse phase begins."""
        raise NotImplementedError


def positive(knob: str, value: object, instead: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{knob}={value!r}: expected a number above 0; write {knob}={instead}")
