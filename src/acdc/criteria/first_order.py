"""Criteria computed from weights and gradients: magnitude, in two metrics, saliency, movement, SNIP."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from acdc.core.context import MethodContext
from acdc.criteria.criterion import Criterion, check_count, memory, unobserved
from acdc.sparsity.distributions import Budget


@dataclass(frozen=True, kw_only=True)
class Magnitude(Criterion):
    """|θ|: the paper's T_k."""

    name: ClassVar[str] = "magnitude"
    supports_shards: ClassVar[bool] = True

    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class Preconditioned(Criterion):
    """|θ|·v^¼, where v are the squared gradients that Adam averages: the magnitude in the optimizer's own metric.

    Adam divides each gradient by √v, as steepest descent does where a step Δθ has the length (Σ √v·Δθ²)^½. To prune the
    weights of the smallest |θ|·v^¼ is the shortest such step to the same number of zeros; with SGD that is magnitude.
    So it is |θ| under optimizers that keep no such v for every weight; AMSGrad, RMSprop, Adagrad and others whose state
    is named as torch names theirs do. v of a weight that comes back starts at 0. Costs 4 bytes per weight during a
    compression, and nothing between. docs/decompression.md has the measurements.
    """

    name: ClassVar[str] = "preconditioned"
    supports_shards: ClassVar[bool] = True

    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor] | None:
        weights, moments = context.weights, context.second_moments
        if moments and (lacking := [name for name in weights if name not in moments]):
            context.warn(
                f"criterion={self.name!r}: {lacking[0]} has had no gradient yet, so all weights are ranked by "
                f"magnitude at step {context.step}; exclude it if it is not trained",
                topic="no gradient yet",
            )
            return None
        return {name: moment.fourth_root().mul_(weights[name]) for name, moment in moments.items()} or None


@dataclass(frozen=True, kw_only=True)
class Saliency(Criterion):
    """|θ·∂f/∂θ|, averaged over steps before the compression: the change in loss without the weight, to first order.

    Uses the last `steps` steps. Costs 4 bytes per weight, and one pass over the weights in each of those steps.

    Mozer, Smolensky: Skeletonization. NIPS 1989. Molchanov et al.: Pruning CNNs for Resource Efficient Inference. ICLR
    2017.
    """

    steps: int = 100

    name: ClassVar[str] = "saliency"
    supports_shards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("steps", self.steps, 100)

    @property
    def window(self) -> int:
        return self.steps

    def observe(self, context: MethodContext) -> None:
        weights, sums = context.weights, memory(context)
        for name, gradient in context.gradients.items():
            product = self.product(weights[name], gradient)
            sums[name] = sums[name].add_(product) if name in sums else product

    def product(self, weight: Tensor, gradient: Tensor) -> Tensor:
        return (weight * gradient).abs_()

    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor]:
        sums = memory(context)  # sums, not means: only their order counts
        if not sums:
            raise unobserved(self, context)
        return {name: sums.get(name, torch.zeros_like(weight)) for name, weight in context.weights.items()}


@dataclass(frozen=True, kw_only=True)
class Movement(Saliency):
    """S = −Σ θ·∂f/∂θ over the last `steps` steps: weights that move away from 0 are kept, whatever their size.

    Sanh, Wolf, Rush: Movement Pruning. NeurIPS 2020. The paper accumulates S over the whole run, with its own learning
    rate, behind dense weights; here weights that are already pruned have no movement and come last.
    """

    steps: int = 500

    name: ClassVar[str] = "movement"
    supports_shards: ClassVar[bool] = False

    def product(self, weight: Tensor, gradient: Tensor) -> Tensor:
        return -(weight * gradient)

    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor]:
        """Return S, shifted above 0 so that the largest S have the largest magnitude.

        It is in double precision, where the shift rounds nothing that matters.
        """
        signed = {name: total.double() for name, total in super().scores(context, budgets).items()}
        lowest = min(float(total.min()) for total in signed.values())
        widest = max(float(total.abs().max()) for total in signed.values())
        shift = 1e-9 * widest + torch.finfo(torch.float64).tiny - lowest
        weights = context.weights
        return {name: torch.where(weights[name] != 0, total + shift, 0) for name, total in signed.items()}


@dataclass(frozen=True, kw_only=True)
class Snip(Saliency):
    """|θ·∂f/∂θ| of one batch at initialisation, for a compression when training starts.

    Lee, Ajanthan, Torr: SNIP. ICLR 2019. `example` is a batch (inputs, targets) whose gradient is taken in a copy of
    the model when the compression begins, so that training may be sparse from step 0. Without one, the batch of the
    previous step is used: start with a dense phase of "1st".
    """

    steps: int = 1
    example: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    loss: Callable[[Tensor, Tensor], Tensor] = field(default=F.cross_entropy, repr=False)

    name: ClassVar[str] = "snip"
    supports_shards: ClassVar[bool] = False

    @property
    def window(self) -> int:
        return self.steps if self.example is None else 0

    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor]:
        if self.example is None:
            return super().scores(context, budgets)
        model = copy.deepcopy(context.model).train()  # a copy has none of our hooks and its own batch statistics
        weights = {name: model.get_parameter(name) for name in context.weights}
        inputs, targets = self.example
        with torch.enable_grad():
            gradients = torch.autograd.grad(self.loss(model(inputs), targets), list(weights.values()))
        products = zip(weights.items(), gradients, strict=True)
        return {name: self.product(weight.detach(), gradient) for (name, weight), gradient in products}
