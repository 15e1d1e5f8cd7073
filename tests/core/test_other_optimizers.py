"""Muon, Adafactor and several optimizers: supported, or refused by name."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.errors import ArgumentError, ArgumentTypeError

METHOD = acdc.ACDC.paper(sparsity=0.75, epochs=6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.second(F.relu(self.first(x)))))


def train(model: nn.Module, optimizers: list[torch.optim.Optimizer], sparsifier: acdc.Sparsifier) -> None:
    for step in range(24):
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        for optimizer in optimizers:
            optimizer.step()
        for name, mask in sparsifier.masks.items():
            assert not model.get_parameter(name)[~mask].any()


@pytest.mark.filterwarnings("ignore:Muon is not known to keep zero weights:acdc.SparsityWarning")
def test_muon_beside_another_optimizer_that_trains_what_is_not_pruned() -> None:
    model = Net()
    hidden = [model.first.weight, model.second.weight]
    others = [p for p in model.parameters() if all(p is not weight for weight in hidden)]
    muon, adam = torch.optim.Muon(hidden, lr=0.01), torch.optim.AdamW(others, lr=0.01)
    method = acdc.ACDC.paper(sparsity=0.75, epochs=6, exclude=["head"])
    sparsifier = acdc.attach(model, muon, method, steps_per_epoch=4)
    train(model, [muon, adam], sparsifier)
    assert sparsifier.finish().sparsity == 0.75
    buffers = [muon.state[weight]["momentum_buffer"] for weight in hidden]
    assert all(not buffer[weight == 0].any() for buffer, weight in zip(buffers, hidden, strict=True))


@pytest.mark.filterwarnings("ignore:Adafactor :acdc.SparsityWarning")
def test_adafactor() -> None:
    model = Net()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=0.01)
    sparsifier = acdc.attach(model, optimizer, METHOD, steps_per_epoch=4)
    train(model, [optimizer], sparsifier)
    assert sparsifier.finish().sparsity == 0.75


def test_several_optimizers_are_refused() -> None:
    model = Net()
    parts = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model.first, model.second, model.head)]
    with pytest.raises(ArgumentTypeError, match=r"received 3 of them in a list.*works with one optimizer.*exclude="):
        acdc.attach(model, parts, METHOD, steps_per_epoch=4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match=r"does not hold second.weight, head.weight.*exclude="):
        acdc.attach(model, parts[0], METHOD, steps_per_epoch=4)
