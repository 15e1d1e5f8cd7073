"""Pruned models to export: weights zeroed by acdc's own patterns, batch norms with statistics of some training."""

import torch
from torch import Tensor, nn

import acdc
from acdc.sparsity.distributions import budgets
from acdc.sparsity.masks import apply_, new_mask
from acdc.sparsity.patterns import Pattern


def with_statistics(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give batch norms numbers of their own: a fresh one hides what it does to constants."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for tensor in (module.running_mean, module.weight, module.bias):
                    assert tensor is not None
                    tensor.normal_(generator=generator)
                assert module.running_var is not None
                module.running_var.uniform_(0.5, 2, generator=generator)
    return model


def prune(model: nn.Module, pattern: Pattern, sparsity: float, distribution: str = "uniform") -> nn.Module:
    """Zero the smallest weights in the shape of the pattern."""
    layers = acdc.find_prunable(model)
    masks = {weight.name: new_mask(weight.param) for weight in layers.weights}
    scores: dict[str, Tensor] = {weight.name: weight.param.detach() for weight in layers.weights}
    pattern.write_masks(layers.weights, scores, budgets(distribution, layers.weights, sparsity), masks)
    for weight in layers.weights:
        apply_(weight.param, masks[weight.name])
    return model


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def conv(model: nn.Module, name: str) -> nn.Conv2d:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Conv2d)
    return layer


def linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer
