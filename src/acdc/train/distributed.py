"""Training by several processes, started by torchrun: each takes its share of a batch, and rank 0 writes."""

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from acdc.data.images import Batches, FromFiles

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes of a run, as seen by this one. A single process exchanges nothing."""

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
        """Give all ranks the batch-norm statistics of rank 0: each updated its own, but all must evaluate one model."""
        if self.size > 1:
            for buffer in model.buffers():
                distributed.broadcast(buffer, src=0)

    def sum(self, values: Tensor) -> Tensor:
        """Sum `values` over all ranks, in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return True if `flag` is set on any rank."""
        return bool(self.sum(torch.tensor(float(flag), device=device)).item()) if self.size > 1 else flag

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, in order of rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def on_rank_zero(self, act: Callable[[], T]) -> T:
        """Call `act` on rank 0 and return its result on every rank.

        An error is raised on all of them, so that none waits for a rank 0 that has failed, say on a full disk.
        """
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
    """Join the processes that torchrun started, over NCCL on GPUs and gloo elsewhere; or run alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    world = World(int(os.environ["RANK"]), size, int(os.environ.get("LOCAL_RANK", "0")))
    if device == "cuda":
        torch.cuda.set_device(world.local_rank)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", **_own_store(world))
    try:
        yield world
    finally:
        # Gloo's threads drop Python objects after their last exchange. If the group is destroyed before they have the
        # interpreter's lock, it waits for them, and they for the lock, for ever.
        time.sleep(0.1)
        distributed.destroy_process_group()


def _own_store(world: World) -> dict[str, Any]:
    """Return arguments that keep processes restarted by torchrun from reading what killed ones wrote; often none.

    torchrun's agent gives all restarts one store (pytorch#135712), where a process may find the address of a dead one
    and wait for it for ever. Agents of several nodes count restarts on their own, so only one node's can be told apart.
    """
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    shared = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not restarts or not shared or os.environ.get("LOCAL_WORLD_SIZE") != str(world.size):
        return {}
    from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented there

    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    return {"store": PrefixStore(f"restart-{restarts}", store), "rank": world.rank, "world_size": world.size}


def skipped_images(batches: Batches, world: World) -> list[str]:
    """Return the names of unreadable image files on all ranks, each once.

    Every rank must call this: if there are too many, it raises on all of them.
    """
    if not isinstance(batches, FromFiles):
        return []
    names = list(dict.fromkeys(name for own in world.gather(batches.skipped) for name in own))
    batches.refuse_too_many(names)
    return names


def restore_skipped(batches: Batches, names: Sequence[str]) -> None:
    """Restore the list of files that a run had skipped before it stopped, including those readable by now.

    This keeps the metrics the same as those of a run that never stopped.
    """
    if isinstance(batches, FromFiles):
        batches.skipped = list(names)
