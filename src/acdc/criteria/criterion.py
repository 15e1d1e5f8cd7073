"""The abstract base class of criteria, and what they share."""

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
    """A score for a compression. What it gathers is stored in the context's memory, and dropped after use."""

    name: ClassVar[str]
    supports_shards: ClassVar[bool] = False  # whether it works on this process's part of every tensor alone

    @property
    def window(self) -> int:
        """Return the number of steps before each compression in which `observe` is called."""
        return 0

    def warnings(self, gradients: Mapping[int, int]) -> list[str]:
        """Return warnings, given how many gradients are seen before the compression at each step."""
        return []

    def observe(self, context: MethodContext) -> None:
        """Look at the gradients of a step: they are complete, and the optimizer has not moved the weights yet."""
        return

    @abstractmethod
    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor] | None:
        """Return scores by name; the largest absolute values are kept. None means the weights' own magnitudes."""

    def correction(self, context: MethodContext, masks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what to add to the weights, by name, when those outside `masks` are pruned; nothing by default."""
        return {}


def memory(context: MethodContext) -> dict[str, Any]:
    """Return what the criterion has gathered since the last compression."""
    return context.memory.setdefault("criterion", {})


def check_count(knob: str, value: object, instead: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        allowed = "expected a whole number, 1 or more"
        raise ArgumentError(knob, received=value, allowed=allowed, instead=f"write {knob}={instead}")


def unobserved(criterion: Criterion, context: MethodContext) -> RuntimeError:
    """Return the error for a compression before which no gradient was seen."""
    return RuntimeError(
        f"criterion={criterion.name!r}: no gradient was seen before the compression at step {context.step}; start "
        'with a dense phase, for example acdc.Schedule.from_phases([("dense", "1ep"), ("sparse", "9ep")])'
    )
