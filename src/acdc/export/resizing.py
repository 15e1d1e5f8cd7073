"""Resizes the layers of a model to those of a shrunk copy whose state dict was saved."""

import copy
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from acdc.errors import ArgumentError

Holders = dict[int, list[tuple[nn.Module, str]]]


def resize(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of the model that holds a shrunk copy's state dict, with layers resized to fit.

    `model` is built like the model that was shrunk. Layers get a bias if the state dict has one.
    """
    model = copy.deepcopy(model)
    expected = model.state_dict()
    if missing := sorted(expected.keys() - state.keys()):
        raise ArgumentError("state", allowed=f"{missing[0]} is missing; expected the state dict of a shrunk copy")
    for name in sorted(state.keys() - expected.keys()):
        owner, _, attribute = name.rpartition(".")
        layer = dict(model.named_modules()).get(owner)
        known = isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if not known or attribute != "bias":
            raise ArgumentError(
                "state", allowed=f"{type(model).__name__} has no {name}; expected the state dict of a shrunk copy"
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
    """Set the groups of a depthwise convolution. With several inputs in a group, the shape does not tell them."""
    if not isinstance(module, nn.modules.conv._ConvNd) or module.groups == 1 or weight.ndim < 2:
        return
    if module.groups != module.in_channels:
        allowed = f"{name} belongs to a grouped convolution, and its shape does not tell how many groups are left"
        raise ArgumentError("state", allowed=allowed, instead="export the shrunk model as ONNX")
    module.groups = module.groups * weight.shape[0] // module.out_channels


def find_holders(model: nn.Module) -> Holders:
    """Return, for the id of each parameter and buffer, the modules that hold it and its name in each."""
    holders: Holders = {}
    for module in model.modules():
        for attribute, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                holders.setdefault(id(tensor), []).append((module, attribute))
    return holders


def replace_tensor(old: Tensor, new: Tensor, holders: Holders) -> None:
    """Replace a parameter or buffer in every module that holds it, so that tied tensors stay tied."""
    parameter = nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else None
    for module, attribute in holders[id(old)]:
        if parameter is not None:
            module._parameters[attribute] = parameter
        else:
            module._buffers[attribute] = new


def tell_sizes(module: nn.Module) -> None:
    """Set a layer's size attributes to the sizes of its parameters."""
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.conv._ConvNd) and not module.transposed:
        module.out_channels, module.in_channels = module.weight.shape[0], module.weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
        module.num_features = len(module.running_mean)
    elif type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # GPT-2's linear layer
        for attribute, size in zip(("nx", "nf"), cast("Tensor", module.weight).shape, strict=True):
            setattr(module, attribute, size)
