"""SR-STE: N:M sparsity from scratch by a sparse-refined straight-through estimator.

Idea       Train dense weights with straight-through gradients taken at their N:M version, and shrink those that are
           pruned, so that the choice of weights settles.
Step       each step m ← the N largest |θ| of every M;  θ ← θ − η (∇f(m·θ) + λ (1 − m)·θ).
Knobs      pattern (NM(2, 4), or another NM); decay λ (2e-4). The sparsity is the pattern's, 1 − N/M.
FLOPs      2·F for the forward pass and the inputs' gradients, counting the remaining weights, and F_D for the weights'.
Costs      a dense copy of the weights; the N:M choice at every step, about a dozen passes over them.
Reference  Zhou, Ma, Zhu, Liu, Zhang, Yuan, Sun, Li: Learning N:M Fine-grained Structured Sparse Neural Networks From
           Scratch. ICLR 2021.

The decay is added to gradients that are already clipped and unscaled.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from acdc.core.context import MethodContext
from acdc.core.latent import Bundle
from acdc.core.method import Method
from acdc.errors import ArgumentTypeError
from acdc.methods._knobs import check_not_negative
from acdc.schedule import Phase, Schedule
from acdc.sparsity.patterns import NM


@dataclass(frozen=True, kw_only=True)
class SRSTE(Method):
    """See the module docstring."""

    pattern: NM = field(default_factory=lambda: NM(2, 4))
    decay: float = 2e-4

    name: ClassVar[str] = "sr_ste"
    straight_through: ClassVar[bool] = False
    needs_sparsity: ClassVar[bool] = False  # the pattern fixes it

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, NM):
            allowed = "SR-STE keeps N of every M weights"
            raise ArgumentTypeError("pattern", received=self.pattern, allowed=allowed, instead="write pattern=NM(2, 4)")
        check_not_negative("decay", self.decay, "2e-4", "a penalty")
        super().__post_init__()

    @classmethod
    def title(cls) -> str:
        return "SR-STE"

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.from_phases([("sparse", f"{epochs}ep")])

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.decompress(reset="momentum")
        else:
            context.use_latent_weights()

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        return 2 * flops + dense

    def effective_weights(self, context: MethodContext, bundle: Bundle, latent: Tensor, out: Tensor) -> None:
        self.pattern.keep_(bundle.weights, bundle.split_once(out.copy_(latent)))

    def latent_gradient(self, context: MethodContext, bundle: Bundle, grad: Tensor, latent: Tensor) -> None:
        """Add the decay of pruned weights: the model still holds m·θ, so (1 − m)·θ is the rest of θ."""
        grad.add_(context.model_weights(bundle) - latent, alpha=-self.decay)
