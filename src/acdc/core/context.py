"""The run as a method sees it, and the actions a method may request."""

import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from acdc.core import returning
from acdc.core.dropout import lower_dropout, restore_dropout
from acdc.core.hooks import loss_scale, reset_state
from acdc.core.latent import Bundle
from acdc.core.masking import Masking
from acdc.core.optimizers import evaluation_weights
from acdc.core.result import StateDict, Twin, to_cpu
from acdc.core.second_moments import SecondMoment, second_moments_of
from acdc.core.state import State
from acdc.schedule import Phase
from acdc.sparsity import masks as working
from acdc.sparsity.distributions import Budget
from acdc.sparsity.floors import write_masks
from acdc.sparsity.layers import Layers
from acdc.sparsity.sharding import count_nonzero, shard_like
from acdc.sparsity.topk import WHOLE, Shards

if TYPE_CHECKING:
    from acdc.core.method import Method


class SparsityWarning(UserWarning):
    """Training continues, but perhaps not as the user expects."""


class MethodContext:
    """The view of the run that a method and its criterion get; it also carries out what they decide.

    model, optimizer   plain: without the wrappers of DistributedDataParallel, torch.compile or Accelerate
    layers, budgets    the prunable weights, and how many of them the method keeps in the end
    shards             how they are split over processes; weights, gradients and masks are this process's parts
    step, phase        the number of the next step, and the phase the model is in now
    memory             what the method remembers from step to step, tensors and plain data; checkpoints hold it
    twin, best_metric  the dense model kept so far, and the metric reported for it
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
        shards: Shards = WHOLE,
    ) -> None:
        self.model, self.optimizer, self.layers, self.shards = model, optimizer, layers, shards
        self.budgets = method.budgets(layers)
        self.steps_per_epoch = steps_per_epoch
        self.total_steps = method.schedule.total_steps(steps_per_epoch)
        self.step = 0
        self.phase = phase
        self.memory: dict[str, Any] = {}
        self.twin: Twin | None = None
        self.best_metric: float | None = None
        self.sparse_model: tuple[StateDict, dict[str, Tensor]] | None = None  # weights and masks stored by keep_sparse
        self.show_warning: Callable[[str], None] = warn_user  # trainers with their own console print a line instead
        self.scheduler = scheduler
        self._method, self._masking, self._state = method, masking, state
        self._lowered: list[nn.Module] = []  # dropout layers, by this run
        restore_dropout(model.modules())  # after a run that was not detached, or in a copy of its model
        self._positions = {weight.name: index for index, weight in enumerate(layers.weights)}
        self._warned: set[str] = set()

    # The weights

    @property
    def masks(self) -> dict[str, Tensor]:
        """Return boolean masks by name, True where a weight is kept; empty in dense phases."""
        return self._masking.kept()

    @property
    def weights(self) -> dict[str, Tensor]:
        """Return the prunable weights by name; for methods that train latent weights, the latent ones."""
        return self._masking.trained()

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Return the gradients of the prunable weights that have one, already unscaled if a fused optimizer would."""
        grads, scale = self._masking.gradients.whole(), loss_scale(self.optimizer)
        return grads if scale is None else {name: grad / scale for name, grad in grads.items()}

    @property
    def second_moments(self) -> dict[str, SecondMoment]:
        """Return, by name, the squared gradients by whose root an adaptive optimizer divides; {} if one has none."""
        return second_moments_of(self.optimizer, self.layers.weights)

    @property
    def observing(self) -> bool:
        """Return True if the method looks at the next step's gradients before they are masked."""
        return self._state.observing

    @property
    def forward_already_ran(self) -> bool:
        """Return True if a forward pass has already read the weights of this step: they must not change."""
        return self._state.forward_already_ran

    def refuse_after_forward(self) -> None:
        """Raise a RuntimeError if the forward pass has run; for methods that write weights when a step begins."""
        if self.forward_already_ran:
            raise RuntimeError(
                f"step {self.step}: {type(self._method).__name__} writes weights when a step begins, but this step was "
                "noticed only at backward because no module was called; call sparsifier.begin_step() at the top of each"
            )

    def position(self, name: str) -> int:
        """Return the position of this weight in `layers.weights`."""
        return self._positions[name]

    def own_rows(self, name: str, whole: Tensor) -> Tensor:
        """Return the rows of a tensor of a weight's whole shape that this process holds."""
        first, weight = self.shards.first_row(len(whole)), self.layers.weights[self._positions[name]]
        return whole[first : first + len(weight.local)]

    def count_nonzero(self, tensors: Mapping[str, Tensor]) -> dict[str, int]:
        """Count what is not 0 in tensors like the weights, over all processes that hold a part."""
        return count_nonzero(tensors, self.shards)

    # Compressing and decompressing

    @torch.no_grad()
    def compress(
        self,
        *,
        scores: Mapping[str, Tensor] | None = None,
        budgets: Sequence[Budget] | None = None,
        keep_twin: bool = False,
    ) -> None:
        """Mask all but the largest scores, first keeping the current weights as the dense twin if asked.

        Scores default to the weights themselves, and count by magnitude; budgets default to the method's. Scores that
        are not finite are refused before anything changes.
        """
        masks = self._masking.masks or self._masking.new_masks()
        scores = self.weights if scores is None else scores
        self._write_masks(scores, budgets, masks)
        if keep_twin:
            self.keep_twin()
        self._masking.prune_by(masks)
        self.memory.pop(returning.SURVIVORS, None)

    @torch.no_grad()
    def choose_masks(self, scores: Mapping[str, Tensor], budgets: Sequence[Budget] | None = None) -> dict[str, Tensor]:
        """Return boolean masks of the largest scores in the method's pattern, by name, without applying them."""
        masks = self._masking.new_masks()
        self._write_masks(scores, budgets, masks)
        return {name: working.as_bool(mask) for name, mask in masks.items()}

    def _write_masks(
        self, scores: Mapping[str, Tensor], budgets: Sequence[Budget] | None, out: dict[str, Tensor]
    ) -> None:
        write_masks(self._method.pattern, self.layers.weights, scores, budgets or self.budgets, out, self.shards)

    @torch.no_grad()
    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Use the method's own boolean masks, True where a weight is kept; layers not named keep theirs.

        Weights that come back start at 0, and so does their optimizer state: both were 0 while pruned.
        """
        missing = [] if self._masking.masks else [name for name in self._positions if name not in masks]
        if missing:
            raise ValueError(f"set_masks: no mask for {', '.join(missing[:3])}; the first call must name every layer")
        changed = self._masking.masks or self._masking.new_masks()
        for name, mask in masks.items():
            changed[name].copy_(working.from_bool(mask))
        self._masking.prune_by(changed)

    @torch.no_grad()
    def decompress(self, reset: str, *, shorten: bool = False) -> None:
        """Lift the masks, and put any latent weights back into the model.

        `reset` is what the optimizer forgets: "momentum", "all" or "nothing". `shorten` remembers which weights came
        back, so that the method's returning_step can shorten their steps until the next compression.
        """
        if shorten and (masks := self.masks):
            returning.remember(self.memory, masks)
        self._masking.lift()
        if unknown := reset_state(self.optimizer, reset):
            self.warn(
                f"{' and '.join(unknown)} has no first-moment state under a known name, so nothing was reset "
                'at decompression. Use reset="all" to reset its whole state'
            )

    def set_dropout(self, *, lowered: bool) -> None:
        """Lower the rates of dropout layers by what the budgets leave of the model's parameters, or bring them back."""
        if not lowered:
            restore_dropout(self._lowered)
            self._lowered = []
            return
        parameters = sum(param.numel() for param in self.model.parameters() if not is_lazy(param))
        left = parameters - self.layers.size + sum(budget.keep for budget in self.budgets)
        self._lowered += lower_dropout(self.model, math.sqrt(left / parameters))

    def keep_twin(self) -> None:
        """Keep a copy of the current model, optimizer and scheduler as the dense twin."""
        self.twin = Twin.of(self.step, self.model, self.optimizer, self.scheduler)

    def keep_sparse(self) -> None:
        """Keep a copy of the current model as the sparse one, for methods that end with a dense phase."""
        self.sparse_model = self.copy_sparse()

    def copy_sparse(self) -> tuple[StateDict, dict[str, Tensor]]:
        """Copy the current model and its masks to the CPU; both stay sharded if the model is."""
        with evaluation_weights(self.optimizer):
            return to_cpu(self.model.state_dict()), {name: to_cpu(mask) for name, mask in self.sharded_masks().items()}

    def sharded_masks(self) -> dict[str, Tensor]:
        """Return `masks`, as DTensors where the weights are."""
        weights = self.layers.weights
        return {name: shard_like(mask, weights[self._positions[name]].param) for name, mask in self.masks.items()}

    # Latent weights

    def use_latent_weights(self) -> None:
        """Train latent weights from now on; the model holds what the method's effective_weights computes from them.

        Masks then describe what the effective weights keep: they mask no gradient. Call this before a compression,
        which zeroes weights. Another call puts the current effective weights into the model.
        """
        self._masking.use_latent()

    def drop_latent_weights(self, *, keep: Literal["latent", "effective"] = "latent") -> None:
        """Train the model's own weights again, starting from the latent ones or the effective ones it holds."""
        self._masking.lift(keep=keep)

    def model_weights(self, bundle: Bundle) -> Tensor:
        """Return what the model's parameters hold while latent weights are trained behind them; read-only."""
        assert self._masking.latent is not None, "only methods with latent weights call this"
        return self._masking.latent.shown(bundle)

    def write_masked(self, bundle: Bundle, tensor: Tensor, out: Tensor) -> None:
        """Write the tensor into `out`, with exact zeros where the masks of the bundle's layers prune."""
        self._masking.write_masked(bundle, tensor, out)

    def param_group(self, bundle: Bundle) -> Mapping[str, Any]:
        """Return the optimizer's current settings for a bundle's layers: learning rate, weight decay, …"""
        return self.optimizer.param_groups[bundle.group]

    # Warnings

    def warn(self, message: str, topic: str | None = None) -> None:
        """Issue a SparsityWarning, once per topic; the topic defaults to the message."""
        if (topic or message) not in self._warned:
            self._warned.add(topic or message)
            self.show_warning(message)


def warn_user(message: str) -> None:
    """Issue a SparsityWarning that points at the user's line of code, not at acdc's or torch's."""
    inside = tuple(str(Path(file).parent) for file in (Path(__file__).parent, torch.__file__))
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, SparsityWarning, stacklevel=level)
