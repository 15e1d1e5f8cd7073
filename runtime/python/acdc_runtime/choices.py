"""Chooses a kernel and its block size for each layer by timing the candidates, and keeps what it found."""

import json
import math
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from acdc_runtime import _core
from acdc_runtime.errors import ModelError

METHODS = ("dense", "sparse", "block4")
LAYOUTS = ("pixels", "tokens", "vectors")  # what weights are laid out for: maps, rows, a few rows
_BLOCKS = (48, 64, 96, 128, 192, 256, 384, 512, 1024)
_PIXELS = 4 * 3136  # a layer is timed on at most so many output pixels
_TOKENS = 4 * 112  # and a linear layer on at most so many rows
_LARGEST = 1 << 26  # numbers in a layer's input and output; larger ones are not timed
_VERSION = 1
_EACH = 5e-3  # seconds of timing for one candidate
_BUDGET = 4.0  # seconds of timing for one plan; layers left over take the likeliest kernel


@dataclass(frozen=True)
class Choice:
    method: str
    block: int  # columns of the weight matrix that are multiplied at a time

    def __str__(self) -> str:
        return f"{self.method}/{self.block}"


class Choices:
    """The kernels of a session's layers. With `path`, choices are read from that file and new ones written to it."""

    def __init__(self, pool: Any, kernels: str, path: str | os.PathLike | None, tune: bool):
        self.pool, self.kernels, self.tune = pool, kernels, tune
        self.path = Path(path) if path is not None else None
        self.found: dict[str, Choice] = {}
        self.fresh = False
        self.spent = 0.0
        self._weights: dict[tuple[str, Choice, str], Any] = {}
        if self.path is not None and self.path.exists():
            self.found = _read(self.path)

    def weights(self, name: str, matrix: np.ndarray, bias: np.ndarray | None, use: Any) -> Any:
        """Return a layer's weights packed for the kernel chosen; `use` is a geometry or a number of tokens."""
        taps = 1 if isinstance(use, int) else use[6] * use[7]
        if bias is not None:
            bias = np.ascontiguousarray(bias, dtype=np.float32).reshape(-1)
        key = self.key(name, matrix, use)
        choice = self.found.get(key)
        if choice is None or not _can_run(choice, rows=matrix.shape[0]):
            options = candidates(matrix, taps, self.kernels)
            choice = options[0]
            if self.tune and len(options) > 1 and self.spent < _BUDGET and _floats(matrix, use) < _LARGEST:
                start = time.perf_counter()
                choice = self._fastest(name, matrix, bias, use, taps, options)
                self.spent += time.perf_counter() - start
            self.found[key] = choice
            self.fresh = True
        packed = self._packed(name, matrix, bias, use, taps, choice)
        in_use = self._in_use(name)
        for other in [k for k in self._weights if k[0] == name and k[1] not in in_use]:
            del self._weights[other]
        return packed

    def key(self, name: str, matrix: np.ndarray, use: Any) -> str:
        where = f"tokens{use}" if isinstance(use, int) else "x".join(str(g) for g in use)
        return f"{name} {matrix.shape[0]}x{matrix.shape[1]} {where} {self.kernels} threads{self.pool.threads}"

    def fastest_way(self, key: str, ways: dict[Choice, Callable[[], Any]]) -> Any:
        """Return what the fastest of some ways to the same result gives: timed once, then kept; else the first."""
        key = f"{key} {self.kernels}"
        choice = self.found.get(key)
        if choice not in ways:
            best = dict.fromkeys(ways, math.inf)
            for _ in range(3 if self.tune else 0):
                for way, run in ways.items():
                    start = time.perf_counter()
                    run()
                    best[way] = min(best[way], time.perf_counter() - start)
            choice = min(ways, key=best.__getitem__)
            self.found[key] = choice
            self.fresh = True
            self.save()
        return ways[choice]()

    def save(self) -> None:
        """Write the choices where `path` said, whole or not at all."""
        if self.path is None or not self.fresh:
            return
        content = {
            "version": _VERSION,
            "choices": {k: [c.method, c.block] for k, c in sorted(self.found.items())},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=self.path.name)
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, self.path)
        self.fresh = False

    def _in_use(self, name: str) -> set[Choice]:
        return {c for k, c in self.found.items() if k.startswith(name + " ")}

    def _packed(self, name: str, matrix: np.ndarray, bias: Any, use: Any, taps: int, choice: Choice) -> Any:
        key = (name, choice, _layout(use, choice))
        if key not in self._weights:
            method, layout = METHODS.index(choice.method), LAYOUTS.index(key[2])
            self._weights[key] = _core.Weights(matrix, bias, taps, method, choice.block, layout)
        return self._weights[key]

    def _fastest(self, name: str, matrix: np.ndarray, bias: Any, use: Any, taps: int, options: list[Choice]) -> Choice:
        """Time the candidates in turns and return the one with the fastest run."""
        programs = [self._program(name, matrix, bias, use, taps, o) for o in options]
        best = [math.inf] * len(options)
        for program in programs:
            program.run([], [])
        stop = time.perf_counter() + _EACH * len(options)
        for _ in range(12):
            for i, program in enumerate(programs):
                start = time.perf_counter()
                program.run([], [])
                best[i] = min(best[i], time.perf_counter() - start)
            if time.perf_counter() > stop:
                break
        return options[best.index(min(best))]

    def _program(self, name: str, matrix: np.ndarray, bias: Any, use: Any, taps: int, choice: Choice) -> Any:
        """Return a program of one layer, on zeros."""
        weights = self._packed(name, matrix, bias, use, taps, choice)
        infinite = (-math.inf, math.inf, 0, 0.0, 0.0)
        if isinstance(use, int):
            tokens = min(use, _TOKENS)
            space = -(-tokens * matrix.shape[1] // 16) * 64
            program = _core.Program(self.pool, self.kernels, space + -(-tokens * matrix.shape[0] // 16) * 64 + 64)
            program.linear(name, weights, tokens, 0, space, 0, False, *infinite)
            return program
        n, c, h, w, oh, ow = use[:6]
        n = max(1, min(n, _PIXELS // max(1, oh * ow)))
        space = -(-n * h * w // 112) * 112 * c * 4
        space = -(-space // 64) * 64
        end = space + -(-n * oh * ow // 112) * 112 * matrix.shape[0] * 4 + 64
        program = _core.Program(self.pool, self.kernels, end)
        program.convolution(name, [n, *use[1:]], weights, 0, space, 0, False, *infinite)
        return program


def _floats(matrix: np.ndarray, use: Any) -> int:
    """Return how many numbers a layer reads and writes when it is timed."""
    if isinstance(use, int):
        return min(use, _TOKENS) * sum(matrix.shape)
    n, c, h, w, oh, ow = use[:6]
    return max(1, min(n, _PIXELS // max(1, oh * ow))) * ((h * w + 112) * c + (oh * ow + 112) * matrix.shape[0])


def _layout(use: Any, choice: Choice) -> str:
    if not isinstance(use, int):
        return "pixels"
    return "vectors" if use <= _core.FEW_TOKENS and choice.method != "dense" else "tokens"


def _can_run(choice: Choice, rows: int) -> bool:
    """Return whether a choice, read from a file perhaps, is one that could have been made for so many rows."""
    return choice.method in METHODS and choice.block in _BLOCKS and (choice.method != "block4" or rows % 4 == 0)


def candidates(matrix: np.ndarray, taps: int, kernels: str) -> list[Choice]:
    """Return the kernels worth timing for a weight matrix, likeliest first."""
    rows, columns = matrix.shape
    # AVX-512 kernels read whole rows of a packed block, from L2; the others three vectors of each, which stay in L1.
    dense = [Choice("dense", 512 if kernels == "avx512" else 256)]
    density = np.count_nonzero(matrix) / matrix.size
    grouped = None
    if rows % 4 == 0 and density <= 0.6:
        grouped = (matrix.reshape(rows // 4, 4, columns) != 0).any(axis=1).mean()
    if density > 0.6:
        return dense
    if grouped is not None and grouped < 1.5 * density:
        # In place, a block is also how far ahead inputs are fetched; packing has fetched them.
        sizes = (96, 256) if taps == 1 else (256, 1024)
        return [Choice("block4", s) for i, s in enumerate(sizes) if i == 0 or sizes[i - 1] < columns]
    if density > 0.3:
        return [Choice("sparse", 64), Choice("sparse", 96), *dense]
    sizes = (64, 96, 128) if density > 0.12 else (96, 128, 256) if density > 0.04 else (128, 256, 512)
    kept = [s for i, s in enumerate(sizes) if i == 0 or sizes[i - 1] < columns]
    return [Choice("sparse", s) for s in kept]


def _read(path: Path) -> dict[str, Choice]:
    try:
        content = json.loads(path.read_text())
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}")
        found = {str(k): Choice(str(m), int(b)) for k, (m, b) in content["choices"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            str(path), f"it does not hold a session's choices ({error}); delete it to choose anew"
        ) from None
    return found
