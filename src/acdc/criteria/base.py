"""What criteria share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from acdc.core.sparsifier import Sparsifier
from acdc.sparsity.distributions import Budget


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """Scores for a compression. What it gathers lies in the sparsifier's memory, and is dropped when it was used."""

    name: ClassVar[str]

    @property
    def window(self) -> int:
        """How many steps before each compression `observe` is called in."""
        return 0

    def cautions(self, gradients: Mapping[int, int]) -> list[str]:
        """What may surprise where so many gradients will be looked at before the compressions at these steps."""
        return []

    def observe(self, sparsifier: Sparsifier) -> None:
        """The gradients of a step are complete, and the optimizer has not moved the weights yet."""

    def scores(self, sparsifier: Sparsifier, budgets: Sequence[Budget]) -> Mapping[str, Tensor] | None:
        """By name; the largest absolute values are kept. None for the weights' own magnitudes."""
        raise NotImplementedError

    def correction(self, sparsifier: Sparsifier, masks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """What to add to the weights as those that `masks` leave out are pruned, by name. Nothing unless it says so."""
        return {}


def memory(sparsifier: Sparsifier) -> dict[str, Any]:
    """What the criterion has gathered since the last compression."""
    return sparsifier.memory.setdefault("criterion", {})


def check_count(knob: str, value: object, instead: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{knob}={value!r}: expected a whole number, 1 or more; write {knob}={instead}")


def refuse_unobserved(criterion: Criterion, sparsifier: Sparsifier) -> RuntimeError:
    return RuntimeError(
        f"criterion={criterion.name!r}: no gradient was seen before the compression at step {sparsifier.step}; let a "
        'dense phase come first, for example acdc.Schedule.from_phases([("dense", "1ep"), ("sparse", "9ep")])'
    )
