"""Computes the values of channels that are the same for all inputs and at all positions; NaN marks the others."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node


def product_constants(weight: Tensor, out_axis: int, groups: int, inputs: Tensor, padded: bool) -> Tensor:
    """Return the output of each filter, without its bias, if it is the same for all inputs; else NaN.

    It is constant if every input that the filter has weights for is constant and, under zero padding, 0.
    """
    rows = weight.movedim(out_axis, 0)
    rows = rows.reshape(groups, rows.shape[0] // groups, rows.shape[1], -1)
    columns = (zero_or_unknown(inputs) if padded else inputs).view(groups, 1, -1)
    used = (rows != 0).any(-1)
    known = ~(used & columns.isnan()).any(-1)
    total = (rows.sum(-1) * columns.nan_to_num()).sum(-1)
    return torch.where(known, total, torch.nan).flatten()


def evaluate(target: Any, node: Node, constants: Mapping[Node, Tensor]) -> Tensor:
    """Return what a pointwise operation makes of constants, or NaN for channels with an unknown operand."""
    known = torch.stack([~one.isnan() for one in constants.values()]).all(0)

    def operand(value: Any) -> Any:
        return constants[value].clone() if isinstance(value, Node) else value

    try:
        result = target(*map(operand, node.args), **{key: operand(value) for key, value in node.kwargs.items()})
    except (RuntimeError, TypeError):  # the operation does not take these shapes or types
        return torch.full_like(known, torch.nan, dtype=torch.float64)
    finite = torch.isfinite(result) if isinstance(result, Tensor) and result.shape == known.shape else False
    return torch.where(known & finite, result, torch.nan)


def uniform(parameter: Tensor, axis: int) -> Tensor:
    """Return a parameter's value at each position of an axis if it is the same along the other axes; else NaN."""
    rows = parameter.movedim(axis, 0).reshape(parameter.shape[axis], -1)
    return torch.where((rows == rows[:, :1]).all(1), rows[:, 0], torch.nan)


def zero_or_unknown(constant: Tensor) -> Tensor:
    return torch.where(constant == 0, 0.0, torch.nan).to(constant.dtype)
