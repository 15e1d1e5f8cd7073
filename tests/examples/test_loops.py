"""The examples of loops run as they are, and resume to the same end."""

import re
import sys
from pathlib import Path
from runpy import run_path

import pytest
import torch

import acdc
from tests.distributed.ranks import two_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_loop_of_timms_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = run_path(str(EXAMPLES / "timm_loop.py"))["main"]
    main([str(tmp_path / "whole"), "--epochs", "4"])
    whole = capsys.readouterr().out.splitlines()
    for stop in (["--stop-after", "2"], []):
        main([str(tmp_path / "resumed"), "--epochs", "4", *stop])
    resumed = capsys.readouterr().out.splitlines()
    assert [line for line in resumed if line.startswith("epoch")] == whole[:4]
    assert resumed[-1] == whole[-1]
    one, two = (torch.load(tmp_path / run / "last.pth.tar", weights_only=True) for run in ("whole", "resumed"))
    for name, tensor in one["state_dict"].items():
        assert torch.equal(tensor, two["state_dict"][name])
    model = acdc.models.build("digits_net", classes=10, in_channels=1)
    averages = [one["state_dict_ema"][f"module.{weight.name}"] for weight in acdc.find_prunable(model).weights]
    assert sum(int(w.count_nonzero()) for w in averages) <= 0.11 * sum(w.numel() for w in averages)


def test_torchtitans_order_on_two_ranks(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "torchtitan_style.py"]
    said = ""
    for arguments in (["whole"], ["resumed", "--stop-after", "11"], ["resumed"]):
        done = two_ranks([*command, tmp_path / arguments[0], "--steps", "20", *arguments[1:]])
        assert done.returncode == 0, done.stderr
        said += done.stdout
    assert len(set(re.findall(r"loss \d\.\d+, sparsity 80\.\d+%", said))) == 1
    one, two = (acdc.Result.load(tmp_path / run / "result") for run in ("whole", "resumed"))
    for name, tensor in one.sparse.items():
        assert torch.equal(tensor, two.sparse[name])
