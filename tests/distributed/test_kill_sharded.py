"""A rank killed inside a compressed phase, restarted by torchrun from the checkpoint: the masks of a run without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import acdc
from tests.waiting import HANG

SCRIPT = Path(__file__).with_name("kill_sharded_script.py")


def train(folder: Path, kill_at: int = -1) -> str:
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    command += ["--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", str(SCRIPT), str(folder), str(kill_at)]
    # Without this, restarted processes share a store with the killed ones (pytorch#135712), and about one run in three
    # waits for ever in init_process_group for the address of a dead process.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long  # torchrun starts cold, three times
def test_a_rank_killed_in_a_compressed_phase_changes_nothing(tmp_path: Path):
    assert "killed" not in train(tmp_path / "straight")
    assert "killed in sparse" in train(tmp_path / "killed", 6)
    one, two = (acdc.Result.load(tmp_path / name / "result") for name in ("straight", "killed"))
    for part in ("masks", "sparse", "dense"):
        ours, theirs = getattr(one, part), getattr(two, part)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
