"""Exact global top-k masks at 90 % sparsity: time and peak extra memory, ours against the ones people use.

The methods (rivals.py) take turns, every round in another order, on the same weights in one process. Memory is
measured apart from time (memory.py).
"""

import argparse
import gc
import random
import statistics
import time
from pathlib import Path

import torch

from benchmarks import memory
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment
from benchmarks.rivals import (
    LAYERS,
    METHODS,
    SPARSITY,
    Weights,
    count_kept,
    kept_of,
    make_weights,
    methods_for,
    round_size,
)
from benchmarks.tables import select_table

_TIES = 1_000_000
_SUFFIX = {"K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    device = torch.device(options.device)
    if options.threads:
        torch.set_num_threads(options.threads)
    shared = environment(device, options.commit)
    names = options.methods or methods_for(device)
    say(f"select: {shared['device_name']}, {shared['cores']} cores, torch {shared['torch']}, load {shared['load']}")
    for size in options.sizes:
        rows = [{**shared, **row} for row in measure_size(size, names, device, options.rounds)]
        append(options.results, rows)
        print_table(*select_table(rows))
    say(f"written to {options.results}")
    return 0


def measure_size(size: int, names: list[str], device: torch.device, rounds: int) -> list[Row]:
    title, k = f"{size:,} weights", kept_of(size)
    rows = {name: _row(name, size, k) for name in names}
    with progress(f"{title}, memory", len(names)) as begin:
        for name in names:
            begin(name)
            row = rows[name]
            if reason := memory.why_not(name, size, device):
                row["skipped"] = reason
            elif device.type == "cpu":
                row |= memory.measure(name, size)
            if "skipped" in row:
                say(f"{name} at {title}: skipped, {row['skipped']}")

    weights = make_weights(size, device)
    if device.type == "cuda":
        for name in [name for name in names if "skipped" not in rows[name]]:
            try:
                rows[name] |= memory.measure_cuda(METHODS[name](weights, k), size)
            except RuntimeError as error:  # out of memory, or a size the method cannot index
                rows[name]["skipped"] = f"failed: {str(error).splitlines()[0]}"
                say(f"{name} at {title}: {rows[name]['skipped']}")
            torch.cuda.empty_cache()
    measured = [name for name in names if "skipped" not in rows[name]]
    ties = round_size(min(size, _TIES))
    equal = make_weights(ties, device, equal=True)
    for name in measured:
        kept = count_kept(METHODS[name](equal, kept_of(ties))())
        rows[name]["ties"] = {"size": ties, "k": kept_of(ties), "kept": kept}

    times = time_in_turns(title, measured, weights, k, rounds, device)
    for name in measured:
        row = rows[name]
        row |= {"seconds": times[name], "median": statistics.median(times[name]), "n": rounds}
        if row["peak_bytes"] is not None:
            each = row["peak_bytes"] / size
            row |= {"peak_bytes_per_weight": each, "peak_beyond_mask": each - 1}
    return list(rows.values())


def time_in_turns(
    title: str, names: list[str], weights: Weights, k: int, rounds: int, device: torch.device
) -> dict[str, list[float]]:
    """Measure the seconds of each method in each round, after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    with progress(f"{title}, time", (rounds + 1) * len(names)) as begin:
        for round_ in range(rounds + 1):
            for name in order.sample(names, len(names)):
                begin(f"{name}, round {round_}" if round_ else f"{name}, warm-up")
                select = METHODS[name](weights, k)
                gc.collect()
                _wait(device)
                start = time.perf_counter()
                masks = select()
                _wait(device)
                seconds = time.perf_counter() - start
                if round_:
                    times[name].append(seconds)
                del masks, select
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _row(name: str, size: int, k: int) -> Row:
    return {"benchmark": "select", "size": size, "layers": LAYERS, "sparsity": SPARSITY, "k": k, "method": name}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.select", description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=parse_size, help="numbers of weights: 25M 200M, on a GPU also 1e9")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), metavar="NAME", help=", ".join(METHODS))
    parser.add_argument("--threads", type=int, help="CPU threads of torch, where the machine is shared")
    parser.add_argument("--results", type=Path, default=RESULTS / "select.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected 1 or more")
    default = [25_000_000, 200_000_000] + ([10**9] if options.device == "cuda" else [])
    options.sizes = [round_size(size) for size in options.sizes or default]
    return options


def parse_size(text: str) -> int:
    try:
        size = int(float(text.rstrip("KMGB")) * _SUFFIX.get(text[-1], 1))
    except (ValueError, IndexError):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of weights such as 25M, 1e9 or 100000") from None
    return size


if __name__ == "__main__":
    run(main)
