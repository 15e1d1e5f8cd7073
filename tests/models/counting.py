"""What FACTS and the paper state of a model: its counts, without the memory of its weights."""

from collections.abc import Callable

import torch
from torch import nn

from acdc import find_prunable


def on_meta(make: Callable[..., nn.Module], **options) -> nn.Module:
    with torch.device("meta"):
        return make(**options)


def counts(model: nn.Module) -> dict[str, int]:
    layers = find_prunable(model)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "prunable": layers.size,
        "layers": len(layers.weights),
        "norm": norm_parameters(model),
    }


def norm_parameters(model: nn.Module) -> int:
    return sum(p.numel() for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters())


def reported_sparsity(model: nn.Module, sparsity: float, **dense) -> float:
    """Per cent of zeros as the paper reports it: of the prunable weights, those left dense too, and norm parameters."""
    zeros = sparsity * find_prunable(model, **dense).size
    return 100 * zeros / (find_prunable(model).size + norm_parameters(model))


def equal_weights(first: nn.Module, second: nn.Module) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def no_equal_weight(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(find_prunable(first).weights, find_prunable(second).weights, strict=True)
    return not any(torch.equal(a.param, b.param) for a, b in pairs)
