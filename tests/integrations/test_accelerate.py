"""acdc.attach with what Accelerate prepared: accumulation, save_state and load_state."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator  # pyright: ignore[reportMissingImports]
from accelerate.utils import set_seed  # pyright: ignore[reportMissingImports]
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

import acdc

BATCHES, EPOCHS = 8, 6


def prepare(accumulation: int = 2) -> tuple[Any, ...]:
    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    x = torch.randn(4 * BATCHES, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    method = acdc.ACDC.paper(sparsity=0.75, epochs=EPOCHS)
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=BATCHES // accumulation)
    accelerator.register_for_checkpointing(sparsifier)
    return accelerator, model, optimizer, loader, sparsifier


def train(parts: tuple[Any, ...], epochs: range) -> None:
    accelerator, model, optimizer, loader, sparsifier = parts
    for _ in epochs:
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            for name, mask in sparsifier.masks.items():
                assert not model.get_parameter(name)[~mask].any()


@pytest.mark.parametrize("stop", [1, 2, 5], ids=["dense", "compressed", "final"])
def test_save_state_and_load_state_resume_to_the_same_bits(stop: int, tmp_path: Path) -> None:
    whole = prepare()
    train(whole, range(EPOCHS))
    first = prepare()
    train(first, range(stop))
    first[0].save_state(str(tmp_path))
    again = prepare()
    again[0].load_state(str(tmp_path))
    assert again[-1].step == 4 * stop
    train(again, range(stop, EPOCHS))
    one, other = whole[-1].finish(), again[-1].finish()
    assert one.sparsity == 0.75
    assert one.total_steps == 4 * EPOCHS
    for part in ("sparse", "dense", "masks"):
        for name, value in getattr(one, part).items():
            assert torch.equal(value, getattr(other, part)[name])
