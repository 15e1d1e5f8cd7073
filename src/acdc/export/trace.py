"""Traces a model into torch's own operations, with the names of its parameters and buffers.

torch.export keeps what the module's code did: one node for each convolution, batch norm, addition or reshape, whether
it was a layer or a function, and in-place operations as they were.
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

from acdc.errors import ArgumentError, ArgumentTypeError

Example = Tensor | tuple[Any, ...]


@dataclass(frozen=True)
class Trace:
    """The operations of a forward pass in order, and which inputs of the graph are parameters or buffers."""

    nodes: tuple[Node, ...]
    names: Mapping[Node, str]  # of parameters and buffers; tied ones have one name

    def name(self, value: Any) -> str | None:
        """Return the name of the parameter or buffer that an argument is, if it is one."""
        return self.names.get(value) if isinstance(value, Node) else None


def trace(model: nn.Module, example: Example) -> Trace:
    """Return the operations of a forward pass on `example`, in evaluation, or raise an ArgumentError."""
    inputs = as_inputs(example)
    try:
        with evaluating(model), quiet(), torch.enable_grad():  # without gradients torch fuses transformer layers
            program = torch.export.export(model, inputs)
    except Exception as error:  # whatever the model's own code raises, or torch of code it cannot follow
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ArgumentError(
            "model",
            allowed=f"torch.export cannot trace {type(model).__name__} on this example ({reason[:200]})",
            instead="give an example that the model takes, and a forward pass without branches on the data",
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
    """Return the arguments of an operation by name, with the defaults of those that were not given."""
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
        allowed = "expected a batch of inputs: a tensor, or a tuple of what the model's forward takes"
        raise ArgumentTypeError("example", example, allowed, "write for example torch.zeros(1, 3, 32, 32)")
    return example if isinstance(example, tuple) else (example,)


def outputs_of(model: nn.Module, example: Example) -> list[Tensor]:
    """Return all tensors that the model gives for `example` in evaluation, in a fixed order."""
    with evaluating(model), torch.no_grad():
        given = model(*as_inputs(example))
    return [part for part in tree_leaves(given) if isinstance(part, Tensor)]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation, and every module of it back as it was."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what other libraries warn their own callers of from the user, who cannot do anything about it.

    torch also logs each step of tracing, for its own tools, as soon as anyone listens to all logs.
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
