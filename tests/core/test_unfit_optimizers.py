"""Optimizers that cannot train weights whose gradient and state are 0 are refused as a sparsifier is attached."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import acdc
from tests.conformance.harness import Net

METHOD = acdc.ACDC(sparsity=0.9, epochs=4)
WITH_EPS = [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta,
            torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax]  # fmt: skip


def attach(model: nn.Module, optimizer: torch.optim.Optimizer) -> acdc.Sparsifier:
    return acdc.attach(model, optimizer, METHOD, steps_per_epoch=1)


@pytest.mark.parametrize("eps", [0, 0.0])
@pytest.mark.parametrize("optimizer", WITH_EPS)
def test_eps_of_zero_is_refused(optimizer: Callable[..., Any], eps: float) -> None:
    model = Net()
    with pytest.raises(ValueError, match=rf"^optimizer\.param_groups\[0\]\.eps={eps}: .*eps=1e-8\)$") as error:
        attach(model, optimizer(model.parameters(), eps=eps))
    assert "conv1.weight" in str(error.value)
    attach(model, optimizer(model.parameters())).detach()


def test_eps_of_zero_where_nothing_is_pruned_is_no_matter() -> None:
    model = Net()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "eps": 0.0},
    ]
    attach(model, torch.optim.Adam(groups)).detach()
    groups[0]["eps"] = 0.0
    with pytest.raises(ValueError, match=r"param_groups\[0\]"):
        attach(model, torch.optim.Adam(groups))


def test_sparse_adam_is_refused_by_name() -> None:
    model = Net()
    with pytest.raises(ValueError, match=r"^optimizer: SparseAdam .* write torch\.optim\.Adam\("):
        attach(model, torch.optim.SparseAdam(list(model.parameters())))


def test_lbfgs_is_refused() -> None:
    model = Net()
    with pytest.raises(ValueError, match=r"^optimizer: LBFGS .*; write torch.optim.SGD or Adam"):
        attach(model, torch.optim.LBFGS(model.parameters()))
