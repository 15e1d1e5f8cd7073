"""Batch-norm statistics taken anew by two processes: those of one that sees every share."""

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from acdc.models.norm import SplitBatchNorm2d
from acdc.train.distributed import World
from acdc.train.evaluate import recalibrate
from acdc.train.execution import Setting
from tests.distributed.ranks import call_on_two_ranks
from tests.train.problems import EAGER, MadeBatches

SHARES = ([4, 4, 3], [4, 4])  # images in each batch that a rank sees: the last is too small for two
IMAGES = torch.randn(19, 2, 4, 4, generator=torch.Generator().manual_seed(0)) * 3 + 1


class Batches(MadeBatches):
    samples, batch_size, steps = 19, 8, 3

    def __init__(self, *ranks: int) -> None:
        own = IMAGES.split([sum(sizes) for sizes in SHARES])
        self.parts = [part for rank in ranks for part in own[rank].split(SHARES[rank])]

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        for part in self.parts:
            yield part, torch.zeros(len(part), dtype=torch.int64)


def recalibrated(world: World, *ranks: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1), SplitBatchNorm2d(3, splits=2)
    )
    setting = Setting(device=torch.device("cpu"), execution=EAGER, checkpoints=Path(), world=world)
    recalibrate(model, Batches(*ranks), precision="fp32", setting=setting)
    return model.state_dict()


def worker(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save(recalibrated(World(rank, 2, rank), rank), folder / f"{rank}.pt")
    dist.destroy_process_group()


def test_two_processes_average_over_all_shares(tmp_path: Path) -> None:
    call_on_two_ranks(worker, tmp_path)
    alone = recalibrated(World(), 0, 1)
    assert alone["1.num_batches_tracked"] == 5
    for rank in range(2):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt", weights_only=True), alone)
