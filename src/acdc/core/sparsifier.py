"""The sparsifier: attaches a method to a model and its optimizer, counts the steps, and begins its phases.

It works through the hooks torch offers and changes nothing of the model: parameters stay plain tensors under their own
names, and masks live outside. What keeps weights sparse is in pruning.py; how the beginning of a step is noticed, in
trigger.py. In dense phases nothing is hooked but the optimizer's step, at whose end the steps are counted.
"""

import logging
import math
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.bundle import Bundle
from acdc.core.checks import (
    check_finished,
    check_identity,
    check_not_sharded,
    check_optimizer_holds,
    check_optimizer_keeps_pruned,
    check_types,
    empty_layers,
    nearly_empty,
    thin_layers,
)
from acdc.core.hooks import NextForward
from acdc.core.host import forget, has_closure, loss_scale, plain_model, plain_optimizer, step_was_skipped
from acdc.core.latent import Shadow
from acdc.core.leaks import LeakCheck
from acdc.core.masking import Pruning
from acdc.core.method import Method
from acdc.core.ownership import Ownership
from acdc.core.result import Result, StateDict, Twin, to_cpu, to_device
from acdc.core.state import check_fit
from acdc.core.summary import Summary
from acdc.schedule import Phase
from acdc.sparsity import masks as working
from acdc.sparsity.distributions import Budget
from acdc.sparsity.layers import Weight

log = logging.getLogger("acdc")

# The optimizer's hooks keep a sparsifier alive; this only finds it.
_attached: "weakref.WeakKeyDictionary[nn.Module | Optimizer, weakref.ref[Sparsifier]]" = weakref.WeakKeyDictionary()


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
        self.kept_sparse: tuple[StateDict, dict[str, Tensor]] | None = None
        self.best_metric: float | None = None

        for target in (self.model, self.optimizer):
            if attached_to(target) is not None:
                raise RuntimeError(
                    f"this {type(target).__name__} already has a sparsifier; call .detach() on that one first"
                )
        self.layers = method.layers(self.model)
        self._weights = {weight.name: weight for weight in self.layers.weights}
        self._index = {name: index for index, name in enumerate(self._weights)}
        check_not_sharded(self.layers)
        check_optimizer_holds(self.optimizer, self.layers)
        check_optimizer_keeps_pruned(self.optimizer, self.layers)
        self._ownership = Ownership(self.model, self.optimizer, self.layers.weights)
        self.total_steps = method.schedule.total_steps(steps_per_epoch)
        self.budgets = method.budgets(self.layers)
        self._said: set[str] = set()
        for caution in [*self.layers.warnings(), *method.cautions(self.total_steps, steps_per_epoch)]:
            self._say_once(caution)

        self._due: Literal["phase", "update"] | None = None  # as the next step begins: a new phase, or an update in one
        self.memory: dict[str, Any] = {}  # what a method remembers from step to step: tensors and plain data
        self._pruning = Pruning(
            self._weights, self.optimizer, on_gradient=self._on_gradient, new_shadow=self._new_shadow
        )
        self._leak_check = LeakCheck(self._weights, self.optimizer)
        watched = [model, self.model, *(weight.module for weight in self.layers.weights)]
        self._next_forward = NextForward(watched, self._on_forward)
        self._step_hooks = [
            self.optimizer.register_step_pre_hook(self._before_optimizer_step),
            self.optimizer.register_step_post_hook(self._after_optimizer_step),
            self.optimizer.register_load_state_dict_post_hook(lambda _: self._leak_check.restart()),
        ]
        _attached[self.model] = _attached[self.optimizer] = weakref.ref(self)
        self._attached = True

        first = method.schedule.phase_at(0, steps_per_epoch)
        self._phase = first if first.kind == "dense" else method.schedule.untrained
        if first.kind == "dense":
            self._record(first)
        try:
            self._watch_for_next_phase()
        except Exception:  # the method refuses: nothing may stay attached
            self.detach()
            raise

    # What it shows

    @property
    def step(self) -> int:
        """Optimizer steps seen: the number of the next one, counted from 0."""
        return self._step

    @property
    def phase_starts(self) -> list[tuple[int, Phase]]:
        """The first step of each phase of the schedule."""
        return self.method.schedule.starts(self.steps_per_epoch)

    @property
    def observing(self) -> bool:
        """Whether the method looks at the coming step's gradients whole, so that they are masked only after that."""
        return self._pruning.gradients.observed

    @property
    def phase(self) -> Phase:
        """The phase whose model this is now. It changes when the next phase's first step begins."""
        return self._phase

    @property
    def masks(self) -> dict[str, Tensor]:
        """Boolean masks by name, True where a weight is kept; empty in dense phases."""
        return self._pruning.kept()

    @property
    def layer_sparsity(self) -> dict[str, float]:
        """Share of zeros in each prunable layer, as the weights are now."""
        self._ownership.check_model("layer_sparsity")
        return {name: 1 - int(w.param.count_nonzero()) / max(1, w.param.numel()) for name, w in self._weights.items()}

    @property
    def sparsity(self) -> float:
        """Zeros / prunable weights, as the weights are now."""
        self._ownership.check_model("sparsity")
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
        if self.late:
            self._pruning.catch_up()
            self._next_forward.disarm()
        else:
            self._take_up()

    def mask_gradients(self) -> None:
        """The step's gradients are complete, and unscaled: mask them now, whoever wrote them.

        Gradients are masked as backward writes them. Two kinds of loops need this call: those that change gradients
        where PyTorch does not notice (p.grad.data, numpy), after the change; and those that clip, with RigL or SNFS,
        before it. Steps in which a method looks at gradients whole mask them only as the optimizer's step begins, and
        clipping would see a larger norm than that of what is used.
        """
        self._refuse_if_detached("mask_gradients")
        self._take_up()
        if self._pruning.masked:
            if self.observing:
                self._pruning.gradients.keep_whole()
            self._pruning.gradients.mask_again()

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
        elif self.phase.kind == "dense" and (self.best_metric is None or value > self.best_metric):
            self.keep_twin()
            self.best_metric = value

    def apply_masks(self, model: nn.Module) -> None:
        """Zero the pruned weights of a model of the same kind, such as an average of this one's weights.

        In a dense phase nothing is pruned, and nothing happens.
        """
        parameters = dict(plain_model(model).named_parameters(remove_duplicate=False))
        masks = self.masks
        if missing := [name for name in masks if name not in parameters]:
            raise ValueError(f"apply_masks: the model given has no {', '.join(missing[:3])}; pass a copy of the model")
        for name, mask in masks.items():
            working.apply_(parameters[name], working.from_bool(mask).to(parameters[name].device))

    # What a method does with it

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
        masks = self._pruning.masks or self._pruning.new_masks()
        scores = self.weights if scores is None else scores
        self.method.pattern.write_masks(self.layers.weights, scores, budgets or self.budgets, out=masks)
        if keep_twin:
            self.keep_twin()
        self._pruning.prune_by(masks)

    @torch.no_grad()
    def set_masks(self, masks: Mapping[str, Tensor]) -> None:
        """Masks as the method made them, boolean, True where a weight is kept; layers not named keep theirs.

        Weights that come back start at 0, and so does their optimizer state, as they were while pruned.
        """
        missing = [] if self._pruning.masks else [name for name in self._weights if name not in masks]
        if missing:
            raise ValueError(f"set_masks: no mask yet for {', '.join(missing[:3])}; the first call names every layer")
        changed = self._pruning.masks or self._pruning.new_masks()
        for name, mask in masks.items():
            changed[name].copy_(working.from_bool(mask))
        self._pruning.prune_by(changed)

    @torch.no_grad()
    def write_masks(self, scores: Mapping[str, Tensor], budgets: Sequence[Budget] | None = None) -> dict[str, Tensor]:
        """Masks of the largest scores, by the method's pattern, without using them: boolean, by name."""
        masks = self._pruning.new_masks()
        self.method.pattern.write_masks(self.layers.weights, scores, budgets or self.budgets, out=masks)
        return {name: working.as_bool(mask) for name, mask in masks.items()}

    def weight(self, name: str) -> Weight:
        """A prunable weight, with its parameter and the layer that owns it."""
        return self._weights[name]

    def index(self, name: str) -> int:
        """Of a prunable weight among all of them."""
        return self._index[name]

    def write_masked(self, bundle: Bundle, tensor: Tensor, out: Tensor) -> None:
        """Into `out` the tensor with exact zeros where the masks of a bundle's layers prune; none does at first."""
        self._pruning.write_masked(bundle, tensor, out)

    def held(self, bundle: Bundle) -> Tensor:
        """What the model's parameters hold, where a method trains dense weights behind them; to be read only."""
        assert self._pruning.shadow is not None, "asked for by methods that have one"
        return self._pruning.shadow.held(bundle)

    def settings(self, bundle: Bundle) -> Mapping[str, Any]:
        """The optimizer's for a bundle's layers: learning rate, weight decay, momentum, as they are now."""
        return self.optimizer.param_groups[bundle.group]

    @property
    def late(self) -> bool:
        """Whether a forward pass has already read the weights of the phase that is being entered: they must stay."""
        return self._pruning.late

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Gradients of the prunable weights that have one. Those a fused optimizer will unscale come unscaled."""
        grads, scale = self._pruning.gradients.whole(), loss_scale(self.optimizer)
        return grads if scale is None else {name: grad / scale for name, grad in grads.items()}

    @property
    def weights(self) -> dict[str, Tensor]:
        """The prunable weights by name: the dense ones, where a method trains those behind the model's."""
        return self._pruning.trained()

    def shadow(self) -> None:
        """From now on train dense weights behind the model's, which hold the method's view of them; see shadow.py.

        Masks then say what the view keeps: they mask no gradient. Call it before a compression, which zeroes weights.
        """
        self._pruning.train_behind()

    def unshadow(self, *, to: Literal["dense", "view"] = "dense") -> None:
        """Train the model's own weights again: from the dense ones, or from the view of them that it holds."""
        self._pruning.lift(to=to)

    def keep_sparse(self) -> None:
        """Keep a copy of the model as it is as the sparse one, for methods that end with a dense phase."""
        self.kept_sparse = self._sparse_now()

    def _sparse_now(self) -> tuple[StateDict, dict[str, Tensor]]:
        return to_cpu(self.model.state_dict()), {name: mask.cpu() for name, mask in self.masks.items()}

    @torch.no_grad()
    def decompress(self, reset: str) -> None:
        """Lift the masks, and take back dense weights from behind a view of them.

        `reset` is what the optimizer forgets: "momentum", "all" or "nothing".
        """
        self._pruning.lift()
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
        self._ownership.check("finish()")
        ends_dense = self.kept_sparse is not None and self.phase.final and self.phase.kind == "dense"
        if not ends_dense and not (self.phase.final and self._pruning.sparse):
            raise RuntimeError(
                f"finish() at step {self.step} of {self.total_steps}, in a {self.phase.name} phase: the sparse model "
                "exists only in the final compressed phase. Train on, or use a shorter schedule. If your loop is over: "
                "steps_per_epoch counts optimizer steps (len(loader) // accumulation), steps of another optimizer are "
                f"not seen, and a resumed run needs sparsifier.load_state_dict\n{self.method.schedule}"
            )
        if not early:
            check_finished(self.step, self.total_steps)
        if ends_dense:
            self.keep_twin()
        else:
            self._leak_check.check_finished(self._pruning.masks)
            self._count_kept()  # a method may have raised the sparsity since the phase began
        sparse, masks = (self.kept_sparse if ends_dense else None) or self._sparse_now()
        return Result(
            sparse=sparse,
            dense=self.twin.model if self.twin else None,
            dense_step=self.twin.step if self.twin else None,
            masks=masks,
            total_steps=self.total_steps,
            twin=self.twin,
        )

    def detach(self) -> None:
        """Take every hook away, for good. The weights stay as they are; nothing keeps them sparse any more."""
        self._attached = False
        for handle in self._step_hooks:
            handle.remove()
        self._step_hooks = []
        self._due = None
        self._pruning.lift(to="view")
        self._pruning.late = False
        self._pruning.gradients.expect(alert=False, observed=False)
        self._next_forward.disarm()
        self._next_forward.release()
        for target in (self.model, self.optimizer):
            if attached_to(target) is self:
                del _attached[target]

    # Checkpoints

    def state_dict(self) -> StateDict:
        """Plain data and tensors: torch.save it beside the model's and the optimizer's, load with weights_only=True."""
        self._refuse_if_detached("state_dict")
        self._ownership.check("state_dict()")
        return {
            "version": 1,
            **self._identity(),
            "step": self.step,
            "phase": self.phase.index,
            **self._pruning.state_dict(),
            "history": [dict(event) for event in self.history],
            "best_metric": self.best_metric,
            "twin": dict(vars(self.twin)) if self.twin else None,
            "memory": to_cpu(self.memory),
            "kept_sparse": list(self.kept_sparse) if self.kept_sparse else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was saved. Model and optimizer load their own state, before or after this."""
        self._refuse_if_detached("load_state_dict")
        self._ownership.check("load_state_dict()")
        check_identity(state, self._identity(), self.method)
        check_fit(state, self)
        self._pruning.load_state_dict(state)
        self._leak_check.restart()
        schedule, phase = self.method.schedule, state["phase"]
        self._step = state["step"]
        self._phase = schedule.phases[phase] if phase >= 0 else schedule.untrained
        self.history = [dict(event) for event in state["history"]]
        self.best_metric = state["best_metric"]
        self.twin = Twin(**state["twin"]) if state["twin"] else None
        here, host = self.layers.weights[0].param.device, torch.device("cpu")
        remembered = (state.get("memory") or {}).items()
        self.memory = {key: to_device(value, host if key in self.method.on_host else here) for key, value in remembered}
        kept = state.get("kept_sparse")
        self.kept_sparse = (kept[0], kept[1]) if kept else None
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
        step, method, pruning = self._step, self.method, self._pruning
        upcoming = method.schedule.phase_at(step, self.steps_per_epoch)
        new = upcoming.index != self._phase.index
        self._due = "phase" if new else "update" if method.updates_at(self, step) else None
        pruning.gradients.expect(alert=self._due is not None, observed=method.observes_at(self, step))
        if self._due == "update" or (new and self._writes_weights(upcoming)):
            pruning.gradients.watch()
            self._next_forward.arm()
            return
        # Lifting a mask before the first gradient is soon enough, and in sparse phases gradients are hooked.
        if pruning.late:
            self._next_forward.arm()
        else:
            self._next_forward.disarm()
        self._next_forward.release()
        if not pruning.masked:
            pruning.gradients.stop()

    def _take_up(self) -> None:
        """Do what is due as a step begins."""
        if self._due:
            self._ownership.check(f"step {self.step}")
        if self._due == "phase":
            phase = self.method.schedule.phase_at(self.step, self.steps_per_epoch)
            self.method.enter(self, phase)  # may refuse: the phase is then still due
            self._phase = phase
            self._leak_check.restart()
            self._record(phase)
            self._name_unreported_twin()
        elif self._due == "update":
            self.method.update(self)
        else:
            return
        self._due = None
        self._next_forward.disarm()

    def _new_shadow(self) -> Shadow:
        method = self.method
        return Shadow(
            self.layers.weights,
            self.optimizer,
            view=partial(method.view, self),
            pull_back=None if method.straight_through else partial(method.pull_back, self),
            settle=partial(method.settle, self),
        )

    def _name_unreported_twin(self) -> None:
        if self.phase.final and self.method.keeps_best_twin() and self.twin and self.best_metric is None:
            self._say_once(
                'twin="best": no metric was reported in a dense phase, so the twin is the last dense model, of step '
                f"{self.twin.step:,}; call sparsifier.report(accuracy) after each epoch of a dense phase, or set "
                'twin="last"'
            )

    def _record(self, phase: Phase) -> None:
        kept = self._count_kept()
        pruned = 1 - sum(kept.values()) / self.layers.size if kept else 0.0
        self.history.append({"step": self.step, "phase": phase.name, "kind": phase.kind, "sparsity": pruned})

    def _count_kept(self) -> dict[str, int]:
        """Count the weights that each layer keeps, and warn of layers that keep none or next to none."""
        kept = {name: working.count_kept(mask) for name, mask in self.masks.items()}
        if warning := empty_layers(kept):
            self._say_once(warning)
        if thin := thin_layers(kept, self.layers, self.budgets):
            self._say_once(nearly_empty(thin, len(kept)), topic=f"thin: {', '.join(thin)}")  # whatever their numbers
        return kept

    # Hooks

    def _on_forward(self) -> None:
        """A training step's forward pass begins. One through functional_call has read other tensors: it is too late."""
        if self._ownership.in_model():
            self.begin_step()

    def _on_gradient(self) -> None:
        if self._due:
            self._take_up_late()
        self._next_forward.release()
        self._pruning.gradients.alert = False

    def _writes_weights(self, phase: Phase) -> bool:
        """Whether the model's weights change as this phase begins: by the method, or from a view to what is behind."""
        return self._pruning.shadow is not None or self.method.writes_weights(phase)

    def _take_up_late(self) -> None:
        """The forward pass has run. Masks may be taken now, but its weights must stay until backward is done."""
        phase = self.method.schedule.phase_at(self.step, self.steps_per_epoch)
        if phase.kind == "dense":
            if self._due == "update" or not self._writes_weights(phase):
                self._take_up()  # else weights change before the optimizer's step
            return
        self._pruning.late = True
        try:
            self._take_up()
        except Exception:
            self._pruning.late = False
            raise
        self._next_forward.arm()  # the weights change then, or at the end of the step, whichever comes first
        self._say_late("at backward")

    def _say_late(self, moment: str) -> None:
        self._say_once(
            f"the start of a phase was noticed only {moment}, after a forward pass with the weights of the phase "
            "before: its first gradient is taken there. Forward passes that call no module, or call it with other "
            "tensors (torch.func.functional_call), and CUDA graph replays are not noticed. Call "
            "sparsifier.begin_step() at the top of each training step to make it exact"
        )

    def _before_optimizer_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        self._next_forward.release()
        self._ownership.check_next("optimizer.step()")
        if self._due and not has_closure(args, kwargs):  # a closure is yet to run the forward pass
            phase = self.method.schedule.phase_at(self.step, self.steps_per_epoch)
            if self._writes_weights(phase):
                self._say_late("at optimizer.step()")
        self._take_up()
        observing, shadowed = self.observing, self._pruning.shadow is not None
        if (observing or shadowed) and step_was_skipped(optimizer):
            return
        if (observing or shadowed) and has_closure(args, kwargs):
            why = (
                "trains dense weights behind the model's and cannot let a closure compute with them" if shadowed
                else "looks at gradients before the optimizer's step, and a closure has not computed them yet"
            )  # fmt: skip
            raise RuntimeError(
                f"optimizer.step(closure): {self.method.name} {why}; call the closure yourself, then optimizer.step()"
            )
        if observing:
            with torch.no_grad():
                self.method.observe(self)
        self._pruning.before_step()

    def _after_optimizer_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if step_was_skipped(optimizer):
            return
        if not self._pruning.keeps_zeros and self._pruning.masked:
            self._say_once(
                f"{type(optimizer).__name__} is not known to keep zero weights at zero: masks are applied "
                "again after every step (one more pass over weights and optimizer state)"
            )
        self._pruning.after_step(args, kwargs)
        self._step += 1
        self._watch_for_next_phase()
        if self._pruning.masked and self._pruning.keeps_zeros:  # else they were zeroed just now
            self._leak_check.after_step(self._pruning.masks, self._step - 1, last=self._due == "phase")

    def _refuse_if_detached(self, verb: str) -> None:
        if not self._attached:
            raise RuntimeError(f"{verb}() after detach(): masks and steps are gone by then; call {verb}() before it")

    def __reduce__(self) -> Any:
        raise TypeError("a sparsifier holds hooks and cannot be copied or pickled; save its state_dict() instead")

    def _say_once(self, message: str, topic: str | None = None) -> None:
        if (topic or message) not in self._said:
            self._said.add(topic or message)
            log.warning(message)
