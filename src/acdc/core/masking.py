"""What keeps weights sparse while an optimizer trains them. When is the sparsifier's to say; this module knows no time.

Prunable weights are in one of three states:

    dense     nothing is done to them.
    masked    pruned weights are 0. Gradients are masked in place during backward (gradients.py), so that clipping,
              accumulation and the optimizer see zeros. The weights and the optimizer's state are zeroed once, as masks
              are taken; an optimizer that maps zero weight, gradient and state to zero then keeps them at exactly 0
              without another pass. Optimizers not known to do so get that pass after every step.
    shadowed  the model holds a view of dense weights that are trained behind it (shadow.py). Masks, where a method
              takes any, say what its view keeps: they mask no gradient.

Masks are written in place, and outlive dense phases: a CUDA graph goes on reading the same memory.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from acdc.core.bundle import Bundle
from acdc.core.gradients import Gradients
from acdc.core.host import has_closure, keeps_zeros, loss_scale, state_like
from acdc.core.latent import Shadow
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Weight


class Pruning:
    """Prunable weights and their optimizer. `masks` are working ones (sparsity/masks.py), of the last compression."""

    def __init__(
        self,
        weights: Mapping[str, Weight],
        optimizer: Optimizer,
        *,
        on_gradient: Callable[[], None],
        new_shadow: Callable[[], Shadow],
    ) -> None:
        self.sparse = False  # masked or shadowed
        self.masks: dict[str, Tensor] = {}
        self.shadow: Shadow | None = None
        self.late = False  # a forward pass has read the weights as they were: they stay until backward is done
        self.keeps_zeros = keeps_zeros(optimizer)
        self.gradients = Gradients(weights, on_gradient)
        self._weights, self._optimizer, self._new_shadow = weights, optimizer, new_shadow
        self._wide: dict[Bundle, Tensor] = {}  # the masks of bundles, until masks change

    @property
    def masked(self) -> bool:
        return self.sparse and self.shadow is None

    def kept(self) -> dict[str, Tensor]:
        """Boolean masks, True where a weight is kept; none while all is dense."""
        if not self.sparse:
            return {}
        if not self.masks:  # what a view leaves at 0 is pruned
            return {name: weight.param.detach() != 0 for name, weight in self._weights.items()}
        return {name: working.as_bool(mask) for name, mask in self.masks.items()}

    def trained(self) -> dict[str, Tensor]:
        """The weights that the optimizer trains: the model's, or the dense ones behind them."""
        if self.shadow is not None:
            return dict(self.shadow.dense)
        return {name: weight.param.detach() for name, weight in self._weights.items()}

    # From one state to another

    def new_masks(self) -> dict[str, Tensor]:
        """Unwritten ones, for every weight."""
        return {name: working.new_mask(weight.param) for name, weight in self._weights.items()}

    def prune_by(self, masks: dict[str, Tensor]) -> None:
        """By these masks, of every weight, from now on."""
        self.masks, self.sparse = masks, True
        self._wide.clear()
        if self.shadow is None:
            self.gradients.mask(masks)
        if not self.late:
            self._put_into_model()

    def train_behind(self) -> None:
        """Dense weights behind the model's from now on, of which it holds the view."""
        if self.shadow is None:
            self.gradients.stop()
            self._wide.clear()
            self.shadow = self._new_shadow()
        self.sparse = True
        if not self.late:
            self._put_into_model()

    def lift(self, *, to: Literal["dense", "view"] = "dense") -> None:
        """Dense from now on. What was masked goes on from 0; what was shadowed from the dense weights, or the view."""
        if self.shadow is not None and to == "dense":
            self.shadow.put_dense()
        self.shadow, self.sparse = None, False
        self.gradients.stop()

    def _put_into_model(self) -> None:
        """The weights it is to compute with."""
        if self.shadow is not None:
            self.shadow.show()
        else:
            self.zero()

    # Around the optimizer's step

    def before_step(self) -> None:
        """The optimizer gets the gradients, and the weights, that it is to train."""
        if self.shadow is not None:
            self.shadow.pull_back(loss_scale(self._optimizer))
            self.shadow.put_dense()
        elif self.sparse:
            self.gradients.mask_now()

    def after_step(self, args: tuple, kwargs: dict) -> None:
        """The model gets what it is to compute with. Arguments are those of the optimizer's step."""
        if self.shadow is not None:
            self.shadow.take_dense()
        elif self.sparse:
            if self.late or not self.keeps_zeros:
                self.zero()
            elif has_closure(args, kwargs):  # gradients changed inside it were not seen before the step
                self.zero(self.gradients.unmasked())
        self.late = False

    def catch_up(self) -> None:
        """A step begins after a backward pass that no step followed: what was late is due."""
        if self.sparse:
            self._put_into_model()
        self.late = False

    @torch.no_grad()
    def zero(self, names: Iterable[str] | None = None) -> None:
        """Zero the pruned weights, of all layers or some, and what the optimizer's state keeps of each of them."""
        for name in self._weights if names is None else names:
            param, mask = self._weights[name].param, self.masks[name]
            for tensor in (param, *state_like(self._optimizer, param)):
                working.apply_(tensor, mask)

    def write_masked(self, bundle: Bundle, tensor: Tensor, out: Tensor) -> None:
        """Into `out` the tensor with exact zeros where the masks of a bundle's layers prune; none does at first."""
        if not self.masks:
            out.copy_(tensor)
            return
        if bundle not in self._wide:
            self._wide[bundle] = working.widen(bundle.join(self.masks), tensor)
        working.write_masked(tensor, self._wide[bundle], out)

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        return {
            "late": self.late,
            "masks": {name: working.pack(mask).cpu() for name, mask in self.masks.items()} if self.sparse else {},
            "shadow": self.shadow.state_dict() if self.shadow is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        masks = {name: working.unpack(bits, self._weights[name].param) for name, bits in state["masks"].items()}
        self.lift(to="view")  # the model loads its own weights, before or after this
        self.late = state["late"]
        if state.get("shadow") is not None:  # checkpoints of earlier versions have none
            self._wide.clear()
            self.shadow = self._new_shadow()
            self.shadow.load_state_dict(state["shadow"])
            self.sparse = True
        if masks:
            self.masks, self.sparse = masks, True
            if self.shadow is None:
                self.gradients.mask(masks)
