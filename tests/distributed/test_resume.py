"""Two ranks that go on: from the same checkpoint, and within an epoch as if they had never stopped."""

import datetime
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from acdc.cli.train import _newest
from acdc.train import checkpoint
from acdc.train.checkpoint import CheckpointError
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

    every_rank_goes_on_with_sums_of_its_own(begin, folder)
    every_rank_looks_before_one_is_renamed_or_refused(folder / "whole" / "checkpoints", world)
    dist.destroy_process_group()


def every_rank_goes_on_with_sums_of_its_own(begin: Callable[[str], Stage], folder: Path) -> None:
    whole = outcome(list(begin("whole").run()))
    resumed = begin("resumed")
    resumed.load_state_dict(checkpoint.load(folder / "whole" / "checkpoints" / "0-acdc-00000003.pt"))
    assert resumed.batch == 3
    assert outcome(list(resumed.run())) == whole


def every_rank_looks_before_one_is_renamed_or_refused(checkpoints: Path, world: World) -> None:
    """The second is late, and finds what the first has found."""
    good, damaged = sorted(checkpoints.iterdir())[-2:]
    world.by_first(lambda: damaged.write_bytes(b"damaged"))
    load, unreadable = checkpoint.load, [True]

    def slowly(path: Path) -> dict:
        time.sleep(world.rank)
        if world.rank and unreadable:
            raise CheckpointError(f"{path}: could not be read")
        return load(path)

    checkpoint.load = slowly
    with pytest.raises(CheckpointError, match=f"{damaged}: could not be read"):  # what only rank 1 knows, on both
        _newest(checkpoints, world)
    unreadable.clear()
    found = _newest(checkpoints, world)
    world.by_first(lambda: checkpoint.set_aside(found))
    assert (found.path, list(checkpoints.glob("*.damaged"))) == (good, [Path(f"{damaged}.damaged")])


def test_two_ranks_go_on(tmp_path: Path) -> None:
    mp.start_processes(worker, (tmp_path,), nprocs=2, start_method="spawn")
