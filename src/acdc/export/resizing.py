"""Gives the layers of a model other sizes: those of a shrunk copy, whose state dict was saved."""

import copy
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from acdc.errors import ArgumentError

Holders = dict[int, list[tuple[nn.Module, str]]]


def resize(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the model with layers as large as those in a shrunk copy's state dict, and these weights.

    The model is one that was built as the model before it was shrunk. Layers get a bias where the state dict has one.
    """
    model = copy.deepcopy(model)
    expected = model.state_dict()
    if missing := sorted(expected.keys() - state.keys()):
        raise ArgumentError("state", allowed=f"it lacks {missing[0]}: expected the state dict of a shrunk copy")
    for name in sorted(state.keys() - expected.keys()):
        owner, _, attribute = name.rpartition(".")
        layer = dict(model.named_modules()).get(owner)
        known = isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if not known or attribute != "bias":
            raise ArgumentError(
                "state", allowed=f"{type(model).__name__} has no {name}: expected that of a shrunk copy"
            )
        layer.bias = nn.Parameter(torch.zeros_like(state[name]))
    for name, old in expected.items():
        if old.ndim != state[name].ndim:
            raise ArgumentError("state", allowed=f"{name} has {state[name].ndim} axes, and the model's has {old.ndim}")
    holders = find_holders(model)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        if name in state and tensor.shape != state[name].shape:
            for module, _ in holders[id(tensor)]:
                _set_groups(module, name, state[name])
            replace_tensor(tensor, state[name].detach().to(tensor.device, tensor.dtype, copy=True), holders)
    for module in model.modules():
        tell_sizes(module)
    model.load_state_dict(state)
    return model


def _set_groups(module: nn.Module, name: str, weight: Tensor) -> None:
    """Tell a depthwise convolution how many channels are left. Groups of several inputs may have lost any of them."""
    if not isinstance(module, nn.modules.conv._ConvNd) or module.groups == 1 or weight.ndim < 2:
        return
    if module.groups != module.in_channels:
        allowed = f"{name} is of a convolution in groups, and its shape does not tell how many are left"
        raise ArgumentError("state", allowed=allowed, instead="write the shrunk model as ONNX")
    module.groups = module.groups * weight.shape[0] // module.out_channels


def find_holders(model: nn.Module) -> Holders:
    """Return by the id of each parameter and buffer all modules that hold it, and under which name."""
    holders: Holders = {}
    for module in model.modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                holders.setdefault(id(tensor), []).append((module, attribute))
    return holders


def replace_tensor(old: Tensor, new: Tensor, holders: Holders) -> None:
    """Put another tensor in the place of a parameter or a buffer, wherever it is held: what is tied stays tied."""
    parameter = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else None
    for module, attribute in holders[id(old)]:
        if parameter is not None:
            module._parameters[attribute] = parameter
        else:
            module._buffers[attribute] = new


def tell_sizes(module: nn.Module) -> None:
    """Set what a layer says of its size to that of its parameters."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.conv._ConvNd) and not module.transposed:
        module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        module.num_features = len(module.running_mean)
    elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # GPT-2's linear layer
        for attribute, size in zip(("nx", "nf"), cast("Tensor", module.weight).shape, strict=True):
            setattr(module, attribute, size)
