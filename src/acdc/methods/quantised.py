"""AC/DC with quantisation: alternating quantised / full-precision training.

Idea       AC/DC's compression may be any projection (paper, §6); here it rounds every weight to a grid of b bits. One
           run gives a model on the grid and a full-precision one.
Step       in compressed phases the model computes with Q_b(θ), straight through: θ ← θ − η ∇f(Q_b(θ)). At a
           decompression training continues from Q_b(θ), as from the zeros of T_k, and the momentum is reset.
Knobs      bits (4); per, what shares a grid: each output "channel", or the "layer"; the schedule, as AC/DC's; reset and
           twin, as AC/DC's. Takes no sparsity: what the grid rounds to 0 is reported.
FLOPs      as AC/DC's, counting the weights that are not 0; narrower arithmetic is not counted.
Costs      in compressed phases, a copy of the weights and about eight passes over them per step; the dense twin.
Reference  Peste, Iofinova, Vladu, Alistarh: AC/DC. NeurIPS 2021, for the scheme. Bengio, Léonard, Courville: Estimating
           or Propagating Gradients Through Stochastic Neurons. 2013, for straight-through gradients.

The grid of a group (a layer, or one output channel of it) is Δ·{−L, …, 0, …, L} with L = 2^(b−1) − 1, so that b bits
number its 2L + 1 points, and Δ = max|θ| / L, so that the largest weight is on it. A weight goes to the nearest point.
A weight already on its grid stays there, up to the last bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from acdc.core.context import MethodContext
from acdc.core.latent import Bundle
from acdc.errors import ArgumentError
from acdc.methods._learned import Learned
from acdc.schedule import Phase, Schedule
from acdc.sparsity.layers import Layers, check_axes


@dataclass(frozen=True, kw_only=True)
class QuantisedACDC(Learned):
    """See the module docstring."""

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
            check_axes(weight, "per", self.per, "write per='layer'")
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


def levels(bits: int) -> int:
    """Return L, the number of grid points on each side of 0."""
    return 2 ** (bits - 1) - 1


@torch.no_grad()
def quantise(weight: Tensor, bits: int, dim: int | None = None) -> Tensor:
    """Return the nearest grid points, with one grid for the whole tensor or for each slice along `dim`."""
    delta = spacing(weight, bits, dim)
    return torch.round(weight / delta).clamp_(-levels(bits), levels(bits)).mul_(delta)


def spacing(weight: Tensor, bits: int, dim: int | None = None) -> Tensor:
    """Return Δ of each group, in a shape that broadcasts over the weights; 1 where all of them are 0."""
    if dim is None:
        largest = weight.abs().amax()
    else:
        largest = weight.abs().amax([d for d in range(weight.ndim) if d != dim % weight.ndim], keepdim=True)
    return torch.where(largest > 0, largest / levels(bits), 1)


def check_bits(bits: object) -> None:
    """Raise unless this is a valid number of bits."""
    if isinstance(bits, bool) or not isinstance(bits, int) or not 2 <= bits <= 16:
        raise ArgumentError("bits", bits, "expected a whole number from 2 to 16", "write bits=4")
