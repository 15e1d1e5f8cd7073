"""What is not finite on one of two ranks ends both, with the same words: none is left waiting for the other."""

import datetime
import math
from pathlib import Path

import torch
import torch.distributed as dist

from acdc.train import stage as training
from acdc.train import step as stepping
from acdc.train.distributed import World
from acdc.train.stage import Stage
from tests.distributed.ranks import call_on_two_ranks
from tests.train.problems import stage
from tests.waiting import HANG

BAD = 6  # of 5 steps an epoch


def loss(run: Stage, rank: int) -> None:
    """Rank 1's, of its share of the next batch; its gradients would spread, and are left out."""
    if rank == 1:
        run.totals.add(torch.tensor(math.inf), torch.tensor(0), 1)


def weights(run: Stage, rank: int) -> None:
    """Of all ranks, as gradients that are not finite leave them; the next loss shows it."""
    with torch.no_grad():
        run.model.get_parameter("fc.weight").fill_(math.nan)


STOPS = {loss: 7, weights: 9}  # where ranks tell each other: after batches 2 and 4 of the epoch
SAID = f"acdc: the loss of step {BAD + 1} (epoch 2) is not finite, at learning rate 0.05"


def worker(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    stepping._EVERY = 0.0  # a rank sees each step of its own: what it sees by its clock must decide nothing
    training._ASK_OTHERS = 2
    limit = datetime.timedelta(seconds=HANG)
    dist.init_process_group("gloo", f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=limit)
    world = World(rank, 2, rank)
    for poison in (loss, weights):
        run = stage(folder / poison.__name__, change=lambda setting: setattr(setting, "world", world))
        run.optimizer.register_step_post_hook(lambda *_, p=poison, r=run: p(r, rank) if r.step == BAD else None)
        try:
            list(run.run())
        except Exception as error:
            (folder / f"{poison.__name__}-{rank}").write_text(f"{type(error).__name__} {error} after {run.step} steps")
    dist.destroy_process_group()


def test_one_rank_ends_all_with_the_same_words(tmp_path: Path) -> None:
    call_on_two_ranks(worker, tmp_path)
    for poison in (loss, weights):
        good = tmp_path / poison.__name__ / "checkpoints" / "0-acdc-00000005.pt"
        for rank in range(2):
            told = (tmp_path / f"{poison.__name__}-{rank}").read_text()
            assert told == f"DivergedError {SAID}; the last good checkpoint is {good} after {STOPS[poison]} steps", rank
