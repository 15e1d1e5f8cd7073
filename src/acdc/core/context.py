"""What a method may ask of the run it is attached to."""

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core import returning
from acdc.core.hooks import loss_scale, reset_state
from acdc.core.latent import Bundle
from acdc.core.masking import Masking
from acdc.core.result import StateDict, Twin, to_cpu
from acdc.core.state import State
from acdc.schedule import Phase
from acdc.sparsity import masks as working
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers

if TYPE_CHECKING:
    from acdc.core.method import Method


class SparsityWarning(UserWarning):
    """Training goes on, but perhaps not as its user expects."""


class MethodContext:
    """Shows a method and its criterion the run, and carries out what they decide.

    model, optimizer   plain: without the wrappers of DistributedDataParallel, torch.compile or Accelerate
    layers, budgets    the prunable weights, and how many of them the method keeps in the end
    step, phase        the number of the coming step, and the phase whose model this is now
    memory             what the method remembers from step to step, tensors and plain data; checkpoints hold it
    twin, best_metric  the dense model kept so far, and what was reported of it
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: "Method",
        layers: Layers,
        *,
        phase: Phase,
        steps_per_epoch: int | None,
        scheduler: Any | None,
        masking: Masking,
        state: State,
    ) -> None:
        self.model, self.optimizer, self.layers = model, optimizer, layers
        self.budgets = method.budgets(layers)
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = method.schedule.total_steps(steps_per_epoch)
        self.step = 0
        self.phase = phase
        self.memory: dict[str, Any] = {}
        self.twin: Twin | None = None
        self.best_metric: float | None = None
        self.sparse_model: tuple[StateDict, dict[str, Tensor]] | None = None  # what keep_sparse kept: weights and masks
        self.show_warning: Callable[[str], None] = warn_user  # trainers with a console of their own print a line
        self.scheduler = scheduler
        self._method, self._masking, self._state = method, masking, state
        self._positions = {weight.name: index for index, weight in enumerate(layers.weights)}
        self._warned: set[str] = set()

    # The weights

    @property
    def masks(self) -> dict[str, Tensor]:
        """Boolean masks by name, True where a weight is kept; empty in dense phases."""
        return self._masking.kept()

    @property
    def weights(self) -> dict[str, Tensor]:
        """The prunable weights by name: the latent ones, where a method trains those behind the model's."""
        return self._masking.trained()

    @property
    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the prunable weights that have one. Those a fused optimizer will unscale come unscaled."""
        grads, scale = self._masking.gradients.whole(), loss_scale(self.optimizer)
        return grads if scale is None else {name: grad / scale for name, grad in grads.items()}

    @property
    def observing(self) -> bool:
        """True if the method looks at the coming step's gradients whole, so that they are masked only after that."""
        return self._state.observing

    @property
    def forward_already_ran(self) -> bool:
        """True if a forward pass has already read the weights of the step that begins: they must stay."""
        return self._state.forward_already_ran

    def refuse_after_forward(self) -> None:
        """Raise a RuntimeError if the forward pass has run, in methods that write weights as a step begins."""
        if self.forward_already_ran:
            raise RuntimeError(
                f"step {self.step}: {type(self._method).__name__} writes weights as a step begins, and this one was "
                "noticed only at backward, as no module was called; call sparsifier.begin_step() at the top of each"
            )

    def position(self, name: str) -> int:
        """Return the position of this weight in `layers.weights`."""
        return self._positions[name]

    # Compressing and decompressing

    @torch.no_grad()
    def compress(
        self,
        *,
        scores: Mapping[str, Tensor] | None = None,
        budgets: Sequence[Budget] | None = None,
        keep_twin: bool = False,
    ) -> None:
        """Take masks of the largest scores, keep the weights as they are as the dense twin if asked, zero the rest.

        Scores are the weights themselves unless given, and count by magnitude; budgets are the method's. Scores that
        are not finite are refused before anything changes.
        """
        masks = self._masking.masks or self._masking.new_masks()
        scores = self.weights if scores is None else scores
        self._method.pattern.write_masks(self.layers.weights, scores, budgets or self.budgets, out=masks)
        if keep_twin:
            self.keep_twin()
        self._masking.prune_by(masks)
        self.memory.pop(returning.SURVIVORS, None)

    @torch.no_grad()
    def choose_masks(self, scores: Mapping[str, Tensor], budgets: Sequence[Budget] | None = None) -> dict[str, Tensor]:
        """Return masks of the largest scores, by the method's pattern, without using them: boolean, by name."""
        masks = self._masking.new_masks()
        self._method.pattern.write_masks(self.layers.weights, scores, budgets or self.budgets, out=masks)
        return {name: working.as_bool(mask) for name, mask in masks.items()}

    @torch.no_grad()
    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Use masks of the method's own, boolean, True where a weight is kept; layers not named keep theirs.

        Weights that come back start at 0, and so does their optimizer state, as they were while pruned.
        """
        missing = [] if self._masking.masks else [name for name in self._positions if name not in masks]
        if missing:
            raise ValueError(f"set_masks: no mask yet for {', '.join(missing[:3])}; the first call names every layer")
        changed = self._masking.masks or self._masking.new_masks()
        for name, mask in masks.items():
            changed[name].copy_(working.from_bool(mask))
        self._masking.prune_by(changed)

    @torch.no_grad()
    def decompress(self, reset: str, *, shorten: bool = False) -> None:
        """Lift the masks, and put latent weights, if there are any, back into the model.

        `reset` is what the optimizer forgets: "momentum", "all" or "nothing". `shorten` remembers which weights came
        back, so that the method's returning_step can shorten their steps until the next compression.
        """
        if shorten and (masks := self.masks):
            returning.remember(self.memory, masks)
        self._masking.lift()
        if not reset_state(self.optimizer, reset):
            self.warn(
                f"{type(self.optimizer).__name__} keeps no first-moment state under a known name: nothing was reset at "
                'decompression. Use reset="all" to start its state anew'
            )

    def keep_twin(self) -> None:
        """Keep a copy of model, optimizer and scheduler as they are now as the dense twin."""
        self.twin = Twin.of(self.step, self.model, self.optimizer, self.scheduler)

    def keep_sparse(self) -> None:
        """Keep a copy of the model as it is as the sparse one, for methods that end with a dense phase."""
        self.sparse_model = self.copy_sparse()

    def copy_sparse(self) -> tuple[StateDict, dict[str, Tensor]]:
        """Copy the model as it is and its masks, to the CPU."""
        return to_cpu(self.model.state_dict()), {name: mask.cpu() for name, mask in self.masks.items()}

    # Latent weights

    def use_latent_weights(self) -> None:
        """Train latent weights from now on; the model's hold what the method's effective_weights makes of them.

        Masks then say what the effective weights keep: they mask no gradient. Call it before a compression, which
        zeroes weights. Called again, it puts the effective weights of now into the model.
        """
        self._masking.use_latent()

    def drop_latent_weights(self, *, keep: Literal["latent", "effective"] = "latent") -> None:
        """Train the model's own weights again: from the latent ones, or from the effective ones that it holds."""
        self._masking.lift(keep=keep)

    def model_weights(self, bundle: Bundle) -> Tensor:
        """Return what the model's parameters hold, where latent weights are behind them; to be read only."""
        assert self._masking.latent is not None, "asked for by methods that have latent weights"
        return self._masking.latent.shown(bundle)

    def write_masked(self, bundle: Bundle, tensor: Tensor, out: Tensor) -> None:
        """Write the tensor into `out`, with exact zeros where the masks of a bundle's layers prune."""
        self._masking.write_masked(bundle, tensor, out)

    def param_group(self, bundle: Bundle) -> Mapping[str, Any]:
        """Return the optimizer's settings for a bundle's layers, as they are now: learning rate, weight decay, …"""
        return self.optimizer.param_groups[bundle.group]

    # Warnings

    def warn(self, message: str, topic: str | None = None) -> None:
        """Issue a SparsityWarning, once for each topic: the message, unless another is given."""
        if (topic or message) not in self._warned:
            self._warned.add(topic or message)
            self.show_warning(message)


def warn_user(message: str) -> None:
    """Issue a SparsityWarning at the line of the user's code that led here, past acdc's own and torch's."""
    inside = tuple(str(Path(file).parent) for file in (Path(__file__).parent, torch.__file__))
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, SparsityWarning, stacklevel=level)
