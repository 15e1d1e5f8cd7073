"""Two processes under DistributedDataParallel: one mask, and the single process's masks and weights."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import acdc
from tests.conformance.harness import SPARSITY
from tests.distributed.ranks import call_on_two_ranks

STEPS, SPE = 12, 2


def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(2, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(128, 8))


def train(model: torch.nn.Module, attach_to: torch.nn.Module, rows: slice) -> acdc.Sparsifier:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
    s = acdc.attach(attach_to, optimizer, acdc.ACDC.paper(sparsity=SPARSITY, epochs=6), steps_per_epoch=SPE)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(8, 2, 6, 6, generator=generator), torch.randint(0, 8, (8,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        for name, mask in s.masks.items():
            assert not s.context.model.get_parameter(name)[~mask].any()
    return s


def worker(rank: int, folder: str, wrapper: bool, compiled: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    model = net()
    ddp = DistributedDataParallel(model)
    call = torch.compile(ddp, backend="eager") if compiled else ddp
    assert isinstance(call, torch.nn.Module)
    s = train(call, ddp if wrapper else model, slice(4 * rank, 4 * rank + 4))
    result = s.finish()
    torch.save({"masks": result.masks, "sparse": result.sparse, "dense": result.dense}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def run_two(wrapper: bool, compiled: bool = False) -> list[dict]:
    with tempfile.TemporaryDirectory() as folder:
        call_on_two_ranks(worker, folder, wrapper, compiled)
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]


def check(ranks: list[dict]) -> None:
    alone = train(model := net(), model, slice(None)).finish()
    for part in ("masks", "sparse", "dense"):
        for name, value in getattr(alone, part).items():
            assert torch.equal(ranks[0][part][name], ranks[1][part][name]), "the ranks agree to the bit"
            if part == "masks":
                assert torch.equal(ranks[0][part][name], value), "and with one process on the whole batch"
            else:
                torch.testing.assert_close(ranks[0][part][name], value, rtol=1e-4, atol=1e-6)


def test_attached_to_the_wrapper():
    check(run_two(wrapper=True))


def test_attached_to_the_plain_model():
    check(run_two(wrapper=False))


def test_compiled():
    check(run_two(wrapper=False, compiled=True))
