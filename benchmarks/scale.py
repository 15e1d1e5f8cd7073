"""A cost model of one compression at sizes that were not run: the tables of docs/scale.md, from measured constants.

Measured: the selection's time on one GPU (results/select.jsonl), as a fixed part and one for each weight, and what
sharding adds to its work (results/sharded.jsonl). Assumed, and marked so on the page: the network.
`python -m benchmarks.scale` prints the block.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from acdc.formatting import si
from benchmarks.record import RESULTS, Row, read
from benchmarks.rivals import OURS

LATENCY = 20e-6  # seconds of a hop between GPUs of two nodes: an assumption
BANDWIDTH = 25e9  # bytes per second between them: an assumption, half of 400 Gbit/s
_DIGITS = (11, 11, 9)  # bits of float32's magnitude in each histogram on a GPU (sparsity/topk.py)
_COUNT = 8  # bytes


@dataclass(frozen=True)
class Model:
    """A decoder with matrices only: seven in each block, as in Llama's."""

    name: str
    weights: float
    blocks: int

    @property
    def layers(self) -> int:
        return 7 * self.blocks


MODELS = (Model("7B", 7e9, 32), Model("70B", 70e9, 80))
GPUS = (64, 1024)


@dataclass(frozen=True)
class Cost:
    """The cost of one compression, in each process."""

    all_reduces: tuple[int, ...]  # bytes of each, if every layer shares out ties
    select: float  # seconds of work
    exchange: float  # seconds of the network
    gathered: float  # bytes that gathering the weights would move

    @property
    def seconds(self) -> float:
        return self.select + self.exchange


@dataclass(frozen=True)
class Speed:
    """The time of a selection on one GPU: `fixed` seconds, and `each` for a weight."""

    fixed: float
    each: float

    @classmethod
    def fit(cls, points: Sequence[tuple[int, float]]) -> "Speed":
        """Return the line through measured (weights, seconds), by least squares; one point has no fixed part."""
        if len(points) == 1:
            ((size, seconds),) = points
            return cls(0.0, seconds / size)
        line = statistics.linear_regression(*zip(*points, strict=True))
        return cls(max(0.0, line.intercept), line.slope)


def cost(model: Model, gpus: int, *, speed: Speed, added: float) -> Cost:
    """Return the cost at this speed of a GPU, with the factor that sharding adds to the work."""
    histograms = tuple(_COUNT << bits for bits in _DIGITS)
    ties = (2 * _COUNT * model.layers, _COUNT * model.layers * gpus)
    hops = 2 * math.ceil(math.log2(gpus))
    exchange = sum(hops * LATENCY + 2 * size / BANDWIDTH for size in (*histograms, *ties))
    select = added * (speed.fixed + speed.each * model.weights / gpus)
    return Cost((*histograms, *ties), select, exchange, 4 * model.weights)


def block(results: Path) -> str:
    """Return the tables of docs/scale.md, or nothing before there are measurements."""
    ours = [row for row in read(results / "select.jsonl") if row["device"] == "cuda" and row["method"] == OURS]
    measured = {row["size"]: row for row in sorted(ours, key=lambda row: row["run"]) if "median" in row}
    shard = _largest(read(results / "sharded.jsonl"))
    if not measured or shard is None:
        return ""
    points = [(size, row["median"]) for size, row in sorted(measured.items())]
    gpu, speed, added = measured[max(measured)], Speed.fit(points), max(1.0, shard["ratio"])
    cases = [(model, gpus, cost(model, gpus, speed=speed, added=added)) for model in MODELS for gpus in GPUS]
    return "\n".join(
        [
            "| one compression, in each process | " + " | ".join(f"{m.name}, {g:,} GPUs" for m, g, _ in cases) + " |",
            "|---|" + "--:|" * len(cases),
            _line("local weights", [si(m.weights / g) for m, g, _ in cases]),
            _line("selection", [_time(c.select) for *_, c in cases]),
            _line("all-reduces", [str(len(c.all_reduces)) for *_, c in cases]),
            _line("their bytes, all", [si(sum(c.all_reduces), "B") for *_, c in cases]),
            _line("the largest, at worst", [si(max(c.all_reduces), "B") for *_, c in cases]),
            _line("network (assumed)", [_time(c.exchange) for *_, c in cases]),
            _line("**time**", [f"**{_time(c.seconds)}**" for *_, c in cases]),
            _line("moved if weights were gathered", [si(c.gathered, "B") for *_, c in cases]),
            _line("mask, in compressed phases", [si(m.weights / g, "B") for m, g, _ in cases]),
            _line("dense twin with Adam's state, on the host", [si(12 * m.weights / g, "B") for m, g, _ in cases]),
            "",
            "| checkpoint, all processes | " + " | ".join(f"{m.name}" for m in MODELS) + " |",
            "|---|" + "--:|" * len(MODELS),
            _line("weights and Adam's state, float32", [si(12 * m.weights, "B") for m in MODELS]),
            _line("masks, sharded (`torch.distributed.checkpoint`)", [si(m.weights, "B") for m in MODELS]),
            _line("masks, gathered (1 bit a weight)", [si(m.weights / 8, "B") for m in MODELS]),
            _line("dense twin, from its phase on", [si(12 * m.weights, "B") for m in MODELS]),
            "",
            f"<sub>`python -m benchmarks.scale`. Measured on one {gpu['device_name']}: "
            f"{', '.join(f'{si(size)} float32 weights in {_time(seconds)}' for size, seconds in points)} "
            f"(n = {gpu['n']}, torch {gpu['torch']}, [raw](../results/select.jsonl)), so {_time(speed.fixed)} and "
            f"{1 / speed.each / 1e9:.1f} G weights a second; {shard['shards']} shards of {shard['size']:,} weights "
            f"take {shard['ratio']:.2f} of the unsharded work on {shard['device_name']}, n = {shard['n']}, counted as "
            f"{added:.2f} ([raw](../results/sharded.jsonl)). Assumed: {LATENCY * 1e6:.0f} µs a hop, "
            f"2 log2(GPUs) hops an all-reduce, {BANDWIDTH / 1e9:.0f} GB/s.</sub>",
            "",
        ]
    )


def _largest(rows: Sequence[Row]) -> Row | None:
    """Return the newest row of the largest size, in the largest number of shards."""
    return max(rows, key=lambda row: (row["size"], row["shards"], row["run"]), default=None)


def _line(name: str, cells: Sequence[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.2g} ms"


def main(arguments: list[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__).parse_args(arguments)
    sys.stdout.write(block(RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
