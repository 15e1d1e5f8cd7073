"""Turns a graph at known input sizes into a program: shapes, layouts, fusion, and memory with lifetimes."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acdc_runtime import _core
from acdc_runtime.errors import ModelError
from acdc_runtime.folding import FOLDABLE, evaluate
from acdc_runtime.graph import Graph, Node

TILE = 112  # pixels of a tile, as in src/tile.h
_APART = 4  # steps between two uses of memory by different tensors, where threads share the work


@dataclass(eq=False)
class Buffer:
    """Memory for one tensor in one layout: in the arena from its first step to its last, or a constant."""

    floats: int
    what: str
    array: np.ndarray | None = None
    first: int = -1
    last: int = -1
    offset: int = -1


@dataclass
class Tensor:
    """A value of the graph: its sizes, and an array where it is known, or where it lies."""

    shape: tuple[int, ...]
    integer: bool = False
    array: np.ndarray | None = None
    plain: Buffer | None = None
    tiled: Buffer | None = None

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass
class Step:
    method: str
    name: str
    arguments: list[Any]


@dataclass
class Plan:
    """A program with where its inputs and outputs lie."""

    program: Any
    inputs: dict[str, Buffer]
    outputs: list[tuple[tuple[int, ...], bool, Buffer]]
    arena: int
    weights: dict[str, Any] = field(default_factory=dict)


Lower = Callable[["Planner", Node], None]


class Planner:
    def __init__(self, graph: Graph, lowerings: dict[str, Lower], choose: Callable[..., Any]):
        self.graph = graph
        self.lowerings = lowerings
        self.choose = choose
        self.values: dict[str, Tensor] = {}
        self.sources: dict[str, Buffer] = {}  # where inputs are written
        self.steps: list[Step] = []
        self.done: set[int] = set()
        self.users = graph.users()
        self.node: Node = graph.nodes[0] if graph.nodes else Node("", "", [], [""])

    # ---- what lowerings use

    def tensor(self, name: str) -> Tensor:
        if name not in self.values:
            if name in self.graph.constants:
                array = self.graph.constants[name]
                self.values[name] = Tensor(array.shape, array.dtype.kind != "f", array)
            else:
                raise self.node.refuse(f"it needs an input that is left out ({name!r})")
        return self.values[name]

    def numbers(self, name: str) -> Tensor:
        found = self.tensor(name)
        if found.integer:
            raise self.node.refuse(f"{name!r} holds integers where real numbers are needed")
        return found

    def constant(self, name: str) -> np.ndarray | None:
        """Return the value of an input, None when it is left out; refused when it is computed from the inputs."""
        if not name:
            return None
        found = self.tensor(name)
        if found.array is None:
            raise self.node.refuse(f"{name!r} must be a constant")
        return found.array

    def needed(self, name: str) -> np.ndarray:
        """Return the value of an input that must be there and constant."""
        found = self.constant(name)
        if found is None:
            raise self.node.refuse("an input that it needs is left out")
        return found

    def scalar(self, name: str) -> float:
        """Return the number that a constant of one element holds."""
        found = self.needed(name)
        if found.size != 1:
            raise self.node.refuse(f"{name!r} has {found.size} elements where one is needed")
        return float(found.reshape(()))

    def plain(self, tensor: Tensor) -> Buffer:
        if tensor.plain is None:
            if tensor.array is not None:
                flat = np.ascontiguousarray(tensor.array)
                if tensor.integer:
                    flat = flat.astype(np.int64)
                flat = flat.reshape(-1).view(np.float32) if flat.size else np.zeros(0, np.float32)
                tensor.plain = Buffer(flat.size, self.node.name, array=flat)
            else:
                assert tensor.tiled is not None
                tensor.plain = self.new(tensor.size)
                n, c, h, w = tensor.shape
                self.add("to_plain", n, c, h * w, tensor.tiled, tensor.plain)
        return tensor.plain

    def tiled(self, tensor: Tensor) -> Buffer:
        if tensor.tiled is None:
            tensor.tiled = self.new(tiled_floats(tensor.shape))
            n, c, h, w = tensor.shape
            self.add("to_tiles", n, c, h * w, self.plain(tensor), tensor.tiled)
        return tensor.tiled

    def new(self, floats: int) -> Buffer:
        if floats > 1 << 40:
            raise self.node.refuse(f"a tensor of {floats} values; at most 2^40 are supported")
        return Buffer(floats, str(self.node))

    def add(self, method: str, *arguments: Any) -> None:
        self.steps.append(Step(method, self.node.name, list(arguments)))

    def define(self, name: str, tensor: Tensor) -> None:
        self.values[name] = tensor

    def only_user(self, name: str) -> Node | None:
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and users[0].op != "output" else None

    # ---- the walk

    def walk(self, inputs: dict[str, tuple[int, ...]], tiled: bool = False) -> None:
        """Lower every node; with `tiled`, inputs are maps that come in tiles."""
        for declared in self.graph.inputs:
            integer = declared.dtype.kind != "f"
            tensor = Tensor(inputs[declared.name], integer)
            floats = tiled_floats(tensor.shape) if tiled else tensor.size * (2 if integer else 1)
            buffer = Buffer(floats, f"input {declared.name!r}", first=0)
            tensor.plain, tensor.tiled = (None, buffer) if tiled else (buffer, None)
            self.sources[declared.name] = buffer
            self.values[declared.name] = tensor
        for node in self.graph.nodes:
            if id(node) in self.done:
                continue
            self.node = node
            known = [self.values.get(i) or (self.tensor(i) if i in self.graph.constants else None) for i in node.inputs]
            if node.op in ("Shape", "Size"):
                self.define(node.outputs[0], _shape_of(node, self.tensor(node.input(0)).shape))
            elif node.op in FOLDABLE and all(
                not i or (k and k.array is not None) for i, k in zip(node.inputs, known, strict=True)
            ):
                array = evaluate(node, [k.array if k else None for k in known])
                self.define(node.outputs[0], Tensor(array.shape, array.dtype.kind != "f", array))
            elif node.op in self.lowerings:
                try:
                    self.lowerings[node.op](self, node)
                except ModelError:
                    raise
                except (ValueError, IndexError, TypeError, OverflowError, ZeroDivisionError) as error:
                    raise node.refuse(f"it does not fit its inputs: {error}") from error
            else:
                raise node.refuse("it is only supported where all its inputs are constants")

    def finish(self, pool: Any, kernels: str, tiled: bool = False) -> Plan:
        """Return the program; with `tiled`, its outputs are maps that are left in tiles."""
        outputs = []
        for name in self.graph.outputs:
            tensor = self.tensor(name)
            outputs.append((tensor.shape, tensor.integer, self.tiled(tensor) if tiled else self.plain(tensor)))
        arena = self._place(outputs, _APART if pool.threads > 1 else 0)
        program = _core.Program(pool, kernels, arena)
        references: dict[int, int] = {}

        def reference(buffer: Buffer) -> int:
            if buffer.array is None:
                return buffer.offset
            if id(buffer) not in references:
                references[id(buffer)] = program.constant(buffer.array)
            return references[id(buffer)]

        for step in self.steps:
            resolved = [
                reference(a) if isinstance(a, Buffer)
                else [reference(b) for b in a] if isinstance(a, list) and a and isinstance(a[0], Buffer)
                else a
                for a in step.arguments
            ]  # fmt: skip
            try:
                getattr(program, step.method)(step.name, *resolved)
            except (ValueError, TypeError, OverflowError, RuntimeError, MemoryError) as error:
                raise ModelError(f"node {step.name!r}", str(error)) from None
        for _, _, buffer in outputs:
            if buffer.array is not None:
                buffer.offset = reference(buffer)
        return Plan(program, self.sources, outputs, arena)

    def _place(self, outputs: list, apart: int) -> int:
        """Give every buffer an offset such that buffers in use at one time do not overlap.

        Nor do those in use within `apart` steps of each other, unless they lie in the very same place: each thread
        would write where another has just written, and wait for the other's cache.
        """
        buffers: dict[int, Buffer] = {}
        for buffer in self.sources.values():
            buffer.first, buffer.last = 0, 0
            buffers[id(buffer)] = buffer
        for i, step in enumerate(self.steps):
            for argument in step.arguments:
                for buffer in argument if isinstance(argument, list) else [argument]:
                    if isinstance(buffer, Buffer) and buffer.array is None:
                        buffers[id(buffer)] = buffer
                        if buffer.first < 0:
                            buffer.first = i
                        buffer.last = i
        for _, _, buffer in outputs:
            if buffer.array is None:
                buffers[id(buffer)] = buffer
                buffer.last = len(self.steps)
        placed: list[Buffer] = []
        end = 0
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for buffer in sorted(buffers.values(), key=lambda b: -b.floats):
            # 128 bytes apart, and no two large ones a multiple of 4096 bytes: they would share cache sets
            size = -(-buffer.floats * 4 // 64) * 64 + 128
            near = [p for p in placed if p.last >= buffer.first - apart and p.first <= buffer.last + apart]
            ends = [p.offset + -(-p.floats * 4 // 64) * 64 + 128 for p in near]
            same = [p.offset for p in reversed(placed) if apart and p.floats == buffer.floats]
            offset = 0
            for offset in [*same, *sorted({0, *ends})]:
                if not any(
                    offset < end and p.offset < offset + size and not _may_share(buffer, offset, p)
                    for p, end in zip(near, ends, strict=True)
                ):
                    break
            buffer.offset = offset
            placed.append(buffer)
            end = max(end, offset + size)
            if end > limit:
                raise ModelError(
                    buffer.what, f"it needs {end / 2**30:.1f} GiB of memory; this machine has {limit / 2**30:.1f}"
                )
        return end + 64


def _may_share(buffer: Buffer, offset: int, other: Buffer) -> bool:
    """True if a buffer may lie at `offset`, in the very place of another that is not in use at the same time."""
    apart = other.last < buffer.first or other.first > buffer.last
    return apart and other.floats == buffer.floats and other.offset == offset


def tiled_floats(shape: tuple[int, ...]) -> int:
    n, c, h, w = shape
    return -(-n * h * w // TILE) * TILE * c


def _shape_of(node: Node, shape: tuple[int, ...]) -> Tensor:
    if node.op == "Size":
        array = np.array(math.prod(shape), np.int64)
    else:
        start, end = node.integer("start", 0), node.integer("end", len(shape))
        array = np.array(shape[start:end], np.int64)
    return Tensor(array.shape, True, array)
