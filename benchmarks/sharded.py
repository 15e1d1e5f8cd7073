"""Exact top-k masks over shards of the same weights: time against the unsharded selection, memory, and all-reduces.

The shards are threads of one process that take turns at the processor: one computes until its next all-reduce, which
adds the counts in memory. So the time is the work of all shards, one after another, and the ratio to the unsharded
selection is what sharding adds to it; a network's time is not in it. Both take turns on the same weights, after a
warm-up. On the CPU memory is measured in a fresh process, as in memory.py, and holds the masks and scratch of all
shards at once: `python -m benchmarks.sharded --peak SIZE SHARDS`.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
from torch import Tensor

from acdc.sparsity.topk import Shards, top_k
from benchmarks import memory
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, ROOT, Row, append, environment
from benchmarks.rivals import LAYERS, SPARSITY, Masks, Weights, kept_of, make_weights, round_size
from benchmarks.select import parse_size
from benchmarks.sharded_tables import sharded_table

_TIES = 1_000_000


class Exchange:
    """All-reduces between threads that take turns, and the bytes of each."""

    def __init__(self, count: int) -> None:
        self.count, self.sizes = count, list[int]()
        self._parts: list[Tensor] = [torch.empty(0)] * count
        self._total = torch.empty(0)
        self.turn, self._barrier = threading.Lock(), threading.Barrier(count, action=self._add)

    def _add(self) -> None:
        self.sizes.append(self._parts[0].numel() * self._parts[0].element_size())
        self._total = torch.stack(self._parts).sum(0)

    def shards(self, index: int) -> Shards:
        def add(counts: Tensor) -> Tensor:
            self._parts[index] = counts
            self.turn.release()
            try:
                self._barrier.wait()
            finally:
                self.turn.acquire()
            return self._total  # replaced only after all have read it: the next barrier waits for them

        return Shards(index=index, count=self.count, sum=add)

    def abort(self) -> None:
        self._barrier.abort()


def split(weights: Weights, count: int) -> list[dict[str, Tensor]]:
    """Return each shard's rows of every layer, as fully_shard splits them; these are views."""
    ends = [Shards(index=index, count=count, sum=lambda counts: counts).first_row for index in range(count + 1)]
    return [
        {name: weight[ends[index](len(weight)) : ends[index + 1](len(weight))] for name, weight in weights.items()}
        for index in range(count)
    ]


def select_sharded(parts: list[dict[str, Tensor]], k: int) -> tuple[Masks, Exchange]:
    """Return the masks of all shards, by layer and shard, and what they exchanged."""
    exchange, masks, errors = Exchange(len(parts)), Masks(), list[BaseException]()

    def work(index: int) -> None:
        with exchange.turn:
            try:
                own = top_k(parts[index], k, shards=exchange.shards(index))
                masks.update({f"{name}/{index}": mask for name, mask in own.items()})
            except BaseException as error:
                errors.append(error)
                exchange.abort()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return masks, exchange


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.peak:
        print(json.dumps(_peak(*options.peak)))
        return 0
    device = torch.device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    shared = environment(device, options.commit)
    say(f"sharded: {shared['device_name']}, {shared['cores']} cores, torch {shared['torch']}, load {shared['load']}")
    rows = [
        {**shared, **measure(round_size(size), count, device, options.rounds)}
        for size in options.sizes
        for count in options.shards
    ]
    append(options.results, rows)
    print_table(*sharded_table(rows))
    say(f"written to {options.results}")
    return 0


def measure(size: int, count: int, device: torch.device, rounds: int) -> Row:
    k, title = kept_of(size), f"{size:,} weights in {count} shards"
    peak = _measure_peak(size, count) if device.type == "cpu" else {}
    weights = make_weights(size, device)
    parts = split(weights, count)
    if device.type == "cuda":
        peak = memory.measure_cuda(lambda: select_sharded(parts, k)[0], size)
    masks, exchange = select_sharded(parts, k)
    same = _same(masks, top_k(weights, k), count)
    del masks
    times: dict[bool, list[float]] = {True: [], False: []}
    with progress(title, 2 * (rounds + 1)) as begin:
        for round_ in range(rounds + 1):
            for sharded in (round_ % 2 == 0, round_ % 2 == 1):
                begin(f"{'sharded' if sharded else 'whole'}, round {round_}")
                _wait(device)
                start = time.perf_counter()
                made = select_sharded(parts, k) if sharded else top_k(weights, k)
                _wait(device)
                if round_:
                    times[sharded].append(time.perf_counter() - start)
                del made
    ties = round_size(min(size, _TIES))
    _, tied = select_sharded(split(make_weights(ties, device, equal=True), count), kept_of(ties))
    each = peak["peak_bytes"] / size if peak.get("peak_bytes") is not None else None
    return {
        "benchmark": "sharded", "size": size, "layers": LAYERS, "sparsity": SPARSITY, "k": k, "shards": count,
        **peak,
        "peak_bytes_per_weight": each,
        "peak_beyond_mask": None if each is None else each - 1,
        "same_masks": same,
        "all_reduces": exchange.sizes,
        "all_reduces_all_equal": tied.sizes,
        "seconds": times[True],
        "unsharded_seconds": times[False],
        "median": statistics.median(times[True]),
        "ratio": statistics.median(one / other for one, other in zip(times[True], times[False], strict=True)),
        "n": rounds,
    }  # fmt: skip


def _same(masks: Masks, whole: Masks, count: int) -> bool:
    return all(
        torch.equal(torch.cat([masks[f"{name}/{index}"] for index in range(count)]), mask)
        for name, mask in whole.items()
    )


def _measure_peak(size: int, count: int) -> Row:
    command = [sys.executable, "-m", "benchmarks.sharded", "--peak", str(size), str(count)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _peak(size: int, count: int) -> Row:
    cpu, small = torch.device("cpu"), round_size(1 << 17)
    select_sharded(split(make_weights(small, cpu), count), kept_of(small))  # threads' pools must not count
    parts = split(make_weights(size, cpu), count)
    return memory.measure_call(lambda: select_sharded(parts, kept_of(size))[0])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=[10**8], help="numbers of weights: 25M 1e9")
    parser.add_argument("--shards", nargs="+", type=int, default=[2, 8, 64])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="CPU threads of torch, where the machine is shared")
    parser.add_argument("--results", type=Path, default=RESULTS / "sharded.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    parser.add_argument("--peak", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rounds < 1 or min(options.shards) < 2:
        parser.error("expected 1 round or more, and 2 shards or more")
    return options


if __name__ == "__main__":
    run(main)
