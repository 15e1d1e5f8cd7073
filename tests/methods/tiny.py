"""Networks small enough for a pencil: layers of given weights, trained by gradients that are written by hand."""

from typing import Any

import torch
from torch import Tensor, nn

import acdc
from acdc.core.method import Method


class Tiny:
    """Layers "0.weight", "1.weight", … of one row each. A step is θ ← θ − lr · gradient, with momentum if asked for."""

    def __init__(self, method: Method, *layers: list[float], lr: float = 1.0, momentum: float = 0.0) -> None:
        self.model = nn.Sequential(*(nn.Linear(len(row), 1, bias=False) for row in layers))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=momentum)
        self.set(*layers)
        self.sparsifier = acdc.attach(self.model, self.optimizer, method)

    @property
    def params(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    @torch.no_grad()
    def set(self, *layers: list[float]) -> None:
        for param, row in zip(self.params, layers, strict=True):
            param.copy_(torch.tensor([row]))

    def mask(self, *layers: str) -> None:
        """Masks by hand, in place of random ones: "1100" keeps the first two."""
        masks = {f"{i}.weight": torch.tensor([[c == "1" for c in row]]) for i, row in enumerate(layers)}
        self.sparsifier.context.set_masks(masks)

    def step(self, *gradients: list[float]) -> None:
        """One training step; a layer without a gradient gets zeros."""
        self.sparsifier.begin_step()
        for index, param in enumerate(self.params):
            row = gradients[index] if index < len(gradients) else [0.0] * param.numel()
            param.grad = torch.tensor([row], dtype=param.dtype)
        self.optimizer.step()

    def begin(self) -> None:
        """Begin the next step, to look at what that does, and do not take it yet."""
        self.sparsifier.begin_step()

    @property
    def weights(self) -> Any:
        """One list, or one for each of several layers."""
        return _rows([param.detach() for param in self.params])

    @property
    def momentum(self) -> Any:
        return _rows([self.optimizer.state[param]["momentum_buffer"] for param in self.params])

    @property
    def masks(self) -> Any:
        rows = ["".join("1" if kept else "0" for kept in row) for row in _each(self.sparsifier.masks.values())]
        return rows[0] if len(rows) == 1 else rows


def _each(tensors: Any) -> list[list]:
    return [tensor.flatten().tolist() for tensor in tensors]


def _rows(tensors: list[Tensor]) -> Any:
    rows = [[round(value, 6) for value in row] for row in _each(tensors)]
    return rows[0] if len(rows) == 1 else rows


def sparse_for(steps: int) -> acdc.Schedule:
    return acdc.Schedule.from_phases([("sparse", f"{steps}st")])
