"""The sparsifier: attaches a method to a model and its optimizer, holds the masks, counts the steps.

It works through the hooks torch offers and changes nothing of the model: parameters stay plain tensors under their own
names, and masks live here. In a compressed phase gradients are masked in place during backward (gradients.py), so that
clipping, accumulation and the optimizer see zeros. The weights and the optimizer's state were zeroed
once, at the compression; an optimizer that maps zero weight, gradient and state to zero then keeps them at exactly 0
without another pass. Optimizers not known to do so get that pass after every step. In dense phases nothing is hooked
but the end of the optimizer's step, where the steps are counted.

When a phase changes: see trigger.py.
"""

import logging
import math
import weakref
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.checks import (
    check_finished,
    check_identity,
    check_not_sharded,
    check_optimizer_holds,
    check_same_parameters,
    check_still_sparse,
    check_types,
)
from acdc.gradients import Gradients
from acdc.host import forget, has_closure, keeps_zeros, plain_model, plain_optimizer, step_was_skipped
from acdc.schedule import Phase, Schedule
from acdc.sparsity import masks as working
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Layers
from acdc.sparsity.patterns import Pattern
from acdc.summary import Summary
from acdc.trigger import NextForward
from acdc.twin import Result, StateDict, Twin, to_cpu

log = logging.getLogger("acdc")

# The optimizer's hooks keep a sparsifier alive; this only finds it.
_attached: "weakref.WeakKeyDictionary[nn.Module | Optimizer, weakref.ref[Sparsifier]]" = weakref.WeakKeyDictionary()


class Method(Protocol):
    """What a sparse-training method tells the sparsifier."""

    name: ClassVar[str]

    @property
    def schedule(self) -> Schedule: ...
    @property
    def pattern(self) -> Pattern: ...

    def layers(self, model: nn.Module) -> Layers:
        """The weights this method prunes in this model."""
        ...

    def budgets(self, layers: Layers) -> list[Budget]: ...

    def enter(self, sparsifier: "Sparsifier", phase: Phase) -> None:
        """A training step begins and `phase` is new: compress, decompress, keep the twin."""
        ...

    def keeps_best_twin(self) -> bool:
        """Whether the twin is the best dense model reported, rather than the last."""
        ...

    def config(self) -> dict[str, Any]:
        """The method's knobs as plain data: what a checkpoint is checked against."""
        ...


def attach(
    model: nn.Module,
    optimizer: Optimizer,
    method: Method,
    *,
    steps_per_epoch: int | None = None,
    scheduler: Any | None = None,
) -> "Sparsifier":
    """Attach a method to a model and its optimizer; the training loop stays as it is.

    `steps_per_epoch` is the number of optimizer steps in an epoch (len(loader), divided by the gradient accumulation);
    a schedule written in steps does not need it. `scheduler` is only kept with the dense twin, for finetune_dense.
    """
    return Sparsifier(model, optimizer, method, steps_per_epoch=steps_per_epoch, scheduler=scheduler)


def attached_to(target: nn.Module | Optimizer) -> "Sparsifier | None":
    """The sparsifier attached to this model or optimizer, if any."""
    found = _attached.get(plain_model(target) if isinstance(target, nn.Module) else plain_optimizer(target))
    return found() if found is not None else None


class Sparsifier:
    """See `attach`. Steps are optimizer steps, counted from 0; `step` is the number of the next one."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        *,
        steps_per_epoch: int | None = None,
        scheduler: Any | None = None,
    ) -> None:
        check_types(model, optimizer, method)
        self.method = method
        self.model = plain_model(model)
        self.optimizer = plain_optimizer(optimizer)
        self.scheduler = scheduler
        self.steps_per_epoch = steps_per_epoch
        self._step = 0
        self.history: list[dict[str, Any]] = []
        self.twin: Twin | None = None
        self.best_metric: float | None = None

        for target in (self.model, self.optimizer):
            if attached_to(target) is not None:
                raise RuntimeError(
                    f"this {type(target).__name__} already has a sparsifier; call .detach() on that one first"
                )
        self.layers = method.layers(self.model)
        self._weights = {weight.name: weight for weight in self.layers.weights}
        check_not_sharded(self.layers)
        check_optimizer_holds(self.optimizer, self.layers)
        self.total_steps = method.schedule.total_steps(steps_per_epoch)
        self.budgets = method.budgets(self.layers)

        self._compressed = False
        self._masks: dict[str, Tensor] = {}
        self._due = False  # a phase has ended, and the next step has not begun
        self._late = False  # compression was noticed only after the forward pass; weights are zeroed after the step
        self._said: set[str] = set()
        self._keeps_zeros = keeps_zeros(self.optimizer)
        self._gradients = Gradients(self._weights, self._on_gradient)
        watched = [model, self.model, *(weight.module for weight in self.layers.weights)]
        self._next_forward = NextForward(watched, self.begin_step)
        self._step_hooks = [
            self.optimizer.register_step_pre_hook(self._before_optimizer_step),
            self.optimizer.register_step_post_hook(self._after_optimizer_step),
        ]
        _attached[self.model] = _attached[self.optimizer] = weakref.ref(self)
        self._attached = True

        first = method.schedule.phase_at(0, steps_per_epoch)
        self._phase = first if first.kind == "dense" else method.schedule.untrained
        if first.kind == "dense":
            self._record(first)
        self._watch_for_next_phase()

    # What it shows

    @property
    def step(self) -> int:
        """Optimizer steps seen: the number of the next one, counted from 0."""
        return self._step

    @property
    def phase(self) -> Phase:
        """The phase whose model this is now. It changes when the next phase's first step begins."""
        return self._phase

    @property
    def masks(self) -> dict[str, Tensor]:
        """Boolean masks by name, True where a weight is kept; empty in dense phases."""
        return {name: working.as_bool(mask) for name, mask in self._masks.items()} if self._compressed else {}

    @property
    def layer_sparsity(self) -> dict[str, float]:
        """Share of zeros in each prunable layer, as the weights are now."""
        return {name: 1 - int(w.param.count_nonzero()) / max(1, w.param.numel()) for name, w in self._weights.items()}

    @property
    def sparsity(self) -> float:
        """Zeros / prunable weights, as the weights are now."""
        return 1 - sum(int(w.param.count_nonzero()) for w in self.layers.weights) / self.layers.size

    def summary(self, example: Any | None = None) -> Summary:
        """Layers, phases so far and, given an example input (a tensor or a tuple of arguments), FLOPs against dense."""
        return Summary.of(self, example)

    def __repr__(self) -> str:
        return (
            f"<Sparsifier {self.method.name}: step {self.step} of {self.total_steps}, {self.phase.name} phase, "
            f"{len(self._weights)} layers, {self.layers.size:,} prunable weights>"
        )

    # What a loop may tell it

    def begin_step(self) -> None:
        """A training step begins. Only loops that hooks cannot see into (CUDA graph replays) need to call this."""
        self._refuse_if_detached("begin_step")
        if self._late:
            self._zero(self._weights)
            self._late = False
            self._next_forward.disarm()
        elif self._due:
            self._enter_due()

    def set_step(self, step: int) -> None:
        """For hosts that know better how many optimizer steps have run."""
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            raise ValueError(f"set_step({step!r}): expected the number of optimizer steps run so far, 0 or more")
        self._refuse_if_detached("set_step")
        self._step = step
        self._watch_for_next_phase()

    def report(self, metric: float) -> None:
        """Tell the quality of the model as it is now, higher is better. With twin="best" the best dense one is kept.

        Call it after the learning-rate scheduler's step, so that the twin is kept with the rate it goes on with.
        """
        value = float(metric)
        if not math.isfinite(value):
            raise ValueError(f"report({metric!r}): expected a finite number, higher is better (negate a loss)")
        if not self.method.keeps_best_twin():
            self._say_once('report() changes nothing: the method keeps the last dense model; set twin="best" there')
            return
        if self.phase.kind != "dense":
            return
        if self.best_metric is None or value > self.best_metric:
            self.keep_twin()
            self.best_metric = value

    def apply_masks(self, model: nn.Module) -> None:
        """Zero the pruned weights of a model of the same kind, such as an average of this one's weights.

        In a dense phase nothing is pruned, and nothing happens.
        """
        parameters = dict(plain_model(model).named_parameters(remove_duplicate=False))
        missing = [name for name in self._masks if name not in parameters]
        if missing:
            raise ValueError(f"apply_masks: the model given has no {', '.join(missing[:3])}; pass a copy of the model")
        if self._compressed:
            for name, mask in self._masks.items():
                working.apply_(parameters[name], mask.to(parameters[name].device))

    # What a method does with it

    @torch.no_grad()
    def compress(self, *, keep_twin: bool = False) -> None:
        """Take masks from the weights as they are, keep those as the dense twin if asked, and zero the rest.

        Scores that are not finite are refused before anything changes.
        """
        check_same_parameters(self.model, self.layers)
        scores = {name: weight.param.detach() for name, weight in self._weights.items()}
        if not self._masks:
            self._masks = {name: working.new_mask(score) for name, score in scores.items()}
        self.method.pattern.write_masks(self.layers.weights, scores, self.budgets, out=self._masks)
        if keep_twin:
            self.keep_twin()
        self._compressed = True
        self._gradients.mask(self._masks)
        if not self._late:
            self._zero(self._weights)

    @torch.no_grad()
    def decompress(self, reset: str) -> None:
        """Lift the masks. `reset` is what the optimizer forgets: "momentum", "all" or "nothing"."""
        self._compressed = False
        self._gradients.stop()
        if not forget(self.optimizer, reset):
            self._say_once(
                f"{type(self.optimizer).__name__} keeps no first-moment state under a known name: nothing was reset at "
                'decompression. Use reset="all" to start its state anew'
            )

    def keep_twin(self) -> None:
        """Keep a copy of model, optimizer and scheduler as they are now as the dense twin."""
        self.twin = Twin.of(self.step, self.model, self.optimizer, self.scheduler)

    # The end

    def finish(self, *, early: bool = False) -> Result:
        """The sparse model as it is and its dense twin. `early=True` accepts a run stopped in its final phase."""
        self._refuse_if_detached("finish")
        if not (self.phase.final and self._compressed):
            raise RuntimeError(
                f"finish() at step {self.step} of {self.total_steps}, in a {self.phase.name} phase: the sparse model "
                "exists only in the final compressed phase. Train on, or use a shorter schedule. If your loop is over: "
                "steps_per_epoch counts optimizer steps (len(loader) // accumulation), steps of another optimizer are "
                f"not seen, and a resumed run needs sparsifier.load_state_dict\n{self.method.schedule}"
            )
        if not early:
            check_finished(self.step, self.total_steps)
        check_still_sparse(self.layers, self._masks)
        return Result(
            sparse=to_cpu(self.model.state_dict()),
            dense=self.twin.model if self.twin else None,
            dense_step=self.twin.step if self.twin else None,
            masks={name: mask.cpu() for name, mask in self.masks.items()},
            total_steps=self.total_steps,
            twin=self.twin,
        )

    def detach(self) -> None:
        """Take every hook away, for good. The weights stay as they are; nothing keeps them sparse any more."""
        self._attached = False
        for handle in self._step_hooks:
            handle.remove()
        self._step_hooks = []
        self._compressed = False
        self._gradients.stop()
        self._next_forward.disarm()
        self._next_forward.release()
        self._due = self._late = False
        for target in (self.model, self.optimizer):
            if attached_to(target) is self:
                del _attached[target]

    # Checkpoints

    def state_dict(self) -> StateDict:
        """Plain data and tensors: torch.save it beside the model's and the optimizer's, load with weights_only=True."""
        self._refuse_if_detached("state_dict")
        return {
            "version": 1,
            **self._identity(),
            "step": self.step,
            "phase": self.phase.index,
            "late": self._late,
            "masks": {n: working.pack(m).cpu() for n, m in self._masks.items()} if self._compressed else {},
            "history": [dict(event) for event in self.history],
            "best_metric": self.best_metric,
            "twin": dict(vars(self.twin)) if self.twin else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was saved. Model and optimizer load their own state, before or after this."""
        self._refuse_if_detached("load_state_dict")
        check_identity(state, self._identity())
        masks = {name: working.unpack(bits, self._weights[name].param) for name, bits in state["masks"].items()}
        self._next_forward.disarm()
        self._next_forward.release()
        self._compressed = False
        self._gradients.stop()
        schedule, phase = self.method.schedule, state["phase"]
        self._step = state["step"]
        self._phase = schedule.phases[phase] if phase >= 0 else schedule.untrained
        self.history = [dict(event) for event in state["history"]]
        self.best_metric = state["best_metric"]
        self.twin = Twin(**state["twin"]) if state["twin"] else None
        self._due, self._late = False, state["late"]
        if masks:
            self._masks, self._compressed = masks, True
            self._gradients.mask(masks)
        self._watch_for_next_phase()

    def _identity(self) -> dict[str, Any]:
        return {
            "method": self.method.name,
            "config": self.method.config(),
            "steps_per_epoch": self.steps_per_epoch,
            "layers": {name: list(weight.param.shape) for name, weight in self._weights.items()},
        }

    # How phases change

    def _watch_for_next_phase(self) -> None:
        upcoming = self.method.schedule.phase_at(self.step, self.steps_per_epoch)
        self._due = self._gradients.alert = upcoming.index != self._phase.index
        if self._due and upcoming.kind == "sparse":
            self._gradients.watch()
            self._next_forward.arm()
            return
        # Lifting a mask before the first gradient is soon enough, and in sparse phases gradients are hooked.
        if self._late:
            self._next_forward.arm()
        else:
            self._next_forward.disarm()
        self._next_forward.release()
        if not self._compressed:
            self._gradients.stop()

    def _enter_due(self) -> None:
        phase = self.method.schedule.phase_at(self.step, self.steps_per_epoch)
        self.method.enter(self, phase)  # may refuse: the phase is then still due
        self._due = False
        self._next_forward.disarm()
        self._phase = phase
        self._record(phase)

    def _record(self, phase: Phase) -> None:
        kept = {name: working.count_kept(mask) for name, mask in self._masks.items()} if self._compressed else {}
        if empty := [name for name, count in kept.items() if not count]:
            named = ", ".join(empty[:3]) + (f" and {len(empty) - 3} more layers" if len(empty) > 3 else "")
            self._say_once(
                f"all weights of {named} are pruned: the output is constant, and two such layers in a row "
                "get no gradient to recover by. Train longer before compressing, lower the sparsity, or use "
                'distribution="erk"'
            )
        pruned = 1 - sum(kept.values()) / self.layers.size if self._compressed else 0.0
        self.history.append({"step": self.step, "phase": phase.name, "kind": phase.kind, "sparsity": pruned})

    # Hooks

    def _on_gradient(self) -> None:
        if self._due:
            self._enter_late()
        self._next_forward.release()
        self._gradients.alert = False

    def _enter_late(self) -> None:
        """The forward pass has run. Masks may be taken now, but its weights must stay until backward is done."""
        if self.method.schedule.phase_at(self.step, self.steps_per_epoch).kind == "dense":
            self._enter_due()
            return
        self._late = True
        try:
            self._enter_due()
        except Exception:
            self._late = False
            raise
        self._next_forward.arm()  # whatever comes first, the next forward pass or the end of the step, zeroes them
        self._say_once(
            "the start of a compressed phase was noticed only at backward, after a forward pass with dense weights: "
            "its first gradient is taken there. Call sparsifier.begin_step() at the top of each training step to make "
            "it exact"
        )

    def _before_optimizer_step(self, *_: Any) -> None:
        self._next_forward.release()
        if self._due:
            self._enter_due()
        if self._compressed:
            self._gradients.mask_now()

    def _after_optimizer_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if step_was_skipped(optimizer):
            return
        if self._compressed:
            if not self._keeps_zeros:
                self._say_once(
                    f"{type(optimizer).__name__} is not known to keep zero weights at zero: masks are applied "
                    "again after every step (one more pass over weights and optimizer state)"
                )
            if self._late or not self._keeps_zeros:
                self._zero(self._weights)
            elif has_closure(args, kwargs):  # gradients changed inside it were not seen before the step
                self._zero(self._gradients.unmasked())
        self._late = False
        self._step += 1
        self._watch_for_next_phase()

    @torch.no_grad()
    def _zero(self, names: Any) -> None:
        """Pruned weights to 0, and with them every entry of the optimizer's state that belongs to one of them."""
        for name in names:
            param, mask = self._weights[name].param, self._masks[name]
            working.apply_(param, mask)
            for value in self.optimizer.state.get(param, {}).values():
                if isinstance(value, Tensor) and value.shape == param.shape and value.is_floating_point():
                    working.apply_(value, mask)

    def _refuse_if_detached(self, verb: str) -> None:
        if not self._attached:
            raise RuntimeError(f"{verb}() after detach(): masks and steps are gone by then; call {verb}() before it")

    def __reduce__(self) -> Any:
        raise TypeError("a sparsifier holds hooks and cannot be copied or pickled; save its state_dict() instead")

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            log.warning(message)
