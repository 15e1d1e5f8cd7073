"""Muon, Adafactor and several optimizers: zeros hold after every step."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.errors import ArgumentError

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


@pytest.mark.filterwarnings("ignore:Muon is not known to keep zero weights:acdc.SparsityWarning")
def test_muon_and_another_optimizer_that_both_train_pruned_weights() -> None:
    model = Net()
    hidden = [model.first.weight, model.second.weight]
    others = [p for p in model.parameters() if all(p is not weight for weight in hidden)]
    parts = [torch.optim.Muon(hidden, lr=0.01), torch.optim.AdamW(others, lr=0.01)]
    sparsifier = acdc.attach(model, parts, METHOD, steps_per_epoch=4)
    train(model, parts, sparsifier)
    assert sparsifier.finish().sparsity == 0.75
    assert sparsifier.step == 24


def test_an_optimizer_that_does_not_hold_all_weights_is_refused() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.first.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match=r"does not hold second.weight, head.weight.*a list of all.*exclude="):
        acdc.attach(model, optimizer, METHOD, steps_per_epoch=4)
