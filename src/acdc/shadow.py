"""Weights that are trained densely while the model computes with a view of them: masked, thresholded, quantised.

Some methods update every weight by gradients taken at a sparse point (DPF, Top-KAST, SR-STE, STR). Between steps the
parameters hold the view, so whoever evaluates or saves the model sees what the method would deploy; the dense weights
lie here. They stand in the parameters only while the optimizer's step runs:

    before the step    the method turns gradients at the view into gradients of the dense weights;  θ ← dense
    after it           the method may take back part of the step;  dense ← θ;  θ ← view(dense)

A step that a gradient scaler skips touches neither.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from acdc.sparsity.layers import Weight

View = Callable[[str, Tensor], Tensor]
"""From a layer's name and its dense weights to what the model computes with."""

Settle = Callable[[str, Tensor, Tensor], None]
"""A layer's name, its dense weights before the optimizer's step and after it; these may be changed in place."""


class Shadow:
    """The dense weights behind a model's parameters. They change in place: CUDA graphs read the same memory on."""

    def __init__(self, weights: Mapping[str, Weight], view: View) -> None:
        self._weights, self._view = weights, view
        self.dense: dict[str, Tensor] = {name: w.param.detach().clone() for name, w in weights.items()}
        self.shown = False  # whether the parameters hold the view

    @torch.no_grad()
    def show(self) -> None:
        """Put the view into the parameters. The dense weights stay."""
        for name, weight in self._weights.items():
            weight.param.copy_(self._view(name, self.dense[name]))
        self.shown = True

    @torch.no_grad()
    def put_dense(self) -> None:
        """Put the dense weights into the parameters, for the optimizer."""
        if self.shown:
            for name, weight in self._weights.items():
                weight.param.copy_(self.dense[name])
            self.shown = False

    @torch.no_grad()
    def take_dense(self, settle: Settle) -> None:
        """Keep what the optimizer made of them, and show the view of that."""
        for name, weight in self._weights.items():
            settle(name, self.dense[name], weight.param)
            self.dense[name].copy_(weight.param)
        self.show()

    def state_dict(self) -> dict[str, Any]:
        return {name: value.detach().cpu() for name, value in self.dense.items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self.dense.items():
            value.copy_(state[name])
        self.shown = True
