"""Second moments: the squared gradients v of each weight, by whose root adaptive optimizers divide."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from acdc.core.optimizers import parts_of
from acdc.sparsity.layers import Weight, local_part

# Where v is, and what else such a state may hold. Others that hold an exp_avg_sq may mean another: SOAP's is rotated.
_STATES = {
    "exp_avg_sq": {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "mu_product", "z"},  # Adam and its kin
    "square_avg": {"step", "square_avg", "grad_avg", "momentum_buffer"},  # RMSprop
    "sum": {"step", "sum"},  # Adagrad
}
_TINY, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max ** 0.25


@dataclass(frozen=True)
class SecondMoment:
    """The squared gradients of one tensor, summed or averaged by its optimizer; if sharded, of this process's part."""

    kind: str
    total: Tensor
    correction: Tensor | float  # of an average that began at 0
    mean: Tensor | None  # of the gradients themselves, whose square centred RMSprop subtracts

    def fourth_root(self) -> Tensor:
        """Return v^¼, in float32."""
        value = self.total.float() / self.correction
        if self.mean is not None:
            value = value.addcmul_(self.mean.float(), self.mean.float(), value=-1).clamp_min_(0)
        return value.sqrt_().sqrt_().clamp_max_(_LARGEST)


def second_moments_of(optimizer: Optimizer, weights: Iterable[Weight]) -> dict[str, SecondMoment]:
    """Return the second moments of these weights by name; {} if one of them is trained without.

    Weights without a gradient so far are left out. It is {} also where several optimizers' cannot be compared,
    and under ZeroRedundancyOptimizer, which keeps each weight's on one process only: all have to agree.
    """
    names, found, kinds = (
        {id(weight.param): weight.name for weight in weights},
        dict[str, SecondMoment](),
        set[str | None](),
    )
    for part in parts_of(optimizer):
        own = [(names[id(p)], p, group) for group in part.param_groups for p in group["params"] if id(p) in names]
        states = {name: part.state.get(param) or {} for name, param, _ in own}
        known = {name: one for name, param, group in own if (one := _second_moment(states[name], param, group))}
        kinds |= {one.kind for one in known.values()}
        if hasattr(part, "consolidate_state_dict") or (own and not known):
            kinds.add(None)
        kinds |= {None for name, state in states.items() if state and name not in known}
        found |= known
    return found if len(kinds) == 1 and None not in kinds else {}


def _second_moment(state: Mapping[str, Any], param: Tensor, group: Mapping[str, Any]) -> SecondMoment | None:
    kind = next((key for key, keys in _STATES.items() if key in state and set(state) <= keys), None)
    total = state.get("max_exp_avg_sq", state[kind]) if kind else None
    if kind is None or not isinstance(total, Tensor) or total.shape != param.shape or not total.is_floating_point():
        return None
    step, mean, correction = state.get("step", group.get("step")), state.get("grad_avg"), 1.0
    if kind == "exp_avg_sq" and step is not None and "betas" in group:
        correction = (1 - torch.as_tensor(group["betas"][1] ** step)).clamp_min(_TINY)
    return SecondMoment(kind, local_part(total), correction, None if mean is None else local_part(mean))
