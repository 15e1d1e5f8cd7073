"""Several processes, one model: what torchrun starts. Every rank trains its share of each batch; rank 0 writes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class World:
    """This process among all. Alone, every call below does nothing."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module, device: torch.device) -> nn.Module:
        if self.size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def share_buffers(self, model: nn.Module) -> None:
        """Rank 0's batch-norm statistics for all: each rank has just updated its own, and all evaluate one model."""
        if self.size > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, src=0)

    def sum(self, values: Tensor) -> Tensor:
        """Over all ranks, in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether it is so on any rank."""
        return bool(self.sum(torch.tensor(float(flag), device=device)).item()) if self.size > 1 else flag

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def same(self, value: Any) -> Any:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    def wait(self) -> None:
        if self.size > 1:
            distributed.barrier()


@contextmanager
def join(device: str) -> Iterator[World]:
    """The processes torchrun started, talking over NCCL on GPUs and gloo elsewhere; or this process alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    world = World(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))
    if device == "cuda":
        torch.cuda.set_device(world.local_rank)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield world
    finally:
        distributed.destroy_process_group()
