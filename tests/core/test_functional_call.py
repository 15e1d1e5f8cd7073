"""Loops by torch.func: phases begin there as well, exactly if the loop says when, and else one step's gradient late."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

import acdc
from tests.warned import warned

Parameters = dict[str, nn.Parameter]


def by_the_same_parameters(model: nn.Module, named: Parameters, loss: Callable[[dict], Tensor]) -> None:
    loss(named).backward()


def by_copies_in_the_graph(model: nn.Module, named: Parameters, loss: Callable[[dict], Tensor]) -> None:
    loss({name: param.clone() for name, param in named.items()}).backward()


def by_copies_of_their_own(model: nn.Module, named: Parameters, loss: Callable[[dict], Tensor]) -> None:
    copies = {name: param.detach().clone().requires_grad_() for name, param in named.items()}
    loss(copies).backward()
    for name, param in named.items():
        param.grad = copies[name].grad


def by_a_transform(model: nn.Module, named: Parameters, loss: Callable[[dict], Tensor]) -> None:
    for name, gradient in grad(loss)(named).items():
        named[name].grad = gradient


def first_compressed_gradient(backward: Callable, told: bool) -> tuple[Tensor, acdc.Sparsifier]:
    """Train a dense step and a compressed one, and return the gradient of a layer in the latter."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", "1st")])
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.5, schedule=phases))
    inputs = torch.randn(4, 6)
    for _ in range(2):
        optimizer.zero_grad()
        if told:
            sparsifier.begin_step()
        loss = lambda parameters: functional_call(model, parameters, (inputs,)).square().sum()  # noqa: E731
        backward(model, dict(model.named_parameters()), loss)
        optimizer.step()
    grad = model.get_parameter("0.weight").grad
    assert grad is not None
    return grad.clone(), sparsifier


@pytest.mark.parametrize(
    ("backward", "noticed"),
    [
        (by_the_same_parameters, None),
        (by_copies_in_the_graph, "at backward"),
        (by_copies_of_their_own, "at optimizer.step()"),
        (by_a_transform, "at optimizer.step()"),
    ],
)
def test_a_phase_begins_and_names_begin_step_where_it_is_late(backward: Callable, noticed: str | None) -> None:
    exact, _ = first_compressed_gradient(by_the_same_parameters, told=False)
    with warned() as messages:
        gradient, sparsifier = first_compressed_gradient(backward, told=False)
    assert sparsifier.finish().sparsity == pytest.approx(0.5)
    assert torch.allclose(gradient, exact) == (noticed is None)
    assert len(messages) == (noticed is not None)
    assert all(noticed in message and "sparsifier.begin_step()" in message for message in messages if noticed)

    gradient, _ = first_compressed_gradient(backward, told=True)  # without a warning, which would be an error
    assert torch.allclose(gradient, exact)


def test_a_closure_is_not_late() -> None:
    """It runs the forward pass inside optimizer.step(), after the phase has begun."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", "1st")])
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.5, schedule=phases))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.linear(torch.ones(1, 4), model.weight).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert sparsifier.finish().sparsity == 0.5
