"""The face of the runtime: a session that loads a model once and runs it from any thread."""

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from acdc_runtime import _core
from acdc_runtime.batches import cut, separable
from acdc_runtime.choices import Choice, Choices
from acdc_runtime.errors import ModelError
from acdc_runtime.graph import Declared
from acdc_runtime.load import load_graph
from acdc_runtime.operators import LOWERINGS, refuse_unknown
from acdc_runtime.plan import Plan, Planner
from acdc_runtime.simplify import simplify

_TYPES = {"f": "tensor(float)", "i": "tensor(int64)", "u": "tensor(int64)", "b": "tensor(bool)"}
_PLANS = 8  # input sizes a session keeps programs for
_TOGETHER = 4  # images of a batch that run together where maps are small: four of 7 x 7 fill two tiles
_PART_BYTES = 3 << 20  # memory of one part of a batch, of which there is at least one image: it stays in the caches


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a model, as onnxruntime describes it. A size that may vary is its name."""

    name: str
    shape: list[int | str] | None
    type: str


class InferenceSession:
    """Runs one ONNX model on the CPU.

    `threads` is how many threads share the work of a run (all cores this process may use, by default). `kernels` is
    "avx512", "avx2" or "generic"; the best the processor has, by default. `choices` names a file that keeps which
    kernel was fastest for each layer: the next session starts from it without measuring. `tune=False` measures
    nothing and takes the likeliest kernel.

    A model is planned for the input sizes of a run and keeps that plan. Sizes that the model fixes are planned at once,
    with 1 where a size may vary.
    """

    def __init__(
        self,
        model: str | os.PathLike | bytes,
        threads: int | None = None,
        *,
        kernels: str = "",
        choices: str | os.PathLike | None = None,
        tune: bool = True,
    ):
        available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = available if threads is None else threads
        if not isinstance(threads, int) or not 1 <= threads <= 1024:
            raise ValueError(f"threads must be between 1 and 1024, not {threads!r}")
        if kernels and kernels not in _core.available_kernels():
            raise ValueError(
                f"kernels {kernels!r} cannot run here; available are {', '.join(_core.available_kernels())}"
            )
        graph = load_graph(model)
        refuse_unknown(graph)
        self._output_names = list(graph.outputs)
        self._graph = simplify(graph)
        self._pool = _core.Pool(threads)
        self.kernels = kernels or _core.best_kernels()
        self._choices = Choices(self._pool, self.kernels, choices, tune)
        # Parts of a batch run on one thread each.
        self._alone = _core.Pool(1) if threads > 1 else self._pool
        self._separable = separable(self._graph)
        self._plans: dict[tuple, Plan] = {}
        self._lock = threading.Lock()
        shapes = {i.name: tuple(s if isinstance(s, int) else 1 for s in i.shape or []) for i in self._graph.inputs}
        first = self._plan(shapes)
        self._output_info = [
            TensorInfo(name, self._symbolic(list(shape)), "tensor(int64)" if integer else "tensor(float)")
            for name, (shape, integer, _) in zip(self._output_names, first.outputs, strict=True)
        ]
        self._image_bytes = max(1, first.arena)
        self._cut = cut(self._graph, self._shapes) if self._separable else None

    def get_inputs(self) -> list[TensorInfo]:
        return [TensorInfo(i.name, i.shape, _TYPES[i.dtype.kind]) for i in self._graph.inputs]

    def get_outputs(self) -> list[TensorInfo]:
        return list(self._output_info)

    def run(self, output_names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[np.ndarray]:
        """Return the outputs named, or all, for arrays by input name."""
        names = self._output_names if output_names is None else list(output_names)
        for name in names:
            if name not in self._output_names:
                raise ModelError(
                    f"output {name!r}", f"the model has no such output; it has {', '.join(self._output_names)}"
                )
        arrays = self._checked(inputs)
        results = self._in_parts(arrays)
        if results is None:
            results = self._execute(self._plan({n: a.shape for n, a in arrays.items()}), arrays, profile=False)
        by_name = dict(zip(self._output_names, results, strict=True))
        return [by_name[n] for n in names]

    def profile(self, inputs: Mapping[str, Any] | None = None, runs: int = 5) -> list[dict[str, Any]]:
        """Time every step over some runs: node, kernel, milliseconds, useful GFLOP/s and density of its weights.

        Without inputs, zeros of the model's sizes are used.
        """
        if inputs is None:
            inputs = {
                i.name: np.zeros([s if isinstance(s, int) else 1 for s in i.shape or []], i.dtype)
                for i in self._graph.inputs
            }
        arrays = self._checked(inputs)
        plan = self._plan({n: a.shape for n, a in arrays.items()})
        for _ in range(max(1, runs)):
            self._execute(plan, arrays, profile=True)
        rows = []
        for name, kind, seconds, flops, density in plan.program.timings():
            rate = flops / seconds / 1e9 if seconds > 0 else 0.0
            rows.append({"node": name, "kernel": kind, "ms": seconds * 1e3, "gflops": rate, "density": density})
        return rows

    def choices(self) -> dict[str, str]:
        """Return the kernel chosen for each layer: method and columns multiplied at a time."""
        return {k: str(c) for k, c in sorted(self._choices.found.items())}

    @property
    def threads(self) -> int:
        return self._pool.threads

    def memory(self) -> int:
        """Return the bytes planned for one run at the sizes last planned, without the weights."""
        return next(reversed(self._plans.values())).program.memory

    # ---- inside

    def _symbolic(self, shape: list[int]) -> list[int | str]:
        first = self._graph.inputs[0].shape if self._graph.inputs else None
        if first and shape and isinstance(first[0], str) and shape[0] == 1:
            return [first[0], *shape[1:]]
        return list(shape)

    def _plan(self, shapes: dict[str, tuple[int, ...]], alone: bool = False, part: str = "") -> Plan:
        """Return the program for these sizes, on all threads or on one; of the whole model, its head or its tail."""
        key = (alone, part, *sorted(shapes.items()))
        pool = self._alone if alone else self._pool
        with self._lock:
            if key in self._plans:
                return self._plans[key]
            self._choices.pool, self._choices.spent = pool, 0.0
            graph = self._graph if not part else getattr(self._cut, part)
            planner = Planner(graph, LOWERINGS, self._choices.weights)
            planner.walk(shapes, tiled=part == "tail")
            plan = planner.finish(pool, self.kernels, tiled=part == "head")
            if not self._plans:
                self._shapes = {name: tensor.shape for name, tensor in planner.values.items()}
            self._choices.save()
            while len(self._plans) >= _PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
            return plan

    def _checked(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        declared = {i.name: i for i in self._graph.inputs}
        for name in inputs:
            if name not in declared:
                raise ModelError(
                    f"input {name!r}", f"the model has no such input; it has {', '.join(map(repr, declared))}"
                )
        arrays = {}
        for name, info in declared.items():
            if name not in inputs:
                raise ModelError(f"input {name!r}", "it is missing")
            arrays[name] = _fitting(info, inputs[name])
        bound: dict[str, tuple[int, str]] = {}
        for name, info in declared.items():
            for size, wanted in zip(arrays[name].shape, info.shape or [], strict=True):
                if isinstance(wanted, str) and wanted != "?" and bound.setdefault(wanted, (size, name))[0] != size:
                    raise ModelError(
                        f"input {name!r}",
                        f"its size {wanted!r} is {size}, but {bound[wanted][0]} in {bound[wanted][1]!r}",
                    )
        return arrays

    def _in_parts(self, arrays: dict[str, np.ndarray]) -> list[np.ndarray] | None:
        """Run a batch part by part, or return None where it is to run as a whole."""
        batch = next(iter(arrays.values())).shape[0] if self._separable else 0
        if batch < 2 or batch < self.threads:
            return None
        size = max(1, min(_PART_BYTES // self._image_bytes, batch // self.threads))
        if self._cut is not None and size == 1 and batch // self.threads >= _TOGETHER:
            ways = {
                Choice("images", 1): partial(self._in_parts_of, arrays, 1, self._run_whole),
                Choice("images", _TOGETHER): partial(self._in_parts_of, arrays, _TOGETHER, self._run_cut),
            }
            return self._choices.fastest_way(f"batch {batch} threads{self.threads}", ways)
        return self._in_parts_of(arrays, size, self._run_whole)

    def _in_parts_of(
        self, arrays: dict[str, np.ndarray], size: int, way: Callable[..., list[np.ndarray]]
    ) -> list[np.ndarray]:
        batch = next(iter(arrays.values())).shape[0]
        results: list[list[np.ndarray]] = []
        for first, count, images in ((0, batch // size, size), (batch // size * size, 1, batch % size)):
            if not count * images:
                continue
            pieces = {n: a[first : first + count * images] for n, a in arrays.items()}
            run = way if images == size else self._run_whole
            try:
                results.append(run(pieces, count, images))
            except IndexError as error:
                raise ModelError("inputs", str(error)) from None
        return results[0] if len(results) == 1 else [np.concatenate(r) for r in zip(*results, strict=True)]

    def _run_whole(self, arrays: dict[str, np.ndarray], count: int, images: int) -> list[np.ndarray]:
        """Run `count` parts of so many images, each on one thread."""
        plan = self._plan({n: (images, *a.shape[1:]) for n, a in arrays.items()}, alone=True)
        outputs, wanted = _results(plan, count * images)
        feed = [(plan.inputs[n].offset, a) for n, a in arrays.items() if a.size]
        plan.program.run_parts(self._pool, count, feed, wanted)
        return outputs

    def _run_cut(self, arrays: dict[str, np.ndarray], count: int, images: int) -> list[np.ndarray]:
        """Run the parts' heads image by image, and their tails on all images of a part."""
        assert self._cut is not None
        head = self._plan({n: (1, *a.shape[1:]) for n, a in arrays.items()}, alone=True, part="head")
        tail = self._plan({self._cut.name: (images, *self._cut.shape[1:])}, alone=True, part="tail")
        outputs, wanted = _results(tail, count * images)
        feed = [(head.inputs[n].offset, a) for n, a in arrays.items() if a.size]
        (_, _, between), into = head.outputs[0], tail.inputs[self._cut.name]
        head.program.run_cut(
            tail.program, self._pool, count, images, feed, between.offset, into.offset, between.floats, wanted
        )
        return outputs

    def _execute(self, plan: Plan, arrays: dict[str, np.ndarray], profile: bool) -> list[np.ndarray]:
        outputs, wanted = _results(plan)
        feed = [(plan.inputs[n].offset, a) for n, a in arrays.items() if a.size]
        try:
            plan.program.run(feed, wanted, profile)
        except IndexError as error:
            raise ModelError("inputs", str(error)) from None
        return outputs


def _results(plan: Plan, images: int | None = None) -> tuple[list[np.ndarray], list[tuple[int, np.ndarray]]]:
    """Return arrays for a plan's outputs, of so many images in all, and those to fill with where they lie."""
    outputs = [
        np.empty(shape if images is None else (images, *shape[1:]), np.int64 if integer else np.float32)
        for shape, integer, _ in plan.outputs
    ]
    return outputs, [(b.offset, o) for o, (_, _, b) in zip(outputs, plan.outputs, strict=True) if o.size]


def _fitting(info: Declared, value: Any) -> np.ndarray:
    where = f"input {info.name!r}"
    array = np.asarray(value)
    if array.dtype != info.dtype:
        raise ModelError(where, f"its element type is {array.dtype}; the model takes {info.dtype}")
    shape = info.shape or []
    fits = array.ndim == len(shape) and all(
        isinstance(w, str) or w == s for s, w in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise ModelError(where, f"its shape is {list(array.shape)}; the model takes {shape}")
    if array.size > 1 << 40:
        raise ModelError(where, "it has more than 2^40 values")
    kind = np.float32 if info.dtype.kind == "f" else np.int64
    # The core takes arrays that it could write to; one that is read-only, as np.frombuffer gives, is copied.
    return np.require(array, kind, ["C", "W"]).reshape(array.shape)
