"""Closures that say when their gradients are complete serve every method as a plain loop does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc

STEPS = 16


def train(method: acdc.Method, *, closures: bool, announce: bool = True) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=STEPS // 4)
    if closures and announce:
        sparsifier.expect_gradients_ready()
    for step in range(STEPS):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))

        def closure(x: Tensor = x) -> Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
            loss.backward()
            sparsifier.gradients_ready()
            return loss

        if closures:
            optimizer.step(closure)  # pyright: ignore[reportArgumentType]
        else:
            closure()
            optimizer.step()
    return sparsifier.finish().sparse


@pytest.mark.parametrize("name", ["acdc", "rigl", "dpf", "str"])
def test_as_in_a_plain_loop(name: str) -> None:
    knobs: dict[str, Any] = {"rigl": {"every": "3st"}, "dpf": {"every": "3st"}, "str": {"start": -3.0}}.get(name, {})
    if name != "str":
        knobs["sparsity"] = 0.75
    method = acdc.methods.build(name, epochs=4, **knobs)
    plain, closed = train(method, closures=False), train(method, closures=True)
    assert all(torch.equal(plain[key], closed[key]) for key in plain)


def test_other_closures_are_refused_by_methods_that_need_the_gradients() -> None:
    method = acdc.methods.DPF(sparsity=0.75, epochs=4, every="3st")
    with pytest.raises(RuntimeError, match="call the closure yourself"):
        train(method, closures=True, announce=False)
