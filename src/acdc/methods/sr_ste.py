"""SR-STE: N:M sparsity from scratch by a sparse-refined straight-through estimator.

Idea       Train dense weights by gradients taken at their N:M version, straight through, and shrink those that are
           pruned, so that the choice of weights settles.
Step       each step m ← the N largest |θ| of every M;  θ ← θ − η (∇f(m·θ) + λ (1 − m)·θ).
Knobs      pattern (NM(2, 4), or another NM); decay λ (2e-4). The sparsity is the pattern's, 1 − N/M.
FLOPs      2·F forward and for the inputs' gradients by the weights that are left, and F_D for the weights'.
Costs      a dense copy of the weights; the N:M choice, and with it about a dozen passes over them, every step.
Reference  Zhou, Ma, Zhu, Liu, Zhang, Yuan, Sun, Li: Learning N:M Fine-grained Structured Sparse Neural Networks From
           Scratch. ICLR 2021.

The decay is added to gradients that are already clipped and unscaled.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from acdc.core.bundle import Bundle
from acdc.core.sparsifier import Sparsifier
from acdc.methods.base import Base
from acdc.schedule import Phase, Schedule
from acdc.sparsity.patterns import NM


@dataclass(frozen=True, kw_only=True)
class SRSTE(Base):
    """See the module."""

    pattern: NM = field(default_factory=lambda: NM(2, 4))
    decay: float = 2e-4

    name: ClassVar[str] = "sr_ste"
    straight_through: ClassVar[bool] = False
    needs_sparsity: ClassVar[bool] = False  # the pattern has it

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, NM):
            raise ValueError(f"pattern={self.pattern!r}: SR-STE keeps N of every M weights; write pattern=NM(2, 4)")
        if not isinstance(self.decay, int | float) or not self.decay >= 0:
            raise ValueError(f"decay={self.decay!r}: expected a penalty, 0 or more; write decay=2e-4")
        super().__post_init__()

    @classmethod
    def title(cls) -> str:
        return "SR-STE"

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        if phase.kind == "dense":
            sparsifier.decompress(reset="momentum")
        else:
            sparsifier.shadow()

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        return 2 * flops + dense

    def view(self, sparsifier: Sparsifier, bundle: Bundle, dense: Tensor, out: Tensor) -> None:
        self.pattern.keep_(bundle.weights, bundle.split_once(out.copy_(dense)))

    def pull_back(self, sparsifier: Sparsifier, bundle: Bundle, grad: Tensor, dense: Tensor) -> None:
        """The model still holds m·θ, so that (1 − m)·θ is what it lacks."""
        grad.add_(sparsifier.held(bundle) - dense, alpha=-self.decay)
