"""Warnings reach users through Python's warnings, once each, at a line of their own code."""

import warnings

import pytest
import torch
from torch import nn

import acdc
from tests.warned import warned

SHORT = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", "3st")])


def attach() -> tuple[nn.Linear, torch.optim.SGD, acdc.Sparsifier]:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.5, schedule=SHORT))


def step(model: nn.Linear, optimizer: torch.optim.SGD) -> None:
    """One without a call of the module, so that the sparsifier notices it at backward."""
    optimizer.zero_grad()
    nn.functional.linear(torch.ones(1, 4), model.weight).square().sum().backward()
    optimizer.step()


def test_a_warning_names_the_line_of_the_users_code() -> None:
    model, optimizer, sparsifier = attach()
    with pytest.warns(acdc.SparsityWarning, match="has no effect") as caught:
        sparsifier.report_metric(0.5)
    assert caught[0].filename == __file__
    step(model, optimizer)
    with pytest.warns(acdc.SparsityWarning, match="noticed only at backward") as caught:
        step(model, optimizer)
    assert caught[0].filename == __file__


def test_each_sparsifier_warns_once_of_the_same() -> None:
    for _ in range(2):
        _, _, sparsifier = attach()
        with warned() as messages:
            sparsifier.report_metric(0.5)
            sparsifier.report_metric(0.6)
        assert len(messages) == 1


def test_a_warning_made_an_error_leaves_the_run_whole() -> None:
    """The phase has begun, and the step goes on where the error is caught."""
    model, optimizer, sparsifier = attach()
    step(model, optimizer)
    with pytest.raises(acdc.SparsityWarning, match="noticed only at backward"):
        step(model, optimizer)
    assert sparsifier.phase.kind == "sparse"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(sparsifier.total_steps - sparsifier.step):
            step(model, optimizer)
    assert sparsifier.finish().sparsity == 0.5


def test_a_host_may_show_them_its_own_way() -> None:
    _, _, sparsifier = attach()
    lines: list[str] = []
    sparsifier.context.show_warning = lines.append
    sparsifier.report_metric(0.5)
    assert len(lines) == 1
