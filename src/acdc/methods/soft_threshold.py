"""STR: soft threshold weight reparameterization.

Idea       Each layer learns the threshold below which its weights are 0: training finds how sparse each layer is.
Step       the model computes with sign(θ)·max(|θ| − σ(s), 0), and both move by gradient: θ ← θ − η 1_{|θ|>σ(s)} ∇f and
           v ← μ v + ∂f/∂s + λ s,  s ← s − η v,  with ∂f/∂s = −σ'(s) Σ_{|θ|>σ(s)} ∇f · sign(θ).
Knobs      start, the initial s (−3200: the paper's ResNet50); decay λ (unset: the optimizer's weight decay, as in the
           paper). Together they decide the sparsity, which is reported as reached: as long as σ(s) is about 0 only the
           decay moves s, s ≈ start · exp(−λ Ση / (1 − μ)), and pruning begins when s is near −10. The paper's
           ResNet50 at λ = 2.25e-5 ends at 90.23 %; its exponent is about 11. For shorter runs start closer to 0.
FLOPs      3·F per sample, counting the remaining weights.
Costs      a dense copy of the weights; about a dozen passes over the weights per step.
Reference  Kusupati, Ramanujan, Somani, Wortsman, Jain, Kakade, Farhadi: Soft Threshold Weight Reparameterization for
           Learnable Sparsity. ICML 2020.

η and μ are the optimizer's learning rate and momentum at the step; μ is 0 for an optimizer without momentum.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acdc.core.context import MethodContext
from acdc.core.latent import Bundle
from acdc.errors import ArgumentError
from acdc.methods._knobs import check_not_negative
from acdc.methods._learned import Learned


@dataclass(frozen=True, kw_only=True)
class STR(Learned):
    """See the module docstring. The s of each layer is in sparsifier.context.memory["s"]."""

    start: float = -3200.0
    decay: float | None = None

    name: ClassVar[str] = "str"
    straight_through: ClassVar[bool] = False
    decided_by: ClassVar[str] = "start and decay"

    def __post_init__(self) -> None:
        if isinstance(self.start, bool) or not isinstance(self.start, int | float) or not self.start < 0:
            allowed = "the threshold σ(start) must begin near 0"
            raise ArgumentError("start", received=self.start, allowed=allowed, instead="write start=-3200 or -10")
        if self.decay is not None:
            check_not_negative("decay", self.decay, "5e-4", "a weight decay")
        super().__post_init__()

    def begin(self, context: MethodContext) -> None:
        weights = context.weights
        context.memory["s"] = {name: weight.new_full((), self.start) for name, weight in weights.items()}
        context.memory["v"] = {name: weight.new_zeros(()) for name, weight in weights.items()}
        context.use_latent_weights()

    def effective_weights(self, context: MethodContext, bundle: Bundle, latent: Tensor, out: Tensor) -> None:
        thresholds = torch.sigmoid(_stack(context.memory["s"], bundle))
        soft_threshold(latent, bundle.spread(thresholds), out=out)

    def latent_gradient(self, context: MethodContext, bundle: Bundle, grad: Tensor, latent: Tensor) -> None:
        s, v = (_stack(context.memory[key], bundle) for key in ("s", "v"))
        group = context.param_group(bundle)
        thresholds = torch.sigmoid(s)
        sign = context.model_weights(bundle).sign()  # 0 where the threshold prunes
        slopes = -thresholds * (1 - thresholds) * bundle.sums(grad.mul_(sign))
        grad.mul_(sign)
        decay = group.get("weight_decay", 0.0) if self.decay is None else self.decay
        v.mul_(group.get("momentum", 0.0)).add_(slopes + decay * s)
        s.sub_(group["lr"] * v)
        for key, values in (("s", s), ("v", v)):
            for name, value in zip(bundle.names, values, strict=True):
                context.memory[key][name] = value


def _stack(values: dict[str, Tensor], bundle: Bundle) -> Tensor:
    """Copy the layers' numbers into one tensor."""
    return torch.stack([values[name] for name in bundle.names])


def soft_threshold(weight: Tensor, threshold: Tensor, out: Tensor | None = None) -> Tensor:
    """Return sign(θ)·max(|θ| − τ, 0); exactly θ where τ is 0."""
    return torch.abs(weight, out=out).sub_(threshold).clamp_(min=0).copysign_(weight)
