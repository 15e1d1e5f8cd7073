"""Two ranks that go on: from the same checkpoint, and within an epoch as if they had never stopped."""

import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from acdc.runs import checkpoint
from acdc.runs.checkpoint import CheckpointError, NoCheckpointError
from acdc.train.distributed import World
from acdc.train.resume import find_newest
from acdc.train.stage import Stage
from tests.distributed.ranks import call_on_two_ranks
from tests.train.problems import outcome, stage
from tests.waiting import HANG


def worker(rank: int, folder: Path) -> None:
    """What each rank has seen is in a file of its own, for the tests."""
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=HANG)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=limit)
    world = World(rank, 2, rank)

    def begin(name: str) -> Stage:
        every = ("run.checkpoint_every=3st", "run.keep=100")
        return stage(folder / name, *every, change=lambda setting: setattr(setting, "world", world))

    checkpoints = folder / "whole" / "checkpoints"
    seen = go_on(begin, checkpoints) | look(checkpoints, world)
    (folder / f"{rank}.json").write_text(json.dumps(seen, default=str))
    dist.destroy_process_group()


def go_on(begin: Callable[[str], Stage], checkpoints: Path) -> dict[str, Any]:
    whole, resumed = outcome(list(begin("whole").run())), begin("resumed")
    resumed.load_state_dict(checkpoint.load(checkpoints / "0-acdc-00000003.pt"))
    return {"whole": whole, "batch": resumed.batch, "resumed": outcome(list(resumed.run()))}


def look(checkpoints: Path, world: World) -> dict[str, Any]:
    """For the newest, which is damaged, with a second rank that is late; at first that cannot read it at all."""
    newest = max(checkpoints.iterdir())
    world.on_rank_zero(lambda: newest.write_bytes(b"damaged"))
    load, said = checkpoint.load, ""

    def slowly(path: Path) -> dict[str, Any]:
        time.sleep(world.rank)
        if world.rank and not said:
            raise CheckpointError(f"{path.name}: could not be read")
        return load(path)

    checkpoint.load = slowly
    try:
        find_newest(checkpoints, world)
    except CheckpointError as error:
        said = str(error)
    found = find_newest(checkpoints, world)
    assert not isinstance(found, CheckpointError)
    world.on_rank_zero(lambda: checkpoint.set_aside(checkpoints, found.path))
    files = sorted(path.name for path in checkpoints.iterdir())
    world.on_rank_zero(lambda: [path.write_bytes(b"damaged") for path in checkpoints.iterdir()])
    left = find_newest(checkpoints, world)
    assert isinstance(left, NoCheckpointError)
    return {"said": said, "found": found.path.name, "files": files, "left": left.skipped}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    call_on_two_ranks(worker, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_every_rank_goes_on_with_sums_of_its_own(ranks: list[dict[str, Any]]) -> None:
    """An epoch's loss and accuracy are of all that both have seen of it."""
    for seen in ranks:
        assert seen["batch"] == 3
        assert seen["resumed"] == seen["whole"]


def test_every_rank_looks_before_one_is_renamed_or_refused(ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    *_, good, damaged = first["files"]
    assert damaged.endswith(".pt.damaged")
    assert first["said"] == second["said"] == f"{damaged.removesuffix('.damaged')}: could not be read"
    assert first["found"] == second["found"] == good
    assert first["left"] == second["left"]
    assert len(first["left"]) == len(first["files"]) - 1, "all but the one that was renamed"
