"""The example server for tests: its modules, small models to serve, and processes that are waited for."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "serving"
TOKEN = "token of the tests"


def module(name: str) -> Any:
    """Import a module of the example as the example itself does."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


def linear(path: Path, weight: np.ndarray, name: str = "input", outputs: int | None = None) -> Path:
    """Write y = x @ weight, for batches of any size."""
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", len(weight)]),
        helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", outputs or weight.shape[1]]),
    ]
    node = helper.make_node("MatMul", [name, "weight"], ["output"], name="product")
    graph = helper.make_graph(
        [node], "linear", ends[:1], ends[1:], [numpy_helper.from_array(weight.astype(np.float32), "weight")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


@contextmanager
def started(command: list[str], cwd: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server and wait until it says where it listens; yield the process and the URL."""
    process = subprocess.Popen(
        command, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        found = re.search(r"on (http://\S+)", first)
        assert found, first + process.communicate()[1]
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()
