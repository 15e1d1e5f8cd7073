"""Keeps weights sparse around an optimizer step. The sparsifier decides when.

What the model's weights hold is in state.py:

    dense    they are left alone.
    masked   pruned weights are 0. Gradients are masked in place during backward. The weights and the optimizer's state
             are zeroed once, when masks are chosen; an optimizer that maps zero weight, gradient and state to zero then
             keeps them at exactly 0 without another pass. Optimizers not known to do so get that pass after every step.
    latent   the model holds what a method computes from latent weights, which are trained behind it (latent.py).
             Masks, if the method has any, describe what that keeps: they mask no gradient.

Masks are written in place, and outlive dense phases: a CUDA graph continues to read the same memory.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from acdc.core.hooks import has_closure, keeps_zeros, loss_scale, state_like, untraced
from acdc.core.latent import Bundle, LatentWeights
from acdc.core.state import State, Weights
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Weight, is_sharded, local_part

_SMALL = 1 << 21  # elements; a larger tensor keeps the GPU busy for longer than a launch takes


class Masking:
    """The working masks (sparsity/masks.py) of the last compression, and what holds the prunable weights to them."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        optimizer: Optimizer,
        state: State,
        *,
        on_backward: Callable[[], None],
        new_latent: Callable[[], LatentWeights],
    ) -> None:
        self.masks: dict[str, Tensor] = {}
        self.latent: LatentWeights | None = None
        self.keeps_zeros = keeps_zeros(optimizer)
        self.gradients = Gradients(weights, state, on_backward)
        self._weights, self._optimizer, self._state, self._new_latent = weights, optimizer, state, new_latent
        self._wide: dict[Bundle, Tensor] = {}  # the masks of bundles, until masks change

    def kept(self) -> dict[str, Tensor]:
        """Return boolean masks, True where a weight is kept; none while everything is dense."""
        if not self._state.sparse:
            return {}
        if not self.masks:  # an effective weight of 0 is pruned
            return {name: weight.local != 0 for name, weight in self._weights.items()}
        return {name: working.as_bool(mask) for name, mask in self.masks.items()}

    def trained(self) -> dict[str, Tensor]:
        """Return the weights that the optimizer trains: the model's, or the latent ones behind them."""
        if self.latent is not None:
            return dict(self.latent.tensors)
        return {name: weight.local for name, weight in self._weights.items()}

    # From one state to another

    def new_masks(self) -> dict[str, Tensor]:
        """Return uninitialised masks for every weight."""
        return {name: working.new_mask(weight.local) for name, weight in self._weights.items()}

    def prune_by(self, masks: dict[str, Tensor]) -> None:
        """Prune every weight by these masks from now on."""
        self.masks = masks
        self._wide.clear()
        if self.latent is None:
            self._state.weights = Weights.MASKED
            self.gradients.mask(masks)
        self._put_into_model()

    def use_latent(self) -> None:
        """Train latent weights from now on, and put their current effective weights into the model."""
        if self.latent is None:
            self.gradients.stop()
            self._wide.clear()
            self.latent = self._new_latent()
        self._put_into_model()

    def lift(self, *, keep: Literal["latent", "effective"] = "latent") -> None:
        """Stop pruning from now on.

        Masked weights continue from 0; latent training continues from the latent weights or the effective ones.
        """
        if self.latent is not None and keep == "latent":
            self.latent.show_latent()
        self.latent, self._state.weights = None, Weights.DENSE
        self.gradients.stop()

    def _put_into_model(self) -> None:
        """Put the weights to compute with into the model, unless a forward pass has already read those it has."""
        if self._state.forward_already_ran:
            return
        if self.latent is not None:
            self.latent.show_effective()
        else:
            self.zero()

    # Around the optimizer's step

    def before_step(self) -> None:
        """Give the optimizer the gradients and weights that it should see."""
        if self.latent is not None:
            self.latent.convert_gradients(loss_scale(self._optimizer))
            self.latent.show_latent()
        elif self._state.masked:
            self.gradients.mask_now()

    def after_step(self, args: tuple, kwargs: dict) -> None:
        """Give the model the weights to compute with. The arguments are those of the optimizer's step."""
        if self.latent is not None:
            self.latent.take_step()
        elif self._state.masked:
            if self._state.forward_already_ran or not self.keeps_zeros:
                self.zero()
            elif has_closure(args, kwargs):  # gradients changed inside the closure were not visible before the step
                self.zero(self.gradients.unmasked())
        self._state.end_step()

    def catch_up(self) -> None:
        """Change the weights that a forward pass had read but no step followed: a new step begins."""
        self._state.end_step()
        if self._state.sparse:
            self._put_into_model()

    @torch.no_grad()
    def zero(self, names: Iterable[str] | None = None) -> None:
        """Zero the pruned weights of all layers, or of some, and their optimizer state."""
        for name in self._weights if names is None else names:
            weight, mask = self._weights[name], self.masks[name]
            for tensor in (weight.local, *state_like(self._optimizer, weight.param)):
                working.apply_(tensor, mask)

    def write_masked(self, bundle: Bundle, tensor: Tensor, out: Tensor) -> None:
        """Write the tensor into `out`, with exact zeros where the masks of a bundle's layers prune."""
        if not self.masks:  # at first
            out.copy_(tensor)
            return
        if bundle not in self._wide:
            self._wide[bundle] = working.widen(bundle.join(self.masks), tensor)
        working.write_masked(tensor, self._wide[bundle], out)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        sparse = self._state.sparse
        return {
            "late": self._state.forward_already_ran,
            "masks": {name: working.pack(mask).cpu() for name, mask in self.masks.items()} if sparse else {},
            "shadow": self.latent.state_dict() if self.latent is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        masks = {name: working.unpack(bits, self._weights[name].local) for name, bits in state["masks"].items()}
        self.lift(keep="effective")  # the model loads its own weights, before or after this
        self._state.forward_already_ran = state["late"]
        if state["shadow"] is not None:
            self._wide.clear()
            self.latent = self._new_latent()
            self.latent.load_state_dict(state["shadow"])
        if masks:
            self.masks = masks
            if self.latent is None:
                self._state.weights = Weights.MASKED
                self.gradients.mask(masks)


class Gradients:
    """The masking of gradients as backward writes them, so that clipping, accumulation and the optimizer see zeros.

    On a CPU each gradient is masked at once, while it is in the cache. On a GPU launching a kernel for each would cost
    more than the work itself, so all wait for the end of the backward pass, and the small ones are masked together.
    Before the optimizer's step, gradients that were changed since (clipped, unscaled, noised) or written by hand are
    masked again. In steps in which a method looks at the gradients of pruned weights, nothing is masked until it has.

    `on_backward` is called at the first gradient of a step, before it is masked.
    """

    def __init__(self, weights: Mapping[str, Weight], state: State, on_backward: Callable[[], None]) -> None:
        self._whole: dict[str, Tensor] = {}  # copies of gradients that had to be masked before the method saw them
        self._weights, self._state = weights, state
        self._on_backward = on_backward
        self._handles: list[RemovableHandle] = []
        self._masks: Mapping[str, Tensor] = {}
        self._factors: dict[str, Tensor] = {}
        self._masked: dict[str, tuple[weakref.ref[Tensor], int]] = {}  # gradient and version after masking
        self._backward = -1  # the pass at whose end the GPU's gradients will be masked

    def watch(self) -> None:
        """Hook the gradients; until `mask` is called they are only watched."""
        if not self._handles:
            self._handles = [
                weight.param.register_post_accumulate_grad_hook(_hook(weakref.ref(self), name))
                for name, weight in self._weights.items()
                if weight.param.requires_grad
            ]

    def mask(self, masks: Mapping[str, Tensor]) -> None:
        """Mask every gradient from now on. Small ones on a GPU get the mask as factors 0 and 1 of their own type."""
        self.watch()
        self._masks = masks
        self._masked.clear()
        for name, mask in masks.items():
            if mask.is_cuda and mask.numel() <= _SMALL:
                factor = self._factors.setdefault(name, torch.empty_like(self._weights[name].local))
                factor.copy_(mask).neg_()  # in place: a CUDA graph continues to read the same memory

    def stop(self) -> None:
        """Remove the hooks, and the masks with them."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._masks = [], {}

    def forget_whole(self) -> None:
        """Drop the copies that `keep_whole` made for the step that has ended."""
        self._whole = {}

    def whole(self) -> dict[str, Tensor]:
        """Return the existing gradients by name; in an observed step, as they were before masking."""
        grads = {name: g.detach() for name, w in self._weights.items() if (g := w.local_grad) is not None}
        return grads | {name: whole for name, whole in self._whole.items() if name in grads}

    def keep_whole(self) -> None:
        """Keep copies of the gradients that masking would change, until the step ends."""
        grads = {name: self._weights[name].local_grad for name in self.unmasked()}
        self._whole |= {name: grad.detach().clone() for name, grad in grads.items() if grad is not None}

    def unmasked(self) -> list[str]:
        """Return the names of weights whose gradients were written by hand, or changed since they were masked."""
        return [
            name
            for name in self._masks
            if (grad := self._weights[name].param.grad) is not None and not self._is_masked(name, grad)
        ]

    def mask_now(self) -> None:
        """Mask every gradient that is not masked yet, whoever wrote it."""
        small, factors, names = [], [], self.unmasked()
        for name in names:
            grad = self._weights[name].local_grad
            if name in self._factors:
                small.append(grad)
                factors.append(self._factors[name])
            elif grad is not None:
                working.apply_(grad, self._masks[name])
        if small:  # 0 · ∞ is NaN: an infinite gradient of a pruned weight shows here, where an AND would hide it
            torch._foreach_mul_(small, factors)  # pyright: ignore[reportPrivateImportUsage]
        for name in names:
            self._remember(name)

    def mask_again(self) -> None:
        """Mask every gradient, even those that look masked: a change through .data leaves no trace."""
        self._masked.clear()
        self.mask_now()

    def _remember(self, name: str) -> None:
        if (grad := self._weights[name].param.grad) is not None:
            self._masked[name] = (weakref.ref(grad), grad._version)

    def _is_masked(self, name: str, grad: Tensor) -> bool:
        """Compare the objects themselves: a freed gradient's id may be the next one's.

        The version of a DTensor does not change when it is clipped: such gradients are always masked again.
        """
        if is_sharded(grad):
            return False
        reference, version = self._masked.get(name, (None, -1))
        return reference is not None and reference() is grad and version == grad._version

    def _written(self, name: str, param: Tensor) -> None:
        if not self._state.backward_began:
            self._on_backward()
        if self._state.observing:
            return
        if param.is_cuda:
            backward = torch._C._current_graph_task_id()
            if backward != self._backward:
                self._backward = backward
                _when_backward_ends(self.mask_now)
        elif name in self._masks and param.grad is not None:
            working.apply_(local_part(param.grad), self._masks[name])
            self._remember(name)


def _hook(gradients: "weakref.ref[Gradients]", name: str) -> Callable[[Tensor], None]:
    """Return a hook that holds a weak reference: Python's garbage collector does not see a tensor's hooks."""

    def gradient_written(param: Tensor) -> None:
        if (owner := gradients()) is not None:
            owner._written(name, param)

    return untraced(gradient_written)


def _when_backward_ends(call: Callable[[], Any]) -> None:
    """Run `call` when the current backward pass ends, after what DistributedDataParallel has queued for then."""
    engine = torch.autograd.Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(call))
