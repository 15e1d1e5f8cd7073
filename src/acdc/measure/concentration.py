"""Measures how concentrated a model's gradient is: the quantities of the concentrated PL condition, at one θ.

    share of r       ‖T_r(∇f)‖² / ‖∇f‖², over the prunable weights
    CPL              ‖T_r(∇f(θ))‖² ≥ (α/2)(f(θ) − f*): α at this θ is at least 2‖T_r(∇f)‖²/f(θ), as f* ≥ 0
    σ²               variance of a mini-batch's gradient

f is the training objective over the batches given, in training mode: cross-entropy, batch norm with the statistics of
each batch, and (λ/2)‖θ‖² of the optimizer's weight decay. All in fp32.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError
from acdc.sparsity.masks import as_bool
from acdc.sparsity.prunable import find_prunable
from acdc.sparsity.topk import top_k

Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Concentration:
    """The size, variance and concentration of the gradient at one θ."""

    value: float  # f(θ)
    gradient: float  # ‖∇f‖² over the prunable weights
    others: float  # ‖∇f‖² over the other parameters
    variance: float  # E‖g − ∇f‖² of a batch's gradient, over the prunable weights
    largest: dict[int, float]  # ‖T_r(∇f)‖² for each r
    size: int  # prunable weights
    samples: int

    def share(self, r: int) -> float:
        """Return ‖T_r(∇f)‖² / ‖∇f‖²; 1 if the gradient is 0."""
        return self.largest[r] / self.gradient if self.gradient else 1.0

    def alpha(self, r: int) -> float:
        """Return the α of (r, α)-CPL that this point allows for certain, with 0 in place of f*."""
        return 2 * self.largest[r] / self.value if self.value > 0 else float("inf")


def measure_concentration(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    counts: Sequence[int],
    *,
    most: int | None = None,
    weight_decay: float = 0.0,
    label_smoothing: float = 0.0,
) -> tuple[Concentration, Gradients]:
    """Measure a model over the first `most` batches, or all of them, for each r in `counts`; return all gradients too.

    The model's buffers, gradients and mode are left as they were.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    prunable = {weight.name for weight in find_prunable(model).weights}
    size = sum(parameters[name].numel() for name in prunable)
    for r in counts:
        if not 1 <= r <= size:
            raise ArgumentError("r", r, f"expected a number of weights from 1 to {size:,}, those that can be pruned")
    means: Gradients = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in parameters.items()}
    loss, samples, second, seen = 0.0, 0, 0.0, 0
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    training = {module: module.training for module in model.modules()}
    model.train()
    try:
        for images, labels in islice(batches, most):
            known = labels >= 0  # an unreadable image has no label
            if not (count := int(known.sum())):
                continue
            mean = F.cross_entropy(model(images), labels, ignore_index=-1, label_smoothing=label_smoothing)
            gradients = torch.autograd.grad(mean, list(parameters.values()))
            for name, part in zip(parameters, gradients, strict=True):
                means[name] += part.double() * count
                if name in prunable:
                    second += count * float(part.double().square().sum())
            loss, samples, seen = loss + count * float(mean.detach()), samples + count, seen + 1
    finally:
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])
        for module, mode in training.items():
            module.training = mode
    if not samples:
        raise ArgumentError("batches", 0, "there is no image to measure the gradient on")
    for part in means.values():
        part /= samples
    first = sum(_square(means[name]) for name in prunable)
    variance = max(0.0, second / samples - first) * (seen / max(1, seen - 1))
    with torch.no_grad():
        for name, param in parameters.items():
            means[name] += weight_decay * param.double()
        decay = weight_decay / 2 * sum(_square(param) for param in parameters.values())
    whole = sum(_square(means[name]) for name in prunable)
    return Concentration(
        value=loss / samples + decay,
        gradient=whole,
        others=sum(_square(part) for part in means.values()) - whole,
        variance=variance,
        largest={r: _largest({name: means[name] for name in sorted(prunable)}, r) for r in counts},
        size=size,
        samples=samples,
    ), means


def secant_smoothness(
    a: tuple[Mapping[str, Tensor], Mapping[str, Tensor]], b: tuple[Mapping[str, Tensor], Mapping[str, Tensor]]
) -> float | None:
    """Return ‖∇f(a) − ∇f(b)‖/‖a − b‖; None for equal points. Each is a point's parameters and its gradients.

    No Lipschitz constant of the gradient is below it. If f is not convex, or along sparse directions only, the β of an
    upper bound on f may be.
    """
    (point_a, slope_a), (point_b, slope_b) = a, b
    moved = sum(_square(point_a[name].double() - point_b[name].double()) for name in slope_a)
    turned = sum(_square(slope_a[name] - slope_b[name]) for name in slope_a)
    return (turned / moved) ** 0.5 if moved else None


def _largest(gradients: Gradients, r: int) -> float:
    masks = top_k(gradients, r)
    return sum(_square(part[as_bool(masks[name])]) for name, part in gradients.items())


def _square(values: Tensor) -> float:
    return float(values.detach().double().square().sum())
