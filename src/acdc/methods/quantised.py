"""AC/DC with quantisation: alternating quantised / full-precision training.

Idea       AC/DC's compression is any projection (paper, §6); here it rounds every weight to a grid of b bits. One run
           gives a model on the grid and a full-precision one.
Step       in compressed phases the model computes with Q_b(θ), straight through: θ ← θ − η ∇f(Q_b(θ)). At a
           decompression training goes on from Q_b(θ), as from the zeros of T_k, and the optimizer's momentum is reset.
Knobs      bits (4); per, what shares a grid: each output "channel", or the "layer"; the schedule, as AC/DC's; reset and
           twin, as AC/DC's. Takes no sparsity: what the grid rounds to 0 is reported.
FLOPs      as AC/DC's, by the weights that are not 0; narrower arithmetic is not counted.
Costs      in compressed phases a copy of the weights and about eight passes over them a step; the dense twin.
Reference  Peste, Iofinova, Vladu, Alistarh: AC/DC. NeurIPS 2021, for the scheme. Bengio, Léonard, Courville: Estimating
           or Propagating Gradients Through Stochastic Neurons. 2013, for straight-through gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from acdc.core.context import MethodContext
from acdc.core.latent import Bundle
from acdc.methods._learned import Learned
from acdc.schedule import Phase, Schedule
from acdc.sparsity.quantise import check_bits, quantise
from acdc.sparsity.weights import Layers, check_axes


@dataclass(frozen=True, kw_only=True)
class QuantisedACDC(Learned):
    """See the module."""

    bits: int = 4
    per: Literal["channel", "layer"] = "channel"
    reset: Literal["momentum", "all", "nothing"] = "momentum"
    twin: Literal["last", "best"] = "last"

    name: ClassVar[str] = "quantised"
    alternates: ClassVar[bool] = True
    averages: ClassVar[bool] = False
    decided_by: ClassVar[str] = "bits"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "per": ("channel", "layer"),
        "reset": ("momentum", "all", "nothing"),
        "twin": ("last", "best"),
    }

    def __post_init__(self) -> None:
        check_bits(self.bits)
        super().__post_init__()

    @classmethod
    def title(cls) -> str:
        return "AC/DC, quantised"

    def compression(self) -> str:
        return f"rounded to {self.bits} bits"

    def default_schedule(self, epochs: int) -> Schedule:
        return Schedule.for_epochs(epochs)

    def layers(self, model: nn.Module) -> Layers:
        layers = super().layers(model)
        for weight in layers.weights if self.per == "channel" else ():
            check_axes("per='channel'", weight, "write per='layer'")
        return layers

    def enter(self, context: MethodContext, phase: Phase) -> None:
        if phase.kind == "dense":
            context.drop_latent_weights(keep="effective")
            context.decompress(reset=self.reset)
            return
        if self.makes_twin(context, phase):
            context.keep_twin()
        context.use_latent_weights()

    def effective_weights(self, context: MethodContext, bundle: Bundle, latent: Tensor, out: Tensor) -> None:
        layers = zip(bundle.weights, bundle.split(latent), bundle.split(out), strict=True)
        for weight, whole, rounded in layers:
            rounded.copy_(quantise(whole, self.bits, weight.out_dim if self.per == "channel" else None))

    def keeps_best_twin(self) -> bool:
        return self.twin == "best"
