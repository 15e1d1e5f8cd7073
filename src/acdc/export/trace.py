"""Traces a model into torch's own operations, with the names of its parameters and buffers.

torch.export records one node for each convolution, batch norm, addition or reshape, whether the code calls a layer or a
function, and keeps in-place operations.
"""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from acdc.core.hooks import plain_model
from acdc.errors import ArgumentError, ArgumentTypeError

Example = Tensor | tuple[Any, ...]


@dataclass(frozen=True)
class Trace:
    """Holds the operations of a forward pass in order, and the graph's inputs that are parameters or buffers."""

    nodes: tuple[Node, ...]
    names: Mapping[Node, str]  # of parameters and buffers; tied ones have one name

    def name(self, value: Any) -> str | None:
        """Return the name of an argument that is a parameter or buffer, else None."""
        return self.names.get(value) if isinstance(value, Node) else None


def trace(model: nn.Module, example: Example) -> Trace:
    """Return the operations of a forward pass on `example` in evaluation mode, or raise an ArgumentError."""
    inputs = as_inputs(example)
    try:
        with evaluating(model), quiet(), torch.enable_grad():  # without gradients torch fuses transformer layers
            program = torch.export.export(model, inputs)
    except Exception as error:  # raised by the model's own code, or by torch for code it cannot follow
        raise ArgumentError(
            "model",
            allowed=f"torch.export cannot trace {type(model).__name__} on this example ({first_cause(error)})",
            instead="give an example that the model accepts, and a forward pass without branches on the data",
        ) from error
    signature = program.graph_signature
    known = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    first: dict[Any, str] = {}
    names = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in known:
            name = known[node.name]
            names[node] = first.setdefault(id(_tensor(model, name)), name)
    return Trace(tuple(program.graph.nodes), names)


def arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of an operation by name, with defaults for those not given."""
    target: Any = node.target
    schema = target._schema.arguments
    given = dict(zip((argument.name for argument in schema), node.args, strict=False))
    defaults = {argument.name: argument.default_value for argument in schema if argument.has_default_value()}
    return {**defaults, **given, **node.kwargs}


def shape_of(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def as_inputs(example: Example) -> tuple[Any, ...]:
    """Return the positional arguments of a forward pass."""
    if not isinstance(example, Tensor | tuple):
        allowed = "expected a batch of inputs: a tensor, or a tuple of the arguments of the model's forward"
        raise ArgumentTypeError("example", example, allowed, "write for example torch.zeros(1, 3, 32, 32)")
    return example if isinstance(example, tuple) else (example,)


def check_module(model: Any) -> nn.Module:
    """Return the model, without wrappers, or raise an ArgumentTypeError for what is none."""
    plain = plain_model(model)
    if not isinstance(plain, nn.Module):
        allowed = f"expected the network itself, an nn.Module, not {type(model).__name__}"
        raise ArgumentTypeError("model", allowed=allowed, instead="load weights first: model.load_state_dict(state)")
    return plain


def first_cause(error: BaseException) -> str:
    """Return the first line of the error that started a chain of them: the last ones only say where it surfaced."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def outputs_of(model: nn.Module, example: Example) -> list[Tensor]:
    """Return all tensors that the model returns for `example` in evaluation mode, in a fixed order."""
    with evaluating(model), torch.no_grad():
        given = model(*as_inputs(example))
    return [part for part in tree_leaves(given) if isinstance(part, Tensor)]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, then restore the mode of every module."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings inside other libraries, which the user can do nothing about.

    torch also logs each step of tracing, for its own tools, if any handler listens to all loggers.
    """
    log = logging.getLogger("torch.__trace")
    before, log.disabled = log.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(owner), attribute)
