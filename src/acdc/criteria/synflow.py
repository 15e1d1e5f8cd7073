"""SynFlow: iterative synaptic flow, without data."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from acdc.core.context import MethodContext
from acdc.criteria.criterion import Criterion, check_count
from acdc.errors import ArgumentError
from acdc.sparsity.distributions import Budget


@dataclass(frozen=True, kw_only=True)
class SynFlow(Criterion):
    """|θ·∂R/∂θ|, where R is the sum of the model's outputs for an input of ones, with all weights made positive.

    Round i of `rounds` keeps a share of ρ^(i/rounds), chosen among what the previous round kept, so that no layer loses
    all its weights while others keep many. `shape` is that of one batch, such as (1, 3, 32, 32). Costs a copy of the
    model in double precision and `rounds` forward and backward passes of that one input, at each compression.

    Tanaka, Kunin, Yamins, Ganguli: Pruning neural networks without any data by iteratively conserving synaptic flow.
    NeurIPS 2020.
    """

    shape: Sequence[int] = ()
    rounds: int = 100

    name: ClassVar[str] = "synflow"

    def __post_init__(self) -> None:
        check_count("rounds", self.rounds, 100)
        object.__setattr__(self, "shape", tuple(self.shape))
        if not self.shape or not all(isinstance(size, int) and size > 0 for size in self.shape):
            raise ArgumentError(
                "shape",
                received=self.shape,
                allowed="SynFlow runs the model on an input of ones, and needs its shape",
                instead="write its shape, batch first: SynFlow(shape=(1, 3, 32, 32))",
            )

    def scores(self, context: MethodContext, budgets: Sequence[Budget]) -> Mapping[str, Tensor]:
        model = copy.deepcopy(context.model).eval().double()
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.detach().abs_()
        weights = {name: model.get_parameter(name).requires_grad_() for name in context.weights}
        ones = torch.ones(self.shape, dtype=torch.float64, device=next(iter(weights.values())).device)
        sizes = [sum(weights[name].numel() for name in budget.names) for budget in budgets]
        scores = _flow(model, ones, weights)
        for done in range(1, self.rounds):
            shares = [
                replace(budget, keep=round(size * (budget.keep / size) ** (done / self.rounds)))
                for budget, size in zip(budgets, sizes, strict=True)
            ]
            for name, mask in context.choose_masks(scores, shares).items():
                weights[name].detach().mul_(mask)
            scores = _flow(model, ones, weights)
        return scores


def _flow(model: torch.nn.Module, ones: Tensor, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    with torch.enable_grad():
        gradients = torch.autograd.grad(model(ones).sum(), list(weights.values()))
    pairs = zip(weights.items(), gradients, strict=True)
    return {name: (weight.detach() * gradient).abs_() for (name, weight), gradient in pairs}
