"""What a sparsifier knows of the models and optimizers it attaches to."""

import torch
from torch import nn
from torch.optim import Optimizer

# Elementwise, and zero weight + zero gradient + zero state give zero weight and zero state.
_KEEPS_ZEROS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.NAdam,
    torch.optim.RAdam,
)
FIRST_MOMENTS = ("momentum_buffer", "exp_avg", "momentum", "m", "mu")

_WITHOUT_MOMENTUM = (torch.optim.SGD, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta)  # or off

_WRAPPERS = (nn.parallel.DistributedDataParallel, nn.DataParallel, torch.optim.swa_utils.AveragedModel)


def plain_model(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, DataParallel and torch.compile wrappers."""
    while True:
        if isinstance(model, _WRAPPERS):
            model = model.module
        elif (inner := getattr(model, "_orig_mod", None)) is not None:
            model = inner
        else:
            return model


def plain_optimizer(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside Accelerate's wrapper, which has no hooks of its own."""
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, Optimizer) else optimizer


def keeps_zeros(optimizer: Optimizer) -> bool:
    return type(optimizer) in _KEEPS_ZEROS or getattr(optimizer, "keeps_zeros", False)


def forget(optimizer: Optimizer, what: str) -> bool:
    """Reset "all" of the optimizer's state, its "momentum" or "nothing". False if it has one we do not know by name.

    Zeroed in place: replayed CUDA graphs go on reading the same memory.
    """
    if what == "all":
        optimizer.state.clear()
    if what != "momentum" or not optimizer.state:
        return True
    moments = [state[key] for state in optimizer.state.values() for key in FIRST_MOMENTS if key in state]
    for moment in moments:
        if isinstance(moment, torch.Tensor):
            moment.zero_()
    return bool(moments) or isinstance(optimizer, _WITHOUT_MOMENTUM)


def state_like(optimizer: Optimizer, param: torch.Tensor) -> list[torch.Tensor]:
    """What the optimizer's state keeps of each weight of a parameter: the tensors in it of the parameter's shape."""
    state = optimizer.state.get(param, {}).values()
    return [v for v in state if isinstance(v, torch.Tensor) and v.shape == param.shape and v.is_floating_point()]


def step_was_skipped(optimizer: Optimizer) -> bool:
    """A fused optimizer under GradScaler skips the update inside step(), and its hooks run all the same."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf is not None and bool(found_inf.item())


def loss_scale(optimizer: Optimizer) -> torch.Tensor | None:
    """What a fused optimizer under GradScaler will divide the gradients by inside its step(); None where nothing."""
    return getattr(optimizer, "grad_scale", None)


def has_closure(args: tuple, kwargs: dict) -> bool:
    """Whether optimizer.step was called with a closure; torch passes hooks the optimizer among `args`."""
    return any(callable(value) and not isinstance(value, Optimizer) for value in (*args, *kwargs.values()))
