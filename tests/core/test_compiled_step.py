"""Loops that compile a whole step, or the optimizer's: eager bits, and no more graphs than without a sparsifier."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import acdc
from tests.conformance.harness import DEVICE, EPOCHS, SPARSITY, STEPS_PER_EPOCH, TOTAL, Net, assert_same_bits, batch
from tests.warned import SMALL_NETS

pytestmark = SMALL_NETS

KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
}


def train(kind: str, compiled: str, *, sparse: bool = True) -> tuple[dict[str, Tensor], int]:
    """Return the model's bits and the number of graphs; `compiled` is "nothing", "step" or "optimizer"."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net().to(DEVICE)
    optimizer = KINDS[kind](model.parameters())
    method, graphs, sparsifier = acdc.ACDC.paper(sparsity=SPARSITY, epochs=EPOCHS), [], None
    if sparse:
        sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=STEPS_PER_EPOCH)

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def update() -> None:
        optimizer.step()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        update()

    if compiled == "optimizer":
        update = torch.compile(update, backend=backend)
    elif compiled == "step":
        step = torch.compile(step, backend=backend)
    for number in range(TOTAL):
        step(*batch(number))
        if sparsifier is not None:
            assert sparsifier.step == number + 1
            assert all(not model.get_parameter(name)[~mask].any() for name, mask in sparsifier.masks.items())
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}, len(graphs)


@pytest.mark.parametrize("compiled", ["step", "optimizer"])
@pytest.mark.parametrize("kind", KINDS)
def test_bits_and_graphs(kind: str, compiled: str) -> None:
    (eager, _), (bits, graphs) = train(kind, "nothing"), train(kind, compiled)
    assert graphs == train(kind, compiled, sparse=False)[1] > 0
    if kind == "SGD":  # a compiled Adam rounds its corrections differently, and follows signs of rounding errors
        assert_same_bits(eager, bits)
