"""One-shot magnitude pruning.

Idea       Train densely, prune to the target once, continue training the rest.
Step       at the end of the dense phase: θ ← T_k(θ), the k largest |θ|; then θ ← θ − η ∇f(θ) on its support only.
Knobs      sparsity; at, when to prune, as a fraction of the run (.5; Han et al. prune a fully trained network and train
           it again, which is twice the epochs at .5, with a learning rate that starts over).
FLOPs      3·F per sample, counting the remaining weights; dense before.
Costs      as AC/DC's compressed phases, and one selection; on the host, the dense twin: the model before pruning.
Reference  Han, Pool, Tran, Dally: Learning both Weights and Connections for Efficient Neural Networks. NeurIPS 2015.
"""

from dataclasses import dataclass
from typing import ClassVar

from acdc.core.context import MethodContext
from acdc.errors import ArgumentError
from acdc.methods._knobs import check_fraction
from acdc.methods._scored import Scored
from acdc.schedule import Phase, Schedule


@dataclass(frozen=True, kw_only=True)
class OneShot(Scored):
    """See the module docstring. The schedule is a dense phase and a sparse one."""

    at: float = 0.5

    name: ClassVar[str] = "one_shot"
    supports_shards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fraction("at", self.at, "0.5")
        if self.at == 1:
            allowed = "fine-tuning must follow the pruning"
            raise ArgumentError("at", received=self.at, allowed=allowed, instead="write at=0.5")
        super().__post_init__()

    @classmethod
    def title(cls) -> str:
        return "one-shot"

    def default_schedule(self, epochs: int) -> Schedule:
        dense = min(max(1, round(self.at * epochs)), epochs - 1) if self.at else 0
        phases = [("dense", f"{dense}ep")] if dense else []
        return Schedule.from_phases([*phases, ("sparse", f"{epochs - dense}ep")])

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.decompress(reset="momentum")
        else:
            self.compress(context, keep_twin=phase.index > 0)
