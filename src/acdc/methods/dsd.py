"""DSD: dense, sparse, dense.

Idea       Sparsity as a regulariser: train densely, prune and train the rest, then restore the pruned weights. The
           dense model is the result; the intermediate sparse one is kept too.
Step       dense → sparse: θ ← T_k(θ) in each layer, then θ ← θ − η ∇f(θ) on its support only; sparse → dense: the mask
           is lifted, and what was pruned starts again from 0.
Knobs      sparsity (.3; the paper takes 25–50 %); distribution ("uniform", as in the paper); phases are thirds of the
           run. The paper's last phase uses a tenth of the learning rate; here the learning-rate schedule decides.
FLOPs      3·F_C per sample in the sparse phase, 2·F_D + F in dense ones.
Costs      as AC/DC's compressed phases, one selection; on the host a copy of the sparse model.
Reference  Han, Pool, Narang, Mao, Gong, Tang, Elsen, Vajda, Paluri, Tran, Catanzaro, Dally: DSD: Dense-Sparse-Dense
           Training for Deep Neural Networks. ICLR 2017.

The sparse model has the weights at the end of its phase. Its batch-norm statistics may have seen one batch more, since
a dense phase is noticed during its first backward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import ClassVar

from acdc.core.context import MethodContext
from acdc.core.method import Method
from acdc.errors import check_whole
from acdc.schedule import Duration, Phase, Schedule, round_half_up
from acdc.sparsity.distributions import Distribution


class EndsDense(Schedule):
    """A schedule that may end with a dense phase, which Schedule itself refuses."""

    def __post_init__(self) -> None:
        phases = tuple(self.phases)
        Schedule.from_phases([*((phase.kind, phase.length) for phase in phases), ("sparse", "1st")])  # other checks
        object.__setattr__(self, "phases", phases)
        unit = phases[0].length.unit
        if self.total is None and all(phase.length.unit == unit for phase in phases):
            total = sum((phase.length.value for phase in phases), Fraction(0))
            object.__setattr__(self, "total", Duration(total, unit))


def equal_phases(kinds: Sequence[str], epochs: int) -> Schedule:
    """Return phases of whole epochs, as equal as they can be."""
    check_whole("epochs", epochs, len(kinds), f"there are {len(kinds)} phases, so write epochs={len(kinds)} or more")
    edges = [round_half_up(Fraction(epochs * index, len(kinds))) for index in range(len(kinds) + 1)]
    return EndsDense.from_phases([(kind, f"{b - a}ep") for kind, (a, b) in zip(kinds, pairwise(edges), strict=True)])


class Densified(Method):
    """A method that compresses as AC/DC does and ends with a dense phase, before which the sparse model is kept."""

    def _check_phases(self) -> None:
        if self.schedule.phases[-1].kind != "dense":
            raise self._wrong_phases(f"{self.title()} must end dense")

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "sparse":
            context.compress()
            return
        if phase.final:
            context.keep_sparse()
        context.decompress(reset="nothing")


@dataclass(frozen=True, kw_only=True)
class DSD(Densified):
    """See the module docstring."""

    sparsity: float | None = 0.3
    distribution: Distribution = "uniform"

    name: ClassVar[str] = "dsd"
    supports_shards: ClassVar[bool] = True

    def default_schedule(self, epochs: int) -> Schedule:
        return equal_phases(("dense", "sparse", "dense"), epochs)
