"""Trains a tiny sharded net and saves after every step; started again, it goes on. Used by test_kill_sharded.py.

torchrun ... kill_sharded_script.py FOLDER STEP      rank 1 kills itself after that step, the first time
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F  # noqa: N812

import acdc

SCHEDULE = acdc.Schedule.from_phases([("dense", "3st"), ("sparse", "5st"), ("dense", "3st"), ("sparse", "5st")])


def main(folder: Path, kill_at: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    s = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.8, schedule=SCHEDULE), quiet=True)
    saved = sorted(folder.glob("step-*/.metadata"))  # which torch writes last
    if saved:
        states: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        load(states, checkpoint_id=saved[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        s.load_checkpoint(saved[-1].parent)
    while s.step < s.total_steps:
        generator = torch.Generator().manual_seed(s.step)
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        save({**states, "sparsifier": s.state_dict()}, checkpoint_id=folder / f"step-{s.step:02}")
        if s.step == kill_at and dist.get_rank() == 1 and not saved:
            print("killed in", s.phase.kind, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    result = s.finish(gather="rank0")
    if dist.get_rank() == 0:
        result.save(folder / "result")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
