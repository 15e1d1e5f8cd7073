"""Trains a tiny sharded net and saves after every step; started again, it goes on from its newest intact checkpoint.

torchrun ... kill_sharded_script.py FOLDER STEP [ROUNDS]      rank 1 kills itself after that step, the first time

test_kill_sharded.py and tests/drills use it, the latter for several rounds of the schedule.
"""

import json
import os
import shutil
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
from acdc.integrations.sealed_folders import newest_intact, seal

PHASES = [("dense", "3st"), ("sparse", "5st"), ("dense", "3st"), ("sparse", "5st")]
KEEP = 3  # checkpoints


def main(folder: Path, kill_at: int, rounds: int = 1) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    s = acdc.attach(
        model, optimizer, acdc.ACDC(sparsity=0.8, schedule=acdc.Schedule.from_phases(PHASES * rounds)), quiet=True
    )
    first, losses = dist.get_rank() == 0, torch.zeros(s.total_steps)
    found: list[Any] = [newest_intact(folder, "step-*") if first else None]
    dist.broadcast_object_list(found)
    (saved,) = found
    if saved:
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        states["losses"] = losses
        load(states, checkpoint_id=saved)
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        s.load_checkpoint(saved)
    while s.step < s.total_steps:
        generator = torch.Generator().manual_seed(s.step)
        x, y = torch.randn(8, 16, generator=generator), torch.randint(0, 3, (8,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses[s.step - 1] = loss.item()
        states: dict[str, Any] = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        checkpoint = folder / f"step-{s.step:04}"
        save({**states, "losses": losses, "sparsifier": s.state_dict()}, checkpoint_id=checkpoint)
        if first:  # all ranks have written their parts
            seal(checkpoint)
            for old in sorted(path for path in folder.glob("step-*") if path < checkpoint)[: -KEEP + 1]:
                shutil.rmtree(old)
        if s.step == kill_at and dist.get_rank() == 1 and not saved:
            print("killed in", s.phase.kind, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    result = s.finish(gather="rank0")
    if first:
        result.save(folder / "result")
        (folder / "losses.json").write_text(json.dumps(losses.tolist()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    sys.stdout.flush()
    os._exit(0)  # on its way out, torch aborted 2 of 6 interpreters that had been restarted
