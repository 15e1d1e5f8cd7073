"""Programs that run an ONNX file on a CPU, behind one call: acdc-runtime, ONNX Runtime, OpenVINO, torch, DeepSparse.

An engine is a function from a file, a number of threads and an example input to a function that runs a batch. One that
is not installed, or that cannot run the file, says so in an `EngineMissing`.

An engine whose packages do not fit beside ours can have an environment of its own: ACDC_DEEPSPARSE_PYTHON names its
python.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from acdc.errors import ArgumentError

Run = Callable[[np.ndarray], np.ndarray]
Open = Callable[[Path, int, np.ndarray], Run]


class EngineMissing(Exception):  # noqa: N818
    """An engine cannot run a file here; the text says why, and what to type where that helps."""


@dataclass(frozen=True)
class Engine:
    name: str
    needs: tuple[str, ...]  # packages, as they are imported
    install: str  # what to type to have it
    open: Open

    @property
    def python(self) -> str | None:
        """Return the interpreter of the engine's own environment, if a variable names one."""
        return os.environ.get(f"ACDC_{self.name.upper().replace('-', '_')}_PYTHON")

    @property
    def installed(self) -> bool:
        return self.python is not None or all(find_spec(package) is not None for package in self.needs)


def _acdc(path: Path, threads: int, example: np.ndarray, kernels: str = "") -> Run:
    from acdc_runtime import InferenceSession  # pyright: ignore[reportMissingImports]

    session = InferenceSession(path, threads=threads, kernels=kernels)
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})[0]


def _onnxruntime(path: Path, threads: int, example: np.ndarray) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: np.asarray(session.run(None, {name: x})[0])


def _openvino(path: Path, threads: int, example: np.ndarray) -> Run:
    import openvino  # pyright: ignore[reportMissingImports]

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    model = core.read_model(str(path))
    model.reshape({model.inputs[0]: list(example.shape)})
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    return lambda x: np.array(next(iter(request.infer([x]).values())))


def _deepsparse(path: Path, threads: int, example: np.ndarray) -> Run:
    os.environ.setdefault("NM_DISABLE_ANALYTICS", "1")
    import deepsparse  # pyright: ignore[reportMissingImports]

    engine = deepsparse.Engine(model=str(path), batch_size=len(example), num_cores=threads)
    # It knows float32 by the identity of its type, which an array that came from another process does not have.
    return lambda x: engine.run([x.view(np.float32)])[0]


def _torch(path: Path, threads: int, example: np.ndarray, compiled: bool = False) -> Run:
    import torch

    from acdc.serving.torch_graph import TorchGraph, UnsupportedNode

    try:
        module: Any = TorchGraph(path).eval()
    except UnsupportedNode as error:
        raise EngineMissing(str(error)) from None
    module.to(memory_format=torch.channels_last)
    torch.set_num_threads(threads)
    if compiled:
        from torch._inductor import config  # the setting that folds weights into the compiled code

        config.freezing = True
        module = torch.compile(module)

    def run(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            tensor = torch.from_numpy(x)
            if tensor.ndim == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            return module(tensor).numpy()

    return run


_RUNTIME = ("acdc_runtime",), "pip install ./runtime"
_TORCH = ("torch", "onnx"), "pip install onnx"
_OWN_ENVIRONMENT = (
    "make an environment for it (python3.11 -m venv DIR), type DIR/bin/pip install deepsparse==1.8.0 'numpy<2', and "
    "set ACDC_DEEPSPARSE_PYTHON=DIR/bin/python"
)
ENGINES = {
    e.name: e
    for e in (
        Engine("acdc-runtime", *_RUNTIME, _acdc),
        Engine("acdc-runtime-avx2", *_RUNTIME, partial(_acdc, kernels="avx2")),
        Engine("onnxruntime", ("onnxruntime",), "pip install onnxruntime", _onnxruntime),
        Engine("openvino", ("openvino",), "pip install openvino", _openvino),
        Engine("torch", *_TORCH, _torch),
        Engine("torch-compile", *_TORCH, partial(_torch, compiled=True)),
        Engine("deepsparse", ("deepsparse",), _OWN_ENVIRONMENT, _deepsparse),
    )
}
DEFAULT = ("acdc-runtime", "onnxruntime", "openvino", "torch", "torch-compile", "deepsparse")


def pick(names: str | None) -> list[Engine]:
    """Return the engines named with commas between, or those of the default that are installed."""
    if names is None:
        return [ENGINES[n] for n in DEFAULT if ENGINES[n].installed]
    chosen = []
    for name in names.split(","):
        if name not in ENGINES:
            raise ArgumentError("--engines", received=name, allowed=f"expected some of {', '.join(ENGINES)}")
        if not ENGINES[name].installed:
            raise ArgumentError("--engines", received=name, allowed="not installed", instead=ENGINES[name].install)
        chosen.append(ENGINES[name])
    return chosen
