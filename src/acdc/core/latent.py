"""Weights that are trained densely while the model computes with a view of them: masked, thresholded, quantised.

Some methods update every weight by gradients taken at a sparse point (DPF, Top-KAST, SR-STE, STR). Between steps the
parameters hold the view, so whoever evaluates or saves the model sees what the method would deploy; the dense weights
lie here. They stand in the parameters only while the optimizer's step runs:

    before the step    the method turns gradients at the view into gradients of the dense weights;  θ ← dense
    after it           the method may take back part of the step;  dense ← θ;  θ ← view(dense)

A step that a gradient scaler skips touches neither.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from acdc.core.bundle import Bundle, bundles
from acdc.core.result import to_cpu
from acdc.sparsity.layers import Weight

View = Callable[[Bundle, Tensor, Tensor], None]
"""From layers' dense weights to what the model computes with, written into the second tensor."""

PullBack = Callable[[Bundle, Tensor, Tensor], None]
"""Makes of layers' gradients at the view, in place, those of the dense weights, which come second."""

Settle = Callable[[Bundle, Tensor, Tensor], None]
"""Layers' dense weights before the optimizer's step and after it; the latter may be changed in place."""


class Shadow:
    """The dense weights behind a model's parameters. They change in place, and are worked on in bundles."""

    @torch.no_grad()
    def __init__(
        self,
        weights: Sequence[Weight],
        optimizer: Optimizer,
        *,
        view: View,
        pull_back: PullBack | None,
        settle: Settle,
    ) -> None:
        self._view, self._pull_back, self._settle = view, pull_back, settle
        self._bundles = bundles(weights, optimizer)
        self.dense: dict[str, Tensor] = {weight.name: weight.param.detach().clone() for weight in weights}
        self._flat = {bundle: bundle.join(self.dense) for bundle in self._bundles}
        self._room: dict[tuple, Tensor] = {}
        self.shown = False  # whether the parameters hold the view

    @torch.no_grad()
    def show(self) -> None:
        """Put the view into the parameters. The dense weights stay."""
        for bundle, dense in self._flat.items():
            self._show(bundle, dense)
        self.shown = True

    def _show(self, bundle: Bundle, dense: Tensor) -> None:
        view, own = self._room_for(bundle, bundle.params)
        self._view(bundle, dense, view)
        if not own:
            _copy(bundle.split_once(view), bundle.params)

    @torch.no_grad()
    def put_dense(self) -> None:
        """Put the dense weights into the parameters, for the optimizer."""
        if self.shown:
            for bundle, dense in self._flat.items():
                _copy(bundle.split_once(dense), bundle.params)
            self.shown = False

    @torch.no_grad()
    def pull_back(self, scale: Tensor | None) -> None:
        """Turn the gradients there are into the dense weights'; `scale` is what they will be divided by."""
        if self._pull_back is None:
            return
        for whole in self._bundles:
            for bundle in whole.with_gradients():
                grads = [p.grad for p in bundle.params if p.grad is not None]
                grad, own = self._take(bundle, grads)
                if scale is not None:
                    grad.div_(scale)
                self._pull_back(bundle, grad, bundle.join(self.dense))
                if scale is not None:
                    grad.mul_(scale)
                if not own:
                    _copy(bundle.split_once(grad), grads)

    @torch.no_grad()
    def take_dense(self) -> None:
        """Keep what the optimizer made of them, and show the view of that."""
        for bundle, dense in self._flat.items():
            after, _ = self._take(bundle, bundle.params)
            self._settle(bundle, dense, after)
            dense.copy_(after)
            self._show(bundle, dense)
        self.shown = True

    @torch.no_grad()
    def held(self, bundle: Bundle) -> Tensor:
        """What the parameters hold, as one tensor, to be read until the next call; it may be their own memory."""
        return self._take(bundle, bundle.params, "held")[0]

    def _take(self, bundle: Bundle, tensors: list[Any], use: str = "view") -> tuple[Tensor, bool]:
        """Layers' tensors as one, with what is in them; and whether it is their own memory, as in `_room_for`."""
        one, own = self._room_for(bundle, tensors, use)
        if not own:
            _copy(tensors, bundle.split_once(one))
        return one, own

    def _room_for(self, bundle: Bundle, tensors: list[Any], use: str = "view") -> tuple[Tensor, bool]:
        """One tensor for layers' tensors, and whether it is their own memory: where they lie together what is written
        there needs no copying back. Else it is scratch, and does."""
        one = bundle.as_one(tensors)
        if one is not None and one.dtype == bundle.params[0].dtype:
            return one, True
        return self._scratch(bundle, use), False

    def _scratch(self, bundle: Bundle, use: str = "view") -> Tensor:
        """Room for one bundle: the same for all of a kind, so that it stays in a CPU's cache."""
        like = bundle.params[0]
        key = (use, like.device, like.dtype)
        if key not in self._room:
            self._room[key] = like.new_empty(max(b.size for b in self._bundles), requires_grad=False)
        return self._room[key][: bundle.size]

    def state_dict(self) -> dict[str, Any]:
        return to_cpu(self.dense)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self.dense.items():
            value.copy_(state[name])
        self.shown = True


def _copy(sources: list[Any], targets: list[Any]) -> None:
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
