"""A model as plain Python data, after the file format and before any shape is known."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from acdc_runtime.errors import ModelError


@dataclass
class Node:
    op: str
    name: str
    inputs: list[str]  # "" where an optional input is left out
    outputs: list[str]
    attributes: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"node {self.name!r} ({self.op})"

    def refuse(self, problem: str) -> ModelError:
        return ModelError(str(self), problem)

    def integer(self, name: str, default: int) -> int:
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise self.refuse(f"attribute {name} is not an integer")
        return value

    def number(self, name: str, default: float) -> float:
        value = self.attributes.get(name, default)
        if not isinstance(value, int | float):
            raise self.refuse(f"attribute {name} is not a number")
        return float(value)

    def text(self, name: str, default: str) -> str:
        value = self.attributes.get(name, default)
        if not isinstance(value, str):
            raise self.refuse(f"attribute {name} is not a text")
        return value

    def integers(self, name: str, default: list[int] | None = None) -> list[int] | None:
        value = self.attributes.get(name, default)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, int) for v in value):
            raise self.refuse(f"attribute {name} is not a list of integers")
        return value

    def input(self, index: int) -> str:
        """Return the name of an input, "" when it is left out."""
        return self.inputs[index] if index < len(self.inputs) else ""


@dataclass
class Declared:
    """A graph input or output: its name, its element type, its sizes (a text where any size is allowed)."""

    name: str
    dtype: np.dtype
    shape: list[int | str] | None


@dataclass
class Graph:
    nodes: list[Node]
    inputs: list[Declared]
    outputs: list[str]
    constants: dict[str, np.ndarray]
    opset: int

    def users(self) -> dict[str, list[Node]]:
        """Return the nodes that read each tensor; a graph output counts as one more user, a node named `output`."""
        users: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in node.inputs:
                users.setdefault(name, []).append(node)
        for name in self.outputs:
            users.setdefault(name, []).append(Node("output", "output", [name], []))
        return users
