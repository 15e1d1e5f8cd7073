"""SparseVD: variational dropout sparsifies deep neural networks.

Idea       Learn a distribution of each weight, N(θ, σ²), close to a prior that favours noise; weights that turn out to
           be nothing but noise are pruned.
Step       each step computes with θ + σ·ε, ε ~ N(0, 1), and descends f + κ(t)/n Σ KL(log α),  log α = log σ² − log θ²,
           −KL(x) ≈ k₁ σ(k₂ + k₃ x) − ½ log(1 + e^−x) − k₁,  k = .63576, 1.87320, 1.48695 (eq. 14): θ by the optimizer,
           log σ² by Adam. Between steps the model holds θ where log α ≤ 3, and 0 elsewhere.
Knobs      samples n, of the training set (50 000: CIFAR's); threshold of log α (3); rise, the fraction of the run over
           which κ rises from 0 to 1 (.5); rate, of Adam for log σ² (1e-3); start, of log σ² (−10); seed. Together they
           decide the sparsity, which is reported as reached. The optimizer's weight decay is best 0.
FLOPs      3·F_D per sample: noise leaves no weight at 0 in training.
Costs      a dense copy of the weights, 12 bytes a weight for log σ² and Adam's moments; noise and about twenty passes
           over the weights every step. Compiled models run eagerly: the weights change as each step begins.
Reference  Molchanov, Ashukha, Vetrov: Variational Dropout Sparsifies Deep Neural Networks. ICML 2017.

The paper draws noise on each sample's activations (local reparameterization); here all samples of a step share one
draw of the weights, which is noisier but asks nothing of the model. κ is from Gale, Elsen, Hooker 2019. After a step
that a gradient scaler skipped the model holds the noisy weights until the next one begins.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acdc.methods.learned import Learned, positive
from acdc.methods.timing import fraction
from acdc.sparsifier import Sparsifier

K1, K2, K3 = 0.63576, 1.87320, 1.48695
_TINY = 1e-8  # added to θ²: a weight at exactly 0 is as good as one of 1e-4
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True, kw_only=True)
class SparseVD(Learned):
    """See the module."""

    samples: int = 50_000
    threshold: float = 3.0
    rise: float = 0.5
    rate: float = 1e-3
    start: float = -10.0
    seed: int = 0

    name: ClassVar[str] = "sparse_vd"
    decided_by: ClassVar[str] = "samples, rate, rise and threshold"

    def __post_init__(self) -> None:
        positive("samples", self.samples, "50_000")
        positive("threshold", self.threshold, "3.0")
        positive("rate", self.rate, "1e-3")
        fraction("rise", self.rise, "0.5")
        super().__post_init__()

    def begin(self, sparsifier: Sparsifier) -> None:
        weights = sparsifier.weights
        sparsifier.memory.update(
            log_variance={name: torch.full_like(weight, self.start) for name, weight in weights.items()},
            first={name: torch.zeros_like(weight) for name, weight in weights.items()},
            second={name: torch.zeros_like(weight) for name, weight in weights.items()},
            began=sparsifier.step,
        )
        self.update(sparsifier)

    def updates_at(self, sparsifier: Sparsifier, step: int) -> bool:
        return self.schedule.phase_at(step, sparsifier.steps_per_epoch).kind == "sparse"

    def update(self, sparsifier: Sparsifier) -> None:
        """A training step begins: show it noisy weights. Whatever is shown after it is not."""
        sparsifier.memory["noisy"] = True
        try:
            sparsifier.shadow()
        finally:
            sparsifier.memory["noisy"] = False

    def view(self, sparsifier: Sparsifier, name: str, dense: Tensor) -> Tensor:
        log_variance = sparsifier.memory["log_variance"][name]
        if sparsifier.memory["noisy"]:
            return torch.exp(log_variance / 2).mul_(self.noise(sparsifier, name, dense)).add_(dense)
        return torch.where(log_alpha(log_variance, dense) > self.threshold, 0, dense)

    def noise(self, sparsifier: Sparsifier, name: str, like: Tensor) -> Tensor:
        """ε, a function of seed, step and layer on one kind of device: the same on every rank."""
        layer = [weight.name for weight in sparsifier.layers.weights].index(name)
        seed = (self.seed * 1_000_003 + sparsifier.step) * 10_007 + layer
        generator = torch.Generator(device=like.device).manual_seed(seed)
        return torch.empty_like(like).normal_(generator=generator)

    def weight_of_kl(self, sparsifier: Sparsifier) -> float:
        """κ(t) / n."""
        length = self.rise * sparsifier.total_steps
        return min(1.0, sparsifier.step / length if length else 1.0) / self.samples

    def pull_back(self, sparsifier: Sparsifier, name: str, grad: Tensor, dense: Tensor) -> None:
        """∂/∂log σ² = ∇f · σε/2 + κ/n · KL', and σε is what the model's weights differ by from θ."""
        memory, share = sparsifier.memory, self.weight_of_kl(sparsifier)
        log_variance = memory["log_variance"][name]
        slope = kl_slope(log_alpha(log_variance, dense)).mul_(share)
        noise = sparsifier.weight(name).param.detach() - dense
        self._adam(sparsifier, name, (noise * grad).div_(2).add_(slope))
        grad.addcdiv_(slope.mul_(-2) * dense, dense.square().add_(_TINY))

    def _adam(self, sparsifier: Sparsifier, name: str, gradient: Tensor) -> None:
        value, first, second = (sparsifier.memory[key][name] for key in ("log_variance", "first", "second"))
        count = sparsifier.step - sparsifier.memory["began"] + 1
        first.lerp_(gradient, 1 - _BETA1)
        second.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        scale = (second / (1 - _BETA2**count)).sqrt_().add_(_EPSILON)
        value.addcdiv_(first, scale, value=-self.rate / (1 - _BETA1**count))


def log_alpha(log_variance: Tensor, mean: Tensor) -> Tensor:
    return log_variance - torch.log(mean.square() + _TINY)


def kl(x: Tensor) -> Tensor:
    """KL of one weight's distribution from the prior, as a function of log α; it falls to 0."""
    return -(K1 * torch.sigmoid(K2 + K3 * x) - torch.nn.functional.softplus(-x) / 2 - K1)


def kl_slope(x: Tensor) -> Tensor:
    """d KL / d log α."""
    inner = torch.sigmoid(K2 + K3 * x)
    return -(K1 * K3 * inner * (1 - inner) + torch.sigmoid(-x) / 2)
