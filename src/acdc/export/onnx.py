"""Writes ONNX files, and checks each against torch by running it in ONNX Runtime before it is put in place."""

import contextlib
import copy
import io
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from acdc.errors import ArgumentError
from acdc.export.trace import Example, as_inputs, check_module, evaluating, first_cause, outputs_of, quiet
from acdc.formatting import si
from acdc.io import check_target, write_files

_INSTALL = "pip install 'acdc-torch[onnx]'"
_MOST_BYTES = 2_000_000_000  # of one protobuf message
_TOLERANCE = 1e-3  # of the largest output: far above rounding, far below a wrong graph


@dataclass(frozen=True)
class OnnxFile:
    """Describes a file that was written: its size, and how far ONNX Runtime's outputs are from torch's."""

    path: Path
    size: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    samples: int  # that were compared
    largest_difference: float | None  # None if onnxruntime is not installed
    largest_output: float | None = None

    def __str__(self) -> str:
        text = f"{self.path}: {si(self.size, 'B')}"
        if self.largest_difference is None:
            return f"{text}; not checked, as onnxruntime is not installed ({_INSTALL})"
        return (
            f"{text}; ONNX Runtime differs from torch by {self.largest_difference:.2g} at most; the largest output is "
            f"{self.largest_output:.3g} ({self.samples:,} {'sample' if self.samples == 1 else 'samples'})"
        )


def to_onnx(model: nn.Module, example: Example, path: str | Path, *, fold_batch_norm: bool = True) -> OnnxFile:
    """Write the model in evaluation mode, for batches of any size, and compare the file's outputs with torch's.

    `example` is a batch of real inputs, or a tuple of the arguments of the model's forward; the check also runs on it.
    The first axis of each input is the batch. `fold_batch_norm` puts batch norms that follow a convolution into its
    weights. A file whose outputs differ by more than rounding is not written.
    """
    _require("onnx", "onnxscript")
    path, plain = Path(path), copy.deepcopy(check_module(model)).cpu()
    check_target(path)
    other = {p.dtype for p in plain.parameters() if p.is_floating_point()} - {torch.float32, torch.float64}
    if other:
        received = ", ".join(sorted(map(str, other)))
        allowed = "expected float32 weights, which every runtime takes"
        raise ArgumentError("model", received, allowed, "write model.float()")
    inputs = tuple(part.cpu() if isinstance(part, Tensor) else part for part in as_inputs(example))
    if not inputs or not all(isinstance(part, Tensor) and part.ndim and len(part) for part in inputs):
        raise ArgumentError("example", allowed="expected tensors with a batch along their first axis")
    names = ("input",) if len(inputs) == 1 else tuple(f"input_{place}" for place in range(len(inputs)))
    try:
        expected = outputs_of(plain, inputs)
    except Exception as error:  # raised by the model's own code
        allowed = f"{type(plain).__name__} does not run on it ({first_cause(error)})"
        raise ArgumentError("example", allowed=allowed, instead="give inputs that the model accepts") from error
    outputs = ("output",) if len(expected) == 1 else tuple(f"output_{place}" for place in range(len(expected)))
    size = sum(value.numel() * value.element_size() for value in plain.state_dict().values())
    if size > _MOST_BYTES:
        raise ArgumentError("model", si(size, "B"), "an ONNX file holds 2 GB at most")
    program = _translate(plain, inputs, names, outputs, fold_batch_norm)
    found: list[OnnxFile] = []

    def write(temporary: Path) -> None:
        program.save(temporary, external_data=False)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        found.append(_checked(temporary, path, names, outputs, inputs, expected))

    write_files({path: write})
    return found[0]


def _require(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ModuleNotFoundError(f"ONNX files need {' and '.join(missing)}, which {verb} not installed: {_INSTALL}")


def _translate(
    model: nn.Module, inputs: tuple[Tensor, ...], names: tuple[str, ...], outputs: tuple[str, ...], fold: bool
) -> Any:
    # torch.export would treat a batch of one as a constant.
    traced = tuple(torch.cat([part, part]) if len(part) == 1 else part for part in inputs)
    batch = torch.export.Dim("batch")
    try:
        with evaluating(model), quiet(), _silent():
            program = torch.onnx.export(
                model,
                traced,
                dynamo=True,
                verbose=False,
                optimize=fold,
                input_names=names,
                output_names=outputs,
                dynamic_shapes=tuple({0: batch} for _ in inputs),
            )
            assert program is not None, "torch.onnx.export returns the program if it writes no file"
            if not fold:
                _tidy(program)
            _forget_source(program)
    except Exception as error:  # raised by the model's own code, or by torch for code it cannot follow
        raise ArgumentError(
            "model",
            allowed=f"torch.onnx cannot translate {type(model).__name__} ({first_cause(error)})",
            instead="write a forward pass without branches on the data, for batches of any size",
        ) from error
    return program


def _tidy(program: Any) -> None:
    """Remove nodes that only the translation needed; every batch norm stays a separate node."""
    optimizer = import_module("onnxscript.optimizer")
    optimizer.fold_constants(program.model)
    optimizer.remove_unused_nodes(program.model)


def _forget_source(program: Any) -> None:
    """Remove the source locations of nodes: they reveal the user's code and are a quarter of a small file."""
    graph = program.model.graph
    for part in (program.model, graph, *graph.initializers.values(), *graph.inputs, *graph.outputs):
        part.metadata_props.clear()
    for node in graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()


def _checked(
    temporary: Path,
    path: Path,
    names: tuple[str, ...],
    outputs: tuple[str, ...],
    inputs: tuple[Tensor, ...],
    expected: list[Tensor],
) -> OnnxFile:
    """Compare ONNX Runtime's outputs with torch's, and raise a RuntimeError if they differ."""
    described = OnnxFile(path, temporary.stat().st_size, names, outputs, len(inputs[0]), None)
    if find_spec("onnxruntime") is None:
        return described
    onnxruntime = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = torch.get_num_threads()
    feed = {name: part.detach().numpy() for name, part in zip(names, inputs, strict=True)}
    try:
        session = onnxruntime.InferenceSession(temporary.read_bytes(), options, providers=["CPUExecutionProvider"])
        got = [torch.as_tensor(one) for one in session.run(None, feed)]
    except Exception as error:  # ONNX Runtime's errors share no base class
        hint = "; write model.float()" if any(one.dtype == torch.float64 for one in expected) else ""
        raise RuntimeError(
            f"{path} was not written: ONNX Runtime cannot run it ({first_cause(error)}){hint}"
        ) from error
    largest = max((float(one.abs().max()) for one in expected if one.numel()), default=0.0)
    difference = 0.0
    for one, other in zip(expected, got, strict=True):
        if one.shape != other.shape:
            sizes = f"{tuple(other.shape)}, torch {tuple(one.shape)}"
            raise RuntimeError(f"{path} was not written: ONNX Runtime's output is {sizes}")
        if one.numel():
            difference = max(difference, float((one.double() - other.double()).abs().nan_to_num(torch.inf).max()))
    if difference > _TOLERANCE * max(1.0, largest):
        raise RuntimeError(
            f"{path} was not written: ONNX Runtime's outputs differ from torch's by {difference:.3g}; the largest "
            f"is {largest:.3g}"
        )
    return replace(described, largest_difference=difference, largest_output=largest)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silence torch's progress lines and log: problems are raised as errors."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
