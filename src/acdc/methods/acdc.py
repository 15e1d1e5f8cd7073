"""AC/DC: alternating compressed / decompressed training.

Idea       Train densely and sparsely in turns, so that one run gives an accurate sparse model and a dense one.
Step       θ ← T_k(θ) at each compression, then θ ← θ − η ∇f(θ) on its support only; at each decompression the mask is
           lifted, the pruned weights restart at 0 and the optimizer's momentum is reset (paper, Algorithm 1).
Knobs      sparsity; the schedule (warm-up, phase lengths, last dense phase, final compressed phase), by default the
           paper's for ImageNet over any number of epochs; pattern (unstructured; N:M, blocks, channels); distribution
           ("global"; "uniform", "erk", or sparsities by layer); criterion ("magnitude"; acdc ls criteria); reset
           ("momentum"; "all", "nothing"); twin ("last"; "best" by a metric you report). Not in the paper: gradual,
           which raises the sparsity from compression to compression, and revive, which gives filters that a
           compression took whole random weights at the decompression.
FLOPs      3·F_C per sample in compressed phases, 2·F_D + F in dense ones (paper, §4).
Costs      1 byte per weight for the mask; one in-place pass over the gradients in compressed phases; one selection per
           compression; on the host, one copy of the model and its optimizer state, the dense twin.
Reference  Peste, Iofinova, Vladu, Alistarh: AC/DC: Alternating Compressed/DeCompressed Training of Deep Neural
           Networks. NeurIPS 2021.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from acdc.core.context import MethodContext
from acdc.errors import ArgumentError
from acdc.methods._scored import Scored
from acdc.schedule import Phase, Schedule
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers, check_axes

_INITIAL_NORM = 3**-0.5  # the norm of a filter at torch's initialisation, for layers with no filter left


@dataclass(frozen=True, kw_only=True)
class ACDC(Scored):
    """AC/DC at a target sparsity, over `epochs` in the paper's proportions or over an explicit `schedule`.

    pattern       Unstructured(), NM(2, 4), Block(4, 4) or Channel(). The last three run along input or output channels,
                  and refuse weights of layer types whose axes are not known.
    distribution  "global" magnitude (the paper's default), "uniform", "erk", or a mapping from layers to sparsities.
    include, exclude, first_and_last_dense, depthwise_dense, embeddings: which layers; see acdc.find_prunable. Layers
                  that compute their weight (weight_norm, spectral_norm, torch.nn.utils.prune) stay dense, with a
                  warning unless `exclude` names them.
    criterion     which weights survive: "magnitude" (the paper's), or another of acdc.criteria.
    gradual       raise the sparsity from compression to compression, s · (1 − (1 − i/n)³) at the i-th of n; not in the
                  paper.
    revive        give filters that were pruned whole random weights at a decompression, as large as the layer's other
                  filters; not in the paper, where they start at 0. From there batch norm makes their first gradients
                  explode, or they get none. For high sparsities on small nets; weights must have known axes.
    reset         what the optimizer forgets at a decompression: "momentum" (first moments, as in the paper), "all"
                  of its state, or "nothing".
    twin          which dense model is kept: the "last" (end of the last dense phase) or the "best" one reported
                  through sparsifier.report_metric(metric) in a dense phase.
    """

    gradual: bool = False
    revive: bool = False
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
            allowed = f"{self.pattern} has one sparsity only"
            raise ArgumentError("gradual", received=True, allowed=allowed, instead="omit gradual")

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.for_epochs(epochs)

    def layers(self, model: nn.Module) -> Layers:
        layers = super().layers(model)
        for weight in layers.weights if self.revive else ():
            check_axes(weight, "revive", True, "omit revive")
        return layers

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            masks = context.masks if self.revive else {}
            context.decompress(reset=self.reset)
            if masks:
                _revive(context, masks)
            return
        budgets, keep_twin = self._budgets_of(context, phase), self.makes_twin(context, phase)
        self.compress(context, budgets=budgets, keep_twin=keep_twin)

    def writes_weights(self, phase: Phase) -> bool:
        return self.revive or super().writes_weights(phase)

    def _budgets_of(self, context: MethodContext, phase: Phase) -> list[Budget]:
        """Return the budgets of the compression that a phase begins with."""
        share = self._share_of(phase)
        return context.budgets if share == 1 else self.budgets_along(context.layers, lambda s: share * s)

    def sparsity_fraction(self, epoch: int) -> float:
        return self._share_of(self.schedule.phase_at(epoch, 1))

    def _share_of(self, phase: Phase) -> float:
        """Return the share of the target sparsity that a compressed phase has."""
        sparse = [p.index for p in self.schedule.phases if p.kind == "sparse"]
        if not self.gradual or phase.index == sparse[-1]:
            return 1.0
        return 1 - (1 - (sparse.index(phase.index) + 1) / len(sparse)) ** 3

    def keeps_best_twin(self) -> bool:
        return self.twin == "best"


@torch.no_grad()
def _revive(context: MethodContext, masks: Mapping[str, Tensor]) -> None:
    """Give random weights to filters that `masks` pruned whole: a function of the step, so the same on all ranks."""
    generator = torch.Generator().manual_seed(context.step)
    for weight in context.layers.weights:
        filters = weight.param.movedim(weight.out_dim, 0)
        kept = masks[weight.name].movedim(weight.out_dim, 0).flatten(1).any(1)
        if kept.all():
            continue
        norms = filters[kept].flatten(1).float().norm(dim=1)
        norm = norms.median() if len(norms) else torch.tensor(_INITIAL_NORM)
        drawn = torch.randn(int((~kept).sum()), filters[0].numel(), generator=generator)
        drawn = (drawn / drawn.norm(dim=1, keepdim=True)).to(filters.device) * norm.to(filters.device)
        filters[~kept] = drawn.to(filters.dtype).view(-1, *filters.shape[1:])
