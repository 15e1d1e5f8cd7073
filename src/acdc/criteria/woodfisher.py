"""WoodFisher: second-order scores from the inverse of the empirical Fisher matrix, block by block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from acdc.core.context import MethodContext
from acdc.criteria.criterion import Criterion, check_count, memory, unobserved
from acdc.errors import ArgumentError
from acdc.sparsity.distributions import Budget


@dataclass(frozen=True, kw_only=True)
class WoodFisher(Criterion):
    """θ_q² / (2·[F⁻¹]_qq): the change in loss without the weight, to second order, where the gradient is 0.

    F = λ·I + 1/n Σ ∇f_i ∇f_iᵀ over the gradients of the last n = `steps` steps before the compression, cut into
    blocks of `block` consecutive weights of a layer. Its inverse is kept up to date by the Woodbury identity (eq. 4):
    F⁻¹ ← F⁻¹ − F⁻¹∇f ∇fᵀF⁻¹ / (n + ∇fᵀF⁻¹∇f), starting from I/λ. With `update`, the weights that stay compensate for
    those that go: δ = −Σ_q θ_q F⁻¹e_q / [F⁻¹]_qq (eq. 11). Gradients are those of the training batches, as in the
    paper's mini-batch Fisher.

    Costs 8·`block` bytes per weight from the first of those steps to the compression, also in checkpoints: the inverse
    is in double precision, since it starts at 1/λ and gradients remove all but a small part of that.

    Singh, Alistarh: WoodFisher: Efficient Second-Order Approximation for Neural Network Compression. NeurIPS 2020.
    """

    steps: int = 100
    block: int = 50
    damping: float = 1e-5
    update: bool = True

    name: ClassVar[str] = "woodfisher"

    def __post_init__(self) -> None:
        check_count("steps", self.steps, 100)
        check_count("block", self.block, 50)
        if not isinstance(self.damping, int | float) or not self.damping > 0:
            raise ArgumentError(
                "damping",
                received=self.damping,
                allowed="with fewer gradients than weights a block is singular, and only λ > 0 makes it invertible",
                instead="write damping=1e-5",
            )

    @property
    def window(self) -> int:
        return self.steps

    def warnings(self, gradients: Mapping[int, int]) -> list[str]:
        few = {step: count for step, count in gradients.items() if 0 < count < self.steps}  # 0 gradients raise an error
        if not few:
            return []
        step = min(few, key=few.__getitem__)
        return [
            f"criterion.steps={self.steps}: WoodFisher sees fewer gradients than that before {len(few)} of "
            f"{len(gradients)} compressions, {few[step]} before the one at step {step:,}, where the damping of "
            f"{self.damping:g} counts {self.steps / few[step]:.3g} times as much; set steps to {few[step]}, or leave "
            "more steps between compressions"
        ]

    def observe(self, context: MethodContext) -> None:
        gathered, weights = memory(context), context.weights
        gathered["count"] = gathered.get("count", 0) + 1
        inverses = gathered.setdefault("inverse", {})
        for name, gradient in context.gradients.items():
            blocks = self._cut(gradient * (weights[name] != 0))  # pruned weights are not part of the problem
            if name not in inverses:
                size = blocks.shape[1]
                eye = torch.eye(size, dtype=blocks.dtype, device=blocks.device) / self.damping
                inverses[name] = eye.repeat(len(blocks), 1, 1)
            add_gradient_(inverses[name], blocks, self.steps)

    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor]:
        gathered = memory(context)
        if not gathered.get("count"):
            raise unobserved(self, context)
        if gathered["count"] < self.steps:
            context.warn(
                f"WoodFisher saw {gathered['count']} gradients of {self.steps} before the compression at step "
                f"{context.step}: the damping of {self.damping:g} counts {self.steps / gathered['count']:.3g} times as "
                "much. Set criterion.steps lower, or leave more steps between compressions"
            )
        scores, singular = {}, 0
        for name, weight in context.weights.items():
            if name not in gathered["inverse"]:
                scores[name] = torch.zeros_like(weight)
                continue
            diagonal = gathered["inverse"][name].diagonal(dim1=1, dim2=2)
            _refuse_non_finite(name, diagonal, context.step)
            blocks = self._cut(weight)
            singular += int(((diagonal >= (1 - 1e-6) / self.damping).all(1) & blocks.any(1)).sum())
            scores[name] = self._join(blocks.square() / (2 * self._positive(diagonal)), weight)
        if singular:
            context.warn(f"WoodFisher saw no gradient in {singular} blocks, so the damping alone scores them")
        return scores

    def correction(self, context: MethodContext, masks: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        if not self.update:
            return {}
        inverses = memory(context)["inverse"]
        changes = {}
        for name, weight in context.weights.items():
            if name in inverses:
                pruned = self._cut(torch.where(masks[name], 0, weight))
                diagonal = self._positive(inverses[name].diagonal(dim1=1, dim2=2))
                change = -torch.bmm(inverses[name], (pruned / diagonal).unsqueeze(2)).squeeze(2)
                changes[name] = self._join(change, weight).mul_(masks[name])
        return changes

    def _positive(self, diagonal: Tensor) -> Tensor:
        """Replace entries that rounding made 0 or negative, as if no gradient had been seen there."""
        return torch.where(diagonal > 0, diagonal, 1 / self.damping)

    def _cut(self, tensor: Tensor) -> Tensor:
        """Cut a layer's weights into rows of one block each; the last is padded with zeros, which change nothing."""
        flat = tensor.detach().double().reshape(-1)
        size = min(self.block, flat.numel())
        return torch.nn.functional.pad(flat, (0, -flat.numel() % size)).view(-1, size)

    def _join(self, blocks: Tensor, like: Tensor) -> Tensor:
        return blocks.reshape(-1)[: like.numel()].view(like.shape).to(like.dtype)


def add_gradient_(inverse: Tensor, gradient: Tensor, count: int) -> None:
    """Apply the Woodbury identity for one of `count` gradients, to many blocks at once."""
    moved = torch.bmm(inverse, gradient.unsqueeze(2))
    below = count + torch.bmm(gradient.unsqueeze(1), moved)
    inverse.baddbmm_(moved, moved.transpose(1, 2) / below, alpha=-1)


def _refuse_non_finite(name: str, diagonal: Tensor, step: int) -> None:
    if not diagonal.isfinite().all():
        raise ValueError(
            f"WoodFisher: the inverse Fisher matrix of {name} is not finite at step {step}: its gradients were NaN or "
            "infinite, or the damping is too small for them; clip the gradients, or write damping=1e-3"
        )
