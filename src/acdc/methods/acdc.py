"""AC/DC: alternating compressed / decompressed training.

Idea       Train densely and sparsely in turns, so that one run gives an accurate sparse model and a dense one.
Step       θ ← T_k(θ) at each compression, then θ ← θ − η ∇f(θ) on its support only; at each decompression the mask is
           lifted, the pruned weights restart at 0 and the optimizer's momentum is reset (paper, Algorithm 1).
Knobs      sparsity; the schedule (warm-up, phase lengths, last dense phase, final compressed phase).
FLOPs      3·F_C per sample in compressed phases, 2·F_D + F in dense ones (paper, §4).
Costs      1 byte a weight for the mask; one in-place pass over the gradients in compressed phases; one selection a
           compression; on the host, one copy of the model and of its optimizer's state, the dense twin.
Reference  Peste, Iofinova, Vladu, Alistarh: AC/DC: Alternating Compressed/DeCompressed Training of Deep Neural
           Networks. NeurIPS 2021.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from acdc.methods.scored import Scored
from acdc.schedule import Phase, Schedule
from acdc.sparsifier import Sparsifier
from acdc.sparsity.distributions import Budget


@dataclass(frozen=True, kw_only=True)
class ACDC(Scored):
    """AC/DC at a target sparsity, over `epochs` in the paper's proportions or over an explicit `schedule`.

    pattern       Unstructured(), NM(2, 4), Block(4, 4) or Channel().
    distribution  "global" magnitude (the paper's default), "uniform", "erk", or a mapping from layers to sparsities.
    include, exclude, first_and_last_dense, depthwise_dense, embeddings: which layers; see acdc.find_prunable.
    criterion     which weights survive: "magnitude" (the paper's), or another of acdc.criteria.
    gradual       raise the sparsity from compression to compression, s · (1 − (1 − i/n)³) at the i-th of n; not in the
                  paper.
    reset         what the optimizer forgets at a decompression: "momentum" (first moments, as in the paper), "all"
                  of its state, or "nothing".
    twin          which dense model is kept: the "last" (end of the last dense phase) or the "best" one reported
                  through sparsifier.report(metric) in a dense phase.
    """

    gradual: bool = False
    reset: Literal["momentum", "all", "nothing"] = "momentum"
    twin: Literal["last", "best"] = "last"

    name: ClassVar[str] = "acdc"
    alternates: ClassVar[bool] = True
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "reset": ("momentum", "all", "nothing"),
        "twin": ("last", "best"),
    }

    @classmethod
    def title(cls) -> str:
        return "AC/DC"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gradual and self.pattern.sparsity is not None:
            raise ValueError(f"gradual=True: {self.pattern} has one sparsity only; leave gradual out")

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.for_epochs(epochs)

    def enter(self, sparsifier: Sparsifier, phase: Phase) -> None:
        if phase.kind == "dense":
            sparsifier.decompress(reset=self.reset)
            return
        ends_dense = phase.final and sparsifier.phase.kind == "dense" and phase.index > 0
        keep_twin = ends_dense and (self.twin == "last" or sparsifier.best_metric is None)
        self.compress(sparsifier, budgets=self._budgets_of(sparsifier, phase), keep_twin=keep_twin)

    def _budgets_of(self, sparsifier: Sparsifier, phase: Phase) -> list[Budget]:
        """What survives the compression a phase begins with."""
        share = self._share_of(phase)
        return sparsifier.budgets if share == 1 else self.budgets_along(sparsifier.layers, lambda s: share * s)

    def risen(self, epoch: int) -> float:
        return self._share_of(self.schedule.phase_at(epoch, 1))

    def _share_of(self, phase: Phase) -> float:
        """Of the target sparsity, in a compressed phase."""
        sparse = [p.index for p in self.schedule.phases if p.kind == "sparse"]
        if not self.gradual or phase.index == sparse[-1]:
            return 1.0
        return 1 - (1 - (sparse.index(phase.index) + 1) / len(sparse)) ** 3

    def keeps_best_twin(self) -> bool:
        return self.twin == "best"
