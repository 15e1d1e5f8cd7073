"""acdc.keep_masks: fine-tuning keeps the zeros of a sparse model, whatever the optimizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.errors import ArgumentError


class Net(nn.Module):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 8, padding_idx=padding)
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.body(self.embedding(x))))


def sparse(**knobs: Any) -> Net:
    model = Net(**knobs)
    with torch.no_grad():
        model.body.weight[torch.rand(16, 8) < 0.75] = 0.0
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 20) -> None:
    for step in range(steps):
        x = torch.randint(0, 10, (16,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x), x).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor])
@pytest.mark.filterwarnings("ignore:Adafactor is not known to keep zero weights:acdc.SparsityWarning")
def test_zeros_stay_and_the_rest_is_trained(kind: Any) -> None:
    model = sparse()
    before, zeros = {k: v.clone() for k, v in model.state_dict().items()}, model.body.weight == 0
    optimizer = kind(model.parameters(), lr=0.05)
    sparsifier = acdc.keep_masks(model, optimizer)
    assert [weight.name for weight in sparsifier.layers.weights] == ["body.weight"]
    train(model, optimizer)
    assert torch.equal(model.body.weight == 0, zeros)
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    result = sparsifier.finish()
    assert result.total_steps == sparsifier.step == 20
    assert torch.equal(result.masks["body.weight"], ~zeros)
    assert result.dense is None


def test_what_acdc_made_is_trained_further(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.75, epochs=4), steps_per_epoch=5)
    train(model, optimizer)
    first = sparsifier.finish()
    first.save(tmp_path)
    again = Net()
    again.load_state_dict(acdc.load(tmp_path / "sparse.safetensors"))
    optimizer = torch.optim.AdamW(again.parameters(), lr=0.01)
    second = acdc.keep_masks(again, optimizer)
    train(again, optimizer)
    assert all(torch.equal(mask, second.masks[name]) for name, mask in first.masks.items())


def test_resuming_gives_the_same_bits() -> None:
    whole, parts = sparse(), sparse()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    acdc.keep_masks(whole, optimizer)
    train(whole, optimizer, 20)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=0.01)
    first = acdc.keep_masks(parts, optimizer)
    train(parts, optimizer, 10)
    states = [part.state_dict() for part in (parts, optimizer, first)]
    resumed = sparse()
    optimizer = torch.optim.AdamW(resumed.parameters(), lr=0.01)
    second = acdc.keep_masks(resumed, optimizer)
    for part, state in zip((resumed, optimizer, second), states, strict=True):
        part.load_state_dict(state)
    assert second.step == 10
    for step in range(10, 20):
        x = torch.randint(0, 10, (16,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(resumed(x), x).backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_padding_is_no_pruned_weight_and_pruned_embeddings_are_kept() -> None:
    model = sparse(padding=3)
    assert len(acdc.KeepMasks().layers(model).weights) == 1
    with torch.no_grad():
        model.embedding.weight[:, 0] = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = acdc.keep_masks(model, optimizer)
    train(model, optimizer)
    assert not model.embedding.weight[:, 0].any()
    assert sparsifier.masks["embedding.weight"][3].all()


def test_a_layer_that_is_all_zeros_is_new_unless_named() -> None:
    model = sparse()
    nn.init.zeros_(model.head.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(acdc.SparsityWarning, match=r"all weights of head.weight are 0, as in new layers"):
        sparsifier = acdc.keep_masks(model, optimizer)
    train(model, optimizer)
    assert model.head.weight.any()
    sparsifier.detach()
    nn.init.zeros_(model.head.weight)
    sparsifier = acdc.keep_masks(model, optimizer, include=["head", "*"])
    with pytest.warns(acdc.SparsityWarning, match="all weights of head.weight are pruned"):
        train(model, optimizer)
    assert not model.head.weight.any()


def test_bad_input() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match=r"none of its 3 prunable layers has zeros.*acdc.load"):
        acdc.keep_masks(model, optimizer)
    with pytest.raises(ArgumentError, match=r"epochs=3: masks hold for as many steps as there are; omit epochs"):
        acdc.KeepMasks(epochs=3)
    with pytest.raises(ArgumentError, match=r"sparsity=0.9: the model's own zeros decide it"):
        acdc.KeepMasks(sparsity=0.9)
    pruned = sparse()
    acdc.keep_masks(pruned, torch.optim.SGD(pruned.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="already has a sparsifier"):
        acdc.keep_masks(pruned, torch.optim.SGD(pruned.parameters(), lr=0.1))
