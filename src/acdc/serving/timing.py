"""Times engines on one file, turn by turn, so that whatever slows the machine for a while slows all of them."""

import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acdc.errors import ArgumentError
from acdc.serving.engines import Engine, EngineMissing, Run

BASE = "onnxruntime"  # ratios are to this engine where it runs
_APART = 1e-3  # outputs that differ by more of the largest value are marked

_PAUSE = 0.2  # seconds between turns: ONNX Runtime's threads spin for a while after a run, on the next engine's cores
_RUNS = 3  # of which a turn's time is the median, after one that is not timed


@dataclass
class Timing:
    """One engine at one batch size and thread count: every round's milliseconds, and its output beside the base's."""

    engine: str
    batch: int
    threads: int
    ms: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)  # the base's time over this engine's, round by round
    difference: float | None = None  # largest difference from the base's output over its largest value
    load_seconds: float = 0.0
    problem: str = ""

    def quartiles(self, values: Sequence[float]) -> tuple[float, float, float]:
        if len(values) < 2:
            return values[0], values[0], values[0]
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return low, middle, high

    @property
    def agrees(self) -> bool:
        return self.difference is None or self.difference <= _APART

    def record(self) -> dict[str, Any]:
        """Return this as one JSON line's content."""
        row: dict[str, Any] = {"engine": self.engine, "batch": self.batch, "threads": self.threads}
        if self.problem:
            return {**row, "problem": self.problem}
        low, middle, high = self.quartiles(self.ms)
        row |= {"n": len(self.ms), "ms": middle, "ms_q1": low, "ms_q3": high, "ms_min": min(self.ms)}
        row |= {"load_seconds": self.load_seconds}
        if self.ratios:
            low, middle, high = self.quartiles(self.ratios)
            row |= {"ratio": middle, "ratio_q1": low, "ratio_q3": high, "difference": self.difference}
        return row


def input_shape(path: Path) -> tuple[str, list[int | str]]:
    """Return the name and sizes of a model's one input."""
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    stored = {t.name for t in graph.initializer}
    inputs = [i for i in graph.input if i.name not in stored]
    if len(inputs) != 1 or inputs[0].type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise ArgumentError("MODEL", received=str(path), allowed="expected a model with one float32 input")
    dims = inputs[0].type.tensor_type.shape.dim
    return inputs[0].name, [d.dim_value or d.dim_param or "?" for d in dims]


def example(shape: Sequence[int | str], batch: int) -> np.ndarray:
    """Return a random batch; the first size that varies is the batch's."""
    if any(isinstance(s, str) for s in shape[1:]):
        raise ArgumentError("MODEL", received=list(shape), allowed="expected only the first size of its input to vary")
    if not isinstance(shape[0], str) and shape[0] != batch:
        raise ArgumentError("--batch", received=batch, allowed=f"this model takes batches of {shape[0]} alone")
    return np.random.default_rng(0).standard_normal((batch, *map(int, shape[1:])), dtype=np.float32)


def compare_engines(
    path: Path, engines: Sequence[Engine], batches: Sequence[int], threads: Sequence[int], rounds: int
) -> Iterator[list[Timing]]:
    """Time every engine at each batch size and thread count; yield one list for each of these."""
    _, shape = input_shape(path)
    for count in threads:
        for batch in batches:
            yield _one_table(path, engines, example(shape, batch), count, rounds)


def _one_table(path: Path, engines: Sequence[Engine], x: np.ndarray, threads: int, rounds: int) -> list[Timing]:
    opened: list[tuple[Timing, Run]] = []
    outputs: dict[str, np.ndarray] = {}
    table = []
    for engine in engines:
        timing = Timing(engine.name, len(x), threads)
        table.append(timing)
        start = time.perf_counter()
        try:
            run = engine.open(path, threads, x)
            outputs[engine.name] = run(x)  # plans, compiles, fills caches
        except EngineMissing as error:
            timing.problem = str(error)
            continue
        except Exception as error:  # another project's engine: whatever it raises is its answer
            timing.problem = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            continue
        timing.load_seconds = time.perf_counter() - start
        opened.append((timing, run))
    order = random.Random(0)
    for _ in range(rounds):
        order.shuffle(opened)
        for timing, run in opened:
            time.sleep(_PAUSE)
            timing.ms.append(_one_turn(run, x))
    base = next((t for t, _ in opened if t.engine == BASE), None)
    for timing, _ in opened:
        if base is not None:
            timing.ratios = [b / t for b, t in zip(base.ms, timing.ms, strict=True)]
            largest = max(float(np.abs(outputs[BASE]).max()), 1e-30)
            timing.difference = float(np.abs(outputs[timing.engine] - outputs[BASE]).max()) / largest
    return table


def _one_turn(run: Run, x: np.ndarray) -> float:
    """Return the milliseconds of a run, once the engine's own threads and caches are warm."""
    run(x)
    ms = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        run(x)
        ms.append((time.perf_counter() - start) * 1e3)
    return statistics.median(ms)


def machine() -> dict[str, Any]:
    """Return what a measurement needs beside it: processor, cores, load before it began."""
    name = "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), name)
    except OSError:
        pass
    return {"cpu": name, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
