"""Several processes, one model: what torchrun starts. Every rank trains its share of each batch; rank 0 writes."""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

T = TypeVar("T")


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

    def by_first(self, act: Callable[[], T]) -> T:
        """What `act` gives on rank 0, on every rank. Its error is raised on all of them: none waits for a rank 0 that
        has gone, as where a disk is full."""
        if self.size == 1:
            return act()
        box: list[Any] = [None, None]
        if self.first:
            try:
                box[0] = act()
            except Exception as error:
                box[1] = error if _travels(error) else RuntimeError(f"{type(error).__name__}: {error}")
        distributed.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise box[1]
        return box[0]


def _travels(error: Exception) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return False
    return True


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
