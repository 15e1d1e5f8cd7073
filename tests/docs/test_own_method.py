"""Follows docs/own-method.md: writes its file, trains the method in it, and holds it to what every method promises."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import acdc
from tests.docs import blocks, surroundings

PAGE = [block for block in blocks.read("docs/own-method.md") if block.language == "python"]


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what a reader has who did all of the page, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "steady", raising=False)
    names = surroundings.of_a_loop()
    for block in PAGE:
        blocks.run(block, names)
    sys.modules.pop("steady")
    return names


def test_the_page_s_method_trains(followed: dict[str, Any]) -> None:
    masks = followed["result"].masks
    kept, weights = (sum(int(part) for part in parts) for parts in zip(
        *((mask.sum(), mask.numel()) for mask in masks.values()), strict=True))  # fmt: skip
    assert kept == round(0.1 * weights)
    for name, mask in masks.items():
        assert not followed["result"].sparse[name][~mask].any()
    assert all((followed["result"].dense[name] != 0).all() for name in masks), "the twin was kept before the masks came"


def test_the_sparsity_rises_along_a_line_and_survives_a_stop(followed: dict[str, Any]) -> None:
    method = followed["Steady"](sparsity=0.8, epochs=10)

    def attached() -> tuple[torch.nn.Module, torch.optim.Optimizer, acdc.Sparsifier]:
        model = surroundings.build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, acdc.attach(model, optimizer, method, steps_per_epoch=4, quiet=True)

    parts = attached()
    rising = []
    for epoch in range(10):
        if epoch == 5:  # stopped, and resumed by another process
            states = [part.state_dict() for part in parts]
            parts = attached()
            for part, state in zip(parts, states, strict=True):
                part.load_state_dict(state)
        model, optimizer, sparsifier = parts
        for x, y in followed["loader"]:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        rising.append(sparsifier.sparsity)
    expected = [0, *(0.8 * min(1, epoch / 7.5) for epoch in range(1, 10))]
    assert rising == pytest.approx(expected, abs=1e-3)
