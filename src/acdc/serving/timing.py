"""Times engines on one file, turn by turn, so that whatever slows the machine for a while slows all of them."""

import os
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from acdc.errors import ArgumentError
from acdc.serving.engine_process import Worker, WorkerLost
from acdc.serving.engines import Engine

BASE = "onnxruntime"  # ratios are to this engine where it runs
_APART = 1e-3  # outputs that differ by more of the largest value are marked


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
    peak: int | None = None  # bytes its process held at most
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
        row |= {"load_seconds": self.load_seconds, "peak_bytes": self.peak}
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
    table = [Timing(engine.name, len(x), threads) for engine in engines]
    outputs: dict[str, np.ndarray] = {}
    with ExitStack() as processes:
        workers: dict[str, Worker] = {}
        for engine, timing in zip(engines, table, strict=True):  # one after the other: opening is timed, too
            try:
                worker = Worker(engine, path, threads, x)
                processes.callback(worker.end)
                opened = worker.open()
            except WorkerLost as lost:
                timing.problem = str(lost)
                continue
            workers[engine.name] = worker
            outputs[engine.name], timing.load_seconds = opened.output, opened.seconds
        order = random.Random(0)
        for _ in range(rounds):
            for timing in order.sample(table, len(table)):
                if timing.problem:
                    continue
                try:
                    turn = workers[timing.engine].turn()
                except WorkerLost as lost:
                    timing.problem = str(lost)
                    continue
                timing.ms.append(turn.ms)
                timing.peak = turn.peak
    _compare(table, outputs)
    return table


def _compare(table: list[Timing], outputs: dict[str, np.ndarray]) -> None:
    """Fill in the ratios and differences to the base, where it ran to the end."""
    base = next((t for t in table if t.engine == BASE and not t.problem), None)
    if base is None:
        return
    largest = max(float(np.abs(outputs[BASE]).max()), 1e-30)
    for timing in table:
        if timing.problem:
            continue
        output = outputs[timing.engine]
        if output.shape != outputs[BASE].shape:
            timing.problem = f"its output is of shape {list(output.shape)}, {BASE}'s {list(outputs[BASE].shape)}"
            continue
        timing.ratios = [b / t for b, t in zip(base.ms, timing.ms, strict=True)]
        timing.difference = float(np.abs(output - outputs[BASE]).max()) / largest


def machine() -> dict[str, Any]:
    """Return what a measurement needs beside it: processor, cores, load before it began."""
    name = "unknown"
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), name)
    except OSError:
        pass
    return {"cpu": name, "cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}
