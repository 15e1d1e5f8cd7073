"""Threads that hold the pieces of one model, and sum counts as processes would."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from acdc.sparsity.topk import Shards
from tests.waiting import HANG


class AllReduce:
    """Sums what the threads of one run bring, as an all-reduce does between processes."""

    def __init__(self, count: int) -> None:
        self.brought = [torch.zeros(0, dtype=torch.int64)] * count
        self.barrier = threading.Barrier(count, timeout=HANG)

    def shards(self, index: int) -> Shards:
        def add(counts: Tensor) -> Tensor:
            assert counts.dtype == torch.int64
            self.brought[index] = counts.clone()
            self.barrier.wait()
            total = torch.stack(self.brought).sum(0)
            self.barrier.wait()
            return total

        return Shards(index, len(self.brought), add)


def on_workers(pieces: list[dict[str, Tensor]], run: Callable[[dict[str, Tensor], Shards], object]) -> list:
    """What each worker returned, or the exception it raised."""
    reduce = AllReduce(len(pieces))

    def work(index: int) -> object:
        try:
            return run(pieces[index], reduce.shards(index))
        except ValueError as error:
            return error
        except BaseException:
            reduce.barrier.abort()
            raise

    with ThreadPoolExecutor(len(pieces)) as pool:
        return list(pool.map(work, range(len(pieces))))
