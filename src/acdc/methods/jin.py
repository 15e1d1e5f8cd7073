"""Iterative hard thresholding (Jin et al. 2016), for "skinny" networks.

Idea       Alternate: keep only the largest weights and train those; reactivate the others and train all. The paper's
           result is the dense network, improved by having been sparse; the sparse one before the last dense phase is
           kept too.
Step       phase I: θ ← T_k(θ), then s₁ steps θ ← θ − η ∇f(θ) on its support only; phase II: the others start again from
           0, and s₂ steps train all.
Knobs      sparsity; cycles of the two phases (3), after a dense phase of the same length. The lengths are ours: the
           paper sets s₁ and s₂ for each network.
FLOPs      3·F_C per sample in sparse phases, 2·F_D + F in dense ones.
Costs      as AC/DC.
Reference  Jin, Yuan, Feng, Yan: Training Skinny Deep Neural Networks with Iterative Hard Thresholding Methods. 2016.

Unlike AC/DC, it ends dense, not compressed; the optimizer's momentum is not reset when weights come back; and its last
dense phase is not longer than the others, as AC/DC's is for the twin.
"""

from dataclasses import dataclass
from typing import ClassVar

from acdc.errors import check_whole
from acdc.methods.dsd import Densified, equal_phases
from acdc.schedule import Schedule


@dataclass(frozen=True, kw_only=True)
class Jin(Densified):
    """See the module docstring."""

    cycles: int = 3

    name: ClassVar[str] = "jin"

    def __post_init__(self) -> None:
        check_whole("cycles", self.cycles, 1, "write cycles=3")
        super().__post_init__()

    @classmethod
    def title(cls) -> str:
        return "Jin et al."

    def default_schedule(self, epochs: int) -> Schedule:
        return equal_phases(("dense", *("sparse", "dense") * self.cycles), epochs)
