"""SparseVD: variational dropout sparsifies deep neural networks.

Idea       Learn a distribution of each weight, N(θ, σ²), close to a prior that favours noise; weights that turn out to
           be nothing but noise are pruned.
Step       each step computes with θ + σ·ε, ε ~ N(0, 1), and descends f + κ(t)/n Σ KL(log α),  log α = log σ² − log θ²,
           −KL(x) ≈ k₁ σ(k₂ + k₃ x) − ½ log(1 + e^−x) − k₁,  k = .63576, 1.87320, 1.48695 (eq. 14): θ by the optimizer,
           log σ² by Adam. Between steps the model holds θ where log α ≤ 3, and 0 elsewhere.
Knobs      samples n, the size of the training set (50 000: CIFAR's); threshold for log α (3); rise, the fraction of the
           run over which κ rises from 0 to 1 (.5); rate, Adam's learning rate for log σ² (1e-3); start, the initial
           log σ² (−10); seed. Together they decide the sparsity, which is reported as reached. The optimizer's weight
           decay is best set to 0.
FLOPs      3·F_D per sample: noise leaves no weight at 0 in training.
Costs      a dense copy of the weights, 16 bytes per weight for log σ², log α and Adam's moments; a normal random number
           per weight and over twenty passes over the weights every step: the most expensive of the methods. Compiled
           models run eagerly: the weights change when each step begins.
Reference  Molchanov, Ashukha, Vetrov: Variational Dropout Sparsifies Deep Neural Networks. ICML 2017.

The paper draws noise for each sample's activations (local reparameterization); here all samples of a step share one
draw of the weights, which is noisier but requires nothing of the model. κ is from Gale, Elsen, Hooker 2019. After a
step that a gradient scaler skipped, the model holds the noisy weights until the next one begins.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim.adam import adam

from acdc.core.context import MethodContext
from acdc.core.latent import Bundle
from acdc.methods._knobs import check_fraction, check_positive
from acdc.methods._learned import Learned

K1, K2, K3 = 0.63576, 1.87320, 1.48695
_TINY = 1e-8  # added to θ²: a weight at exactly 0 is as good as one of 1e-4
_HALF = 0.5 / math.log(2)  # σ = 2^(_HALF log σ²): a power of 2 costs a CPU a third of other powers
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, kw_only=True)
class SparseVD(Learned):
    """See the module docstring."""

    samples: int = 50_000
    threshold: float = 3.0
    rise: float = 0.5
    rate: float = 1e-3
    start: float = -10.0
    seed: int = 0

    name: ClassVar[str] = "sparse_vd"
    by_layer: ClassVar[tuple[str, ...]] = ("log_variance", "first", "second", "log_alpha")
    recomputed: ClassVar[tuple[str, ...]] = ("log_alpha",)
    straight_through: ClassVar[bool] = False
    decided_by: ClassVar[str] = "samples, rate, rise and threshold"

    def __post_init__(self) -> None:
        check_positive("samples", self.samples, "50_000")
        check_positive("threshold", self.threshold, "3.0")
        check_positive("rate", self.rate, "1e-3")
        check_fraction("rise", self.rise, "0.5")
        super().__post_init__()

    def sparse_flops(self, flops: float, dense: float, steps_per_epoch: int | None = None) -> float:
        return 3 * dense

    def begin(self, context: MethodContext) -> None:
        weights = context.weights
        context.memory.update(
            log_variance={name: torch.full_like(weight, self.start) for name, weight in weights.items()},
            first={name: torch.zeros_like(weight) for name, weight in weights.items()},
            second={name: torch.zeros_like(weight) for name, weight in weights.items()},
            began=context.step,
        )
        context.memory.pop("log_alpha", None)
        self.update(context)

    def updates_at(self, context: MethodContext, step: int) -> bool:
        return self.schedule.phase_at(step, context.steps_per_epoch).kind == "sparse"

    def update(self, context: MethodContext) -> None:
        """Show noisy weights to the training step that begins; weights shown after it are not noisy."""
        memory = context.memory
        if "log_alpha" not in memory:  # at first
            variances, weights = memory["log_variance"], context.weights
            memory["log_alpha"] = {name: log_alpha(variances[name], weight) for name, weight in weights.items()}
        memory["noisy"] = True
        try:
            context.use_latent_weights()
        finally:
            memory["noisy"] = False

    def effective_weights(self, context: MethodContext, bundle: Bundle, latent: Tensor, out: Tensor) -> None:
        log_variances, log_alphas = (bundle.join(context.memory[key]) for key in ("log_variance", "log_alpha"))
        if context.memory["noisy"]:
            generator = self.generator(context, bundle, latent.device)
            for mean, log_variance, target in bundle.pieces(latent, log_variances, out):
                noise = target.normal_(generator=generator)
                torch.addcmul(mean, torch.mul(log_variance, _HALF).exp2_(), noise, out=target)
        else:
            for mean, log_variance, ratio, target in bundle.pieces(latent, log_variances, log_alphas, out):
                log_alpha(log_variance, mean, out=ratio)
                torch.mul(mean, torch.le(ratio, self.threshold, out=target), out=target)

    def generator(self, context: MethodContext, bundle: Bundle, device: torch.device) -> torch.Generator:
        """Return the generator of ε, seeded by seed, step and layers: the same on every rank of one kind of device."""
        layer = context.position(bundle.names[0])
        return torch.Generator(device).manual_seed((self.seed * 1_000_003 + context.step) * 10_007 + layer)

    def weight_of_kl(self, context: MethodContext) -> float:
        """Return κ(t) / n."""
        length = self.rise * context.total_steps
        return min(1.0, context.step / length if length else 1.0) / self.samples

    def latent_gradient(self, context: MethodContext, bundle: Bundle, grad: Tensor, latent: Tensor) -> None:
        """Add the gradient of the KL term, and take a step of log σ².

        ∂/∂log σ² = ∇f · σε/2 + κ/n · KL', where σε is the difference between the model's weights and θ.
        """
        keys = ("log_alpha", "log_variance", "first", "second")
        tensors = [grad, latent, context.model_weights(bundle), *(bundle.join(context.memory[key]) for key in keys)]
        share = self.weight_of_kl(context)
        steps = torch.full((), context.step - context.memory["began"], dtype=torch.float32, device=grad.device)
        for slope, mean, current, ratio, log_variance, first, second in bundle.pieces(*tensors):
            kl = kl_slope(ratio, share)
            gradient = torch.addcmul(kl, current - mean, slope, value=0.5)
            slope.addcdiv_(kl.mul_(mean), mean.square().add_(_TINY), value=-2)
            self._adam_(log_variance, gradient, first, second, steps.clone())

    def _adam_(self, tensor: Tensor, gradient: Tensor, first: Tensor, second: Tensor, steps: Tensor) -> None:
        """Take one Adam step in place, in a single pass, given the number of steps before it."""
        adam(
            *([tensor], [gradient], [first], [second], [], [steps]),
            lr=self.rate,
            beta1=_BETA1,
            beta2=_BETA2,
            eps=_EPSILON,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
            fused=True,
        )


def log_alpha(log_variance: Tensor, mean: Tensor, out: Tensor | None = None) -> Tensor:
    log_square = torch.square(mean, out=out).add_(_TINY).log_()
    return torch.sub(log_variance, log_square, out=log_square)


def kl(x: Tensor) -> Tensor:
    """Return the KL divergence of one weight's distribution from the prior, as a function of log α; it falls to 0."""
    return -(K1 * torch.sigmoid(K2 + K3 * x) - torch.nn.functional.softplus(-x) / 2 - K1)


def kl_slope(x: Tensor, scale: float = 1.0) -> Tensor:
    """Return d KL / d log α = −k₁k₃ σ(1 − σ) − ½ σ(−x), the first σ at k₂ + k₃x; times a scale."""
    inner = torch.mul(x, K3).add_(K2).sigmoid_()
    slope = torch.addcmul(inner, inner, inner, value=-1).mul_(-K1 * K3 * scale)
    return slope.add_(torch.neg(x).sigmoid_(), alpha=-scale / 2)
