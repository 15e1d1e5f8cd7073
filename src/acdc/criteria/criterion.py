"""The abstract class of criteria, and what they share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from acdc.core.context import MethodContext
from acdc.errors import ArgumentError
from acdc.sparsity.distributions import Budget


@dataclass(frozen=True, kw_only=True)
class Criterion(ABC):
    """Gives scores for a compression. What it gathers lies in the context's memory, and is dropped when it was used."""

    name: ClassVar[str]

    @property
    def window(self) -> int:
        """The number of steps before each compression in which `observe` is called."""
        return 0

    def warnings(self, gradients: Mapping[int, int]) -> list[str]:
        """Return what may surprise where so many gradients are seen before the compressions at these steps."""
        return []

    def observe(self, context: MethodContext) -> None:
        """Look at the gradients of a step: they are complete, and the optimizer has not moved the weights yet."""
        return

    @abstractmethod
    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor] | None:
        """Return scores by name; the largest absolute values are kept. None stands for the weights' own magnitudes."""

    def correction(self, context: MethodContext, masks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what to add to the weights as those that `masks` leave out are pruned, by name; nothing by default."""
        return {}


def memory(context: MethodContext) -> dict[str, Any]:
    """Return what the criterion has gathered since the last compression."""
    return context.memory.setdefault("criterion", {})


def check_count(knob: str, value: object, instead: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        allowed = "expected a whole number, 1 or more"
        raise ArgumentError(knob, received=value, allowed=allowed, instead=f"write {knob}={instead}")


def unobserved(criterion: Criterion, context: MethodContext) -> RuntimeError:
    """Return the error of a compression before which no gradient was seen."""
    return RuntimeError(
        f"criterion={criterion.name!r}: no gradient was seen before the compression at step {context.step}; let a "
        'dense phase come first, for example acdc.Schedule.from_phases([("dense", "1ep"), ("sparse", "9ep")])'
    )
