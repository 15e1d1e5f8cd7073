"""Latent weights, trained densely while the model computes with a masked, thresholded or rounded version of them.

Some methods update every weight with gradients taken at a sparse point (DPF, Top-KAST, SR-STE, STR). Between steps the
parameters hold the effective weights, so whoever evaluates or saves the model sees what the method would deploy; the
latent weights are stored here. They are in the parameters only while the optimizer's step runs:

    before the step    the method turns gradients at the effective weights into those of the latent ones;  θ ← latent
    after it           the method may undo part of the step;  latent ← θ;  θ ← effective(latent)

A step that a gradient scaler skips changes neither.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from acdc.core.result import to_cpu
from acdc.core.state import State, Weights
from acdc.sparsity.layers import Weight

_CPU_SIZE, _CPU_PIECE, _SIZE = 1 << 18, 1 << 17, 1 << 26  # elements


class Bundle:
    """A group of layers whose weights lie one after another in one tensor, so that one operation handles all of them.

    Launching an operation costs a GPU more than the work of a small layer, so there all layers of one device, type and
    optimizer group form one bundle. On a CPU a bundle should fit in the cache, so bundles are small, and a large layer
    is a bundle of its own. Weights are in the memory order of each parameter.
    """

    def __init__(self, weights: Sequence[Weight], group: int) -> None:
        self.weights, self.group = tuple(weights), group
        self.names = tuple(weight.name for weight in weights)
        self.params = [weight.param for weight in weights]
        self.sizes = [param.numel() for param in self.params]
        self.size = sum(self.sizes)
        self._strides = [torch.empty_like(param, device="meta").stride() for param in self.params]
        self._starts = [sum(self.sizes[:index]) for index in range(len(self.sizes))]
        self._views: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def new(self, *, dtype: torch.dtype | None = None) -> Tensor:
        """Return an uninitialised tensor for all layers."""
        return torch.empty(self.size, dtype=dtype or self.params[0].dtype, device=self.params[0].device)

    def split(self, flat: Tensor) -> list[Tensor]:
        """Return views of the layers' parts, in the shapes and layouts of their parameters."""
        layouts = zip(self.params, self._strides, self._starts, strict=True)
        first = flat.storage_offset()
        return [flat.as_strided(param.shape, stride, first + start) for param, stride, start in layouts]

    def split_once(self, flat: Tensor) -> list[Tensor]:
        """Split a tensor whose memory does not move: the views are remembered if there are several."""
        if len(self.params) == 1:  # this may be the parameter's own memory, which must not be kept alive here
            return self.split(flat)
        if flat.data_ptr() not in self._views:
            self._views[flat.data_ptr()] = flat, self.split(flat)
        return self._views[flat.data_ptr()][1]

    def as_one(self, parts: list[Tensor]) -> Tensor | None:
        """Return the layers' tensors as one without a copy, or None unless they are adjacent in memory."""
        return parts[0].detach().as_strided((self.size,), (1,)) if self._together(parts) else None

    @torch.no_grad()
    def join(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the layers' tensors, by name, as one. Those that are apart are first moved together."""
        parts = [tensors[name] for name in self.names]
        if (together := self.as_one(parts)) is not None:
            return together
        flat = self.new(dtype=parts[0].dtype)
        views = self.split(flat)
        torch._foreach_copy_(views, parts)  # pyright: ignore[reportPrivateImportUsage]
        tensors.update(zip(self.names, views, strict=True))
        return flat

    def _together(self, parts: list[Tensor]) -> bool:
        first, width = parts[0].data_ptr(), parts[0].element_size()
        return (
            all(part.data_ptr() == first + start * width for part, start in zip(parts, self._starts, strict=True))
            and parts[0].untyped_storage().data_ptr() == parts[-1].untyped_storage().data_ptr()
            and all(part.stride() == stride for part, stride in zip(parts, self._strides, strict=True))
        )

    def sums(self, flat: Tensor) -> Tensor:
        """Return the sum over each layer."""
        return torch.stack([part.sum() for part in flat.split(self.sizes)])

    def spread(self, values: Tensor) -> Tensor:
        """Repeat each layer's value for all of its weights, in a shape that broadcasts."""
        if len(self.sizes) == 1:
            return values[0]
        return torch.cat([value.expand(size) for value, size in zip(values, self.sizes, strict=True)])

    def pieces(self, *flats: Tensor) -> Iterator[tuple[Tensor, ...]]:
        """Yield matching pieces that fit in a CPU's cache, for many elementwise operations in a row."""
        piece = _CPU_PIECE if flats[0].device.type == "cpu" else self.size
        return zip(*(flat.split(piece) for flat in flats), strict=True)

    def with_gradients(self) -> "list[Bundle]":
        """Return the layers that have a gradient, as separate bundles if some have none."""
        if all(param.grad is not None for param in self.params):
            return [self]
        return [Bundle([weight], self.group) for weight in self.weights if weight.param.grad is not None]


def make_bundles(weights: Iterable[Weight], optimizer: Optimizer) -> list[Bundle]:
    """Gather all of the weights into bundles, keeping their order within each."""
    group_of = {id(param): index for index, group in enumerate(optimizer.param_groups) for param in group["params"]}
    alike: dict[tuple, list[Weight]] = {}
    for weight in weights:
        param = weight.param
        alike.setdefault((param.device, param.dtype, group_of[id(param)], param.requires_grad), []).append(weight)
    bundles = []
    for (device, _, group, _), members in alike.items():
        room = limit = _CPU_SIZE if device.type == "cpu" else _SIZE
        together: list[Weight] = []
        for weight in members:
            if together and weight.param.numel() > room:
                bundles.append(Bundle(together, group))
                room, together = limit, []
            together.append(weight)
            room -= weight.param.numel()
        bundles.append(Bundle(together, group))
    return bundles


EffectiveWeights = Callable[[Bundle, Tensor, Tensor], None]
"""Computes the effective weights of some layers from their latent weights, and writes them into the second tensor."""

LatentGradient = Callable[[Bundle, Tensor, Tensor], None]
"""Turns gradients at the effective weights into those of the latent weights (the second argument), in place."""

AfterStep = Callable[[Bundle, Tensor, Tensor], None]
"""Receives latent weights from before and after the optimizer's step, and may change the latter in place."""


class LatentWeights:
    """The latent weights behind a model's parameters. They change in place and are processed in bundles."""

    @torch.no_grad()
    def __init__(
        self,
        weights: Sequence[Weight],
        optimizer: Optimizer,
        state: State,
        *,
        effective_weights: EffectiveWeights,
        latent_gradient: LatentGradient | None,
        after_step: AfterStep,
    ) -> None:
        self._effective_weights, self._latent_gradient = effective_weights, latent_gradient
        self._after_step = after_step
        self._state = state
        self._bundles = make_bundles(weights, optimizer)
        self.tensors: dict[str, Tensor] = {weight.name: weight.param.detach().clone() for weight in weights}
        self._flat = {bundle: bundle.join(self.tensors) for bundle in self._bundles}
        self._room: dict[tuple, Tensor] = {}
        state.weights = Weights.LATENT  # the parameters equal their copies now

    @torch.no_grad()
    def show_effective(self) -> None:
        """Put the effective weights into the parameters. The latent weights stay."""
        for bundle, latent in self._flat.items():
            self._show(bundle, latent)
        self._state.weights = Weights.EFFECTIVE

    def _show(self, bundle: Bundle, latent: Tensor) -> None:
        effective, own = self._room_for(bundle, bundle.params)
        self._effective_weights(bundle, latent, effective)
        if not own:
            _copy(bundle.split_once(effective), bundle.params)

    @torch.no_grad()
    def show_latent(self) -> None:
        """Put the latent weights into the parameters, for the optimizer."""
        if self._state.weights is Weights.EFFECTIVE:
            for bundle, latent in self._flat.items():
                _check_kind(latent, bundle.params[0])
                _copy(bundle.split_once(latent), bundle.params)
            self._state.weights = Weights.LATENT

    @torch.no_grad()
    def convert_gradients(self, scale: Tensor | None) -> None:
        """Turn existing gradients into those of the latent weights; `scale` is what they will be divided by."""
        if self._latent_gradient is None:
            return
        for whole in self._bundles:
            for bundle in whole.with_gradients():
                grads = [p.grad for p in bundle.params if p.grad is not None]
                grad, own = self._take(bundle, grads)
                if scale is not None:
                    grad.div_(scale)
                self._latent_gradient(bundle, grad, bundle.join(self.tensors))
                if scale is not None:
                    grad.mul_(scale)
                if not own:
                    _copy(bundle.split_once(grad), grads)

    @torch.no_grad()
    def take_step(self) -> None:
        """Keep the latent weights as the optimizer left them, and show their effective weights."""
        for bundle, latent in self._flat.items():
            after, _ = self._take(bundle, bundle.params)
            self._after_step(bundle, latent, after)
            latent.copy_(after)
            self._show(bundle, latent)
        self._state.weights = Weights.EFFECTIVE

    @torch.no_grad()
    def shown(self, bundle: Bundle) -> Tensor:
        """Return what the parameters hold as one tensor, valid until the next call; it may be their own memory."""
        return self._take(bundle, bundle.params, "shown")[0]

    def _take(self, bundle: Bundle, tensors: list[Any], use: str = "work") -> tuple[Tensor, bool]:
        """Return the layers' tensors as one, with contents, and whether it is their own memory (see `_room_for`)."""
        one, own = self._room_for(bundle, tensors, use)
        if not own:
            _copy(tensors, bundle.split_once(one))
        return one, own

    def _room_for(self, bundle: Bundle, tensors: list[Any], use: str = "work") -> tuple[Tensor, bool]:
        """Return one tensor with room for the layers' tensors, and whether it is their own memory.

        If they are adjacent, what is written there need not be copied back. Otherwise it is scratch memory.
        """
        one = bundle.as_one(tensors)
        if one is not None and one.dtype == bundle.params[0].dtype:
            return one, True
        return self._scratch(bundle, use), False

    def _scratch(self, bundle: Bundle, use: str) -> Tensor:
        """Return scratch memory for one bundle, shared by all bundles of a kind, so that it stays in a CPU's cache."""
        like = bundle.params[0]
        key = (use, like.device, like.dtype)
        if key not in self._room:
            self._room[key] = like.new_empty(max(b.size for b in self._bundles), requires_grad=False)
        return self._room[key][: bundle.size]

    def state_dict(self) -> dict[str, Any]:
        return to_cpu(self.tensors)

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the latent weights of a checkpoint; the model loads the effective ones that belong to them."""
        for name, value in self.tensors.items():
            value.copy_(state[name])
        self._state.weights = Weights.EFFECTIVE


def _check_kind(latent: Tensor, param: Tensor) -> None:
    if latent.dtype != param.dtype or latent.device != param.device:
        raise RuntimeError(
            f"the model's weights are {param.dtype} on {param.device} now, but the latent weights behind them are "
            f"{latent.dtype} on {latent.device}: cast or move the model before acdc.attach, or back as it was"
        )


def _copy(sources: list[Any], targets: list[Any]) -> None:
    torch._foreach_copy_(targets, sources)  # pyright: ignore[reportPrivateImportUsage]
