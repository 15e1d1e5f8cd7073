"""The optimizers and learning rates of recipes, including LAMB.

LAMB is Adam's step for each weight, scaled layer by layer to the norm of the layer's weights.

You et al. 2020, Large Batch Optimization for Deep Learning, Algorithm 2. With m and v as in Adam,

    r = m̂ / (√v̂ + ε) + λ·θ        θ ← θ − lr · φ(‖θ‖) / ‖r‖ · r        φ(z) = min(z, max_weight_norm)

and a ratio of 1 if one of the norms is 0; max_weight_norm is 10. NVIDIA's Transformer-XL, which the paper trains, omits
the bias corrections: m̂ = m and v̂ = v with bias_correction=False (in recipes optimizer.bias_correction = false).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.errors import ArgumentError
from acdc.recipes import schema

_torch: Any = torch  # whose functions for lists of tensors have no types


def build(settings: schema.Optimizer, model: nn.Module, device: torch.device, precision: str) -> Optimizer:
    """Build the recipe's optimizer, fused on a GPU. Weight decay applies to all parameters, as in the paper.

    SGD under fp16 is not fused: when the first step overflows, as GradScaler's initial scale makes it do, fused SGD
    skips it with a momentum that is allocated but never written, and the next step adds that garbage to the weights.
    """
    shared: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if settings.name == "sgd":
        fused = device.type == "cuda" and precision != "fp16"
        return torch.optim.SGD(
            model.parameters(), momentum=settings.momentum, nesterov=settings.nesterov, fused=fused or None, **shared
        )
    shared |= {"betas": settings.betas} | ({"eps": settings.eps} if settings.eps is not None else {})
    if settings.name == "lamb":
        return Lamb(model.parameters(), bias_correction=settings.bias_correction, **shared)
    kind = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return kind(model.parameters(), fused=device.type == "cuda" or None, **shared)


def state_of_a_parameter(settings: schema.Optimizer, device: torch.device, precision: str) -> dict[str, Any]:
    """Return what the optimizer stores for a two-dimensional parameter once it has taken a step."""
    param = nn.Parameter(torch.zeros(2, 3, device=device))
    optimizer = build(settings, nn.ParameterList([param]), device, precision)
    param.grad = torch.zeros_like(param)
    optimizer.step()
    return dict(optimizer.state[param])


@dataclass(frozen=True)
class Rates:
    """The learning rate as a pure function of the step, so that resuming from any step is passing a number.

    Time is counted in epochs or steps (`per`). With E units in all, W of them warm-up:

        u < W      lr · min(1, (u + 1) / W)
        u ≥ W      lr · s(u),   p = (u − W) / (E − W)

        constant   s = 1
        step       s = gamma ^ (milestones passed)
        cosine     s = final + (1 − final) · ½ (1 + cos πp)
        linear     s = final + (1 − final) · (1 − p)

    With `rewarm`, the first R steps of every phase after the first, from step t₀ on, are scaled by (t − t₀ + 1) / R: by
    step whatever `per` says, since one epoch of warm-up counted in epochs would be none.
    """

    rate: schema.Rate
    lr: float
    epochs: int
    steps_per_epoch: int
    phases: tuple[int, ...] = ()  # the steps at which phases begin

    def at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self._shape(step) * self._rewarmed(step)

    def _rewarmed(self, step: int) -> float:
        length = self.rate.rewarm * self.steps_per_epoch
        began = max((start for start in self.phases if 0 < start <= step), default=None)
        return 1.0 if began is None or not length else min(1.0, (step - began + 1) / length)

    def _shape(self, step: int) -> float:
        rate = self.rate
        units = self.steps_per_epoch if rate.per == "step" else 1  # in an epoch
        unit = step if rate.per == "step" else step // self.steps_per_epoch
        total, warmup = self.epochs * units, min(rate.warmup * units, self.epochs * units - 1)
        if unit < warmup:
            return self.lr * min(1.0, (unit + 1) / warmup)
        progress = (unit - warmup) / (total - warmup)
        return self.lr * self._share(unit / units, progress)

    def _share(self, epoch: float, progress: float) -> float:
        rate = self.rate
        if rate.shape == "step":
            return rate.gamma ** sum(epoch >= milestone for milestone in rate.milestones)
        if rate.shape == "cosine":
            return rate.final + (1 - rate.final) * (1 + math.cos(math.pi * progress)) / 2
        if rate.shape == "linear":
            return rate.final + (1 - rate.final) * (1 - progress)
        return 1.0


class Lamb(Optimizer):
    """LAMB, as in You et al. 2020; see the module docstring for the formula.

    With `foreach` all parameters take each part of a step together, which a GPU does in a few launches instead of some
    for every parameter, at the price of two copies of the weights. None is True on a GPU, as in torch's optimizers.
    """

    keeps_zeros: ClassVar[bool] = True  # zero weight, gradient and state give zero weight and state

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        bias_correction: bool = True,
        max_weight_norm: float | None = 10.0,
        foreach: bool | None = None,
    ) -> None:
        for name, value, ok, allowed, example in (
            ("lr", lr, lr >= 0, "0 or more", "lr=0.01"),
            ("betas", betas, all(0 <= beta < 1 for beta in betas), "two numbers in [0, 1)", "betas=(0.9, 0.999)"),
            ("eps", eps, eps > 0, "a number above 0", "eps=1e-6"),
            ("weight_decay", weight_decay, weight_decay >= 0, "0 or more", "weight_decay=0.01"),
            (
                "max_weight_norm",
                max_weight_norm,
                max_weight_norm is None or max_weight_norm > 0,
                "a number above 0, or None for no limit",
                "max_weight_norm=10.0",
            ),
        ):
            if not ok:
                raise ArgumentError(name, received=value, allowed=f"expected {allowed}", instead=f"write {example}")
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "max_weight_norm": max_weight_norm,
            "foreach": foreach,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                self._begin(param)
            for together in self._split(params, group["foreach"]):
                if len(together) == 1:
                    self._update(together[0], group)
                else:
                    self._update_together(together, group)
        return loss

    def _begin(self, param: Tensor) -> None:
        """Count the step, and make the state of a parameter that has none."""
        assert param.grad is not None
        if param.grad.is_sparse:
            raise RuntimeError("Lamb needs dense gradients: build the embedding with nn.Embedding(..., sparse=False)")
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] += 1

    def _update(self, param: Tensor, group: dict[str, Any]) -> None:
        state, grad = self.state[param], param.grad
        assert grad is not None
        step, mean, square = state["step"].item(), state["exp_avg"], state["exp_avg_sq"]
        (beta1, beta2), (correction1, correction2) = group["betas"], _corrections(group, step)
        mean.mul_(beta1).add_(grad, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        update = (mean / correction1).div_(square.sqrt().div_(math.sqrt(correction2)).add_(group["eps"]))
        if group["weight_decay"]:
            update.add_(param, alpha=group["weight_decay"])
        # Norms stay on the device, so no step waits for it.
        param.sub_(update.mul_(_rate(_norm(param), _norm(update), group)))

    def _update_together(self, params: list[Tensor], group: dict[str, Any]) -> None:
        """Do what `_update` does, operation by operation, for all of them; they have taken equally many steps."""
        states = [self.state[param] for param in params]
        grads = [param.grad for param in params]
        means, squares = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
        (beta1, beta2), (correction1, correction2) = group["betas"], _corrections(group, states[0]["step"].item())
        _torch._foreach_mul_(means, beta1)
        _torch._foreach_add_(means, grads, alpha=1 - beta1)
        _torch._foreach_mul_(squares, beta2)
        _torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)
        roots = _torch._foreach_sqrt(squares)
        _torch._foreach_div_(roots, math.sqrt(correction2))
        _torch._foreach_add_(roots, group["eps"])
        updates = _torch._foreach_div(means, correction1)
        _torch._foreach_div_(updates, roots)
        if group["weight_decay"]:
            _torch._foreach_add_(updates, params, alpha=group["weight_decay"])
        wide = torch.promote_types(params[0].dtype, torch.float32)
        weight_norms, update_norms = (
            torch.stack(_torch._foreach_norm(tensors, 2, dtype=wide)) for tensors in (params, updates)
        )
        _torch._foreach_mul_(updates, list(_rate(weight_norms, update_norms, group).unbind()))
        _torch._foreach_sub_(params, updates)

    def _split(self, params: list[Tensor], foreach: bool | None) -> list[list[Tensor]]:
        """Return parameters in lists that take a step together: of one device, type and number of steps, or alone."""
        together: dict[object, list[Tensor]] = {}
        for param in params:
            joins = param.is_cuda if foreach is None else foreach
            # A sharded parameter is a DTensor, whose norm is that of all shards: it steps alone.
            key = (param.device, param.dtype, self.state[param]["step"].item())
            together.setdefault(key if joins and type(param) is nn.Parameter else id(param), []).append(param)
        return list(together.values())


def _corrections(group: dict[str, Any], step: float) -> tuple[float, float]:
    """Return Adam's bias corrections of both moments."""
    beta1, beta2 = group["betas"]
    return (1 - beta1**step, 1 - beta2**step) if group["bias_correction"] else (1.0, 1.0)


def _rate(weight_norm: Tensor, update_norm: Tensor, group: dict[str, Any]) -> Tensor:
    """Return the learning rate of each layer: lr · φ(‖θ‖) / ‖r‖."""
    limited = weight_norm.clamp(max=group["max_weight_norm"]) if group["max_weight_norm"] else weight_norm
    ratio = torch.where((weight_norm > 0) & (update_norm > 0), limited / (update_norm + group["eps"]), 1.0)
    return ratio * group["lr"]


def _norm(values: Tensor) -> Tensor:
    """Return the norm in float32 or wider: that of a large layer does not fit half precision."""
    return torch.linalg.vector_norm(values, dtype=torch.promote_types(values.dtype, torch.float32))
