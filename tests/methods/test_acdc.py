"""AC/DC beyond the paper: knobs whose worth is to be measured. The method itself: tests/test_sparsifier.py."""

import pytest
import torch
from torch import nn

import acdc


def sparsities(**knobs: object) -> list[float]:
    """After each compression of three, on a hundred weights."""
    torch.manual_seed(0)
    model = nn.Linear(10, 10, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    phases = [("dense", "1st"), ("sparse", "1st")] * 3
    sparsifier = acdc.attach(
        model, optimizer, acdc.ACDC(sparsity=0.9, schedule=acdc.Schedule.from_phases(phases), **knobs)
    )
    seen = []
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(4, 10)).square().sum().backward()
        optimizer.step()
        seen.append(sparsifier.sparsity)
    assert sparsifier.finish().sparsity == pytest.approx(0.9)
    return seen[1::2]


def test_sparsity_rises_from_compression_to_compression() -> None:
    """0.9 · (1 − (2/3)³) = 0.6333, 0.9 · (1 − (1/3)³) = 0.8667, and the target itself."""
    assert sparsities(gradual=True) == pytest.approx([0.63, 0.87, 0.90])
    assert sparsities() == pytest.approx([0.9, 0.9, 0.9])


def test_a_pattern_with_one_sparsity_cannot_rise() -> None:
    with pytest.raises(ValueError, match="has one sparsity only; leave gradual out"):
        acdc.ACDC(pattern=acdc.NM(2, 4), epochs=10, gradual=True)
