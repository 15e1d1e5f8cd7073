"""AC/DC with each of its compressors, by the recipes that ship: what comes out is what the compressor allows."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

import acdc
from acdc.cli import main


def sparse_model(name: str, out: Path) -> dict[str, Tensor]:
    words = ["train", name, "--epochs", "4", "--out", str(out)]
    assert main([*words, "--set", "run.baseline=false", "--set", "run.finetune=false"]) == 0
    return {key: value for key, value in acdc.load(out / "sparse.safetensors").items() if value.ndim > 1}


def test_two_of_every_four_along_input_channels(tmp_path: Path) -> None:
    weights = sparse_model("digits-2-4", tmp_path / "run")
    for name, weight in weights.items():
        if weight.shape[1] % 4 == 0:
            groups = weight.movedim(1, -1).reshape(-1, 4).count_nonzero(1)
            assert int(groups.max()) <= 2, name
            assert groups.float().mean() > 1.9, name


def test_whole_tiles(tmp_path: Path) -> None:
    weights = sparse_model("digits-blocks", tmp_path / "run")
    kept = total = 0
    for weight in weights.values():
        rows, columns = weight.shape[:2]
        if rows % 4 == 0 and columns % 4 == 0:
            tiles = weight.reshape(rows // 4, 4, columns // 4, 4, -1).movedim((1, 3), (-2, -1)).flatten(-2)
            alive = (tiles != 0).sum(-1)
            kept, total = kept + int((alive > 0).sum()), total + alive.numel()
            assert ((alive == 0) | (alive > 12)).all()  # a weight of a kept tile may be 0 by itself
    assert kept == pytest.approx(0.25 * total, abs=1)


def test_whole_channels(tmp_path: Path) -> None:
    weights, masks = sparse_model("digits-channels", tmp_path / "run"), acdc.load(tmp_path / "run/masks.safetensors")
    assert set(weights) - set(masks) == {"conv1.weight", "fc.weight"}
    kept = 0
    for name, mask in masks.items():
        channels = mask.flatten(1).float().mean(1)
        assert ((channels == 0) | (channels == 1)).all(), name
        assert not weights[name][channels == 0].any(), name
        kept += int(mask.count_nonzero())
    assert kept == pytest.approx(0.5 * sum(mask.numel() for mask in masks.values()), rel=0.05)


def test_at_most_fifteen_values_in_a_channel(tmp_path: Path) -> None:
    """4 bits, symmetric about 0: −7 … 7 times the channel's step."""
    for name, weight in sparse_model("digits-4-bits", tmp_path / "run").items():
        for channel in weight.flatten(1):
            assert len(torch.unique(channel)) <= 15, name
