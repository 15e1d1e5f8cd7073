"""Two ranks that go on from a checkpoint within an epoch: its row is that of a run that never stopped."""

import datetime
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from acdc.train import checkpoint
from acdc.train.distributed import World
from acdc.train.loop import Stage
from tests.train.problems import outcome, stage


def worker(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=limit)
    world = World(rank, 2, rank)

    def begin(name: str) -> Stage:
        every = ("run.checkpoint_every=3st", "run.keep=100")
        return stage(folder / name, *every, change=lambda setting: setattr(setting, "world", world))

    whole = outcome(list(begin("whole").run()))
    resumed = begin("resumed")
    resumed.load_state_dict(checkpoint.load(folder / "whole" / "checkpoints" / "0-acdc-00000003.pt"))
    assert resumed.batch == 3
    assert outcome(list(resumed.run())) == whole
    dist.destroy_process_group()


def test_every_rank_goes_on_with_sums_of_its_own(tmp_path: Path) -> None:
    mp.start_processes(worker, (tmp_path,), nprocs=2, start_method="spawn")
