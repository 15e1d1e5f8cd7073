"""The sparsifier: attaches a method to a model and its optimizer, counts the steps, and begins its phases.

It works through the hooks torch offers and changes nothing of the model: parameters stay plain tensors under their own
names, and masks live outside. What keeps weights sparse is in masking.py; how the beginning of a step is noticed, in
hooks.py; what all of them know of the current step, in state.py. In dense phases nothing is hooked but the optimizer's
step, at whose end the steps are counted.
"""

import math
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core import checks
from acdc.core.context import MethodContext
from acdc.core.guards import LeakCheck, OwnershipCheck
from acdc.core.hooks import NextForward, has_closure, plain_model, plain_optimizer, step_was_skipped
from acdc.core.latent import LatentWeights
from acdc.core.masking import Masking
from acdc.core.method import Method
from acdc.core.result import Result, StateDict, Twin, to_cpu, to_device
from acdc.core.state import State
from acdc.core.state_dict import check_fit, check_identity, check_structure
from acdc.core.summary import Summary
from acdc.errors import ArgumentError
from acdc.schedule import Phase
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Layers

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

        method = acdc.ACDC(sparsity=0.9, epochs=100)
        sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=len(loader))
        for epoch in range(100):
            for x, y in loader:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
            torch.save((model.state_dict(), optimizer.state_dict(), sparsifier.state_dict()), "checkpoint.pt")
        result = sparsifier.finish()
        model.load_state_dict(result.sparse)  # or result.dense, its dense twin
        print(sparsifier.summary())

    To resume, build and attach all three in the same way, and load their state:

        states = torch.load("checkpoint.pt", weights_only=True)
        for part, state in zip((model, optimizer, sparsifier), states):
            part.load_state_dict(state)
    """
    return Sparsifier(model, optimizer, method, steps_per_epoch=steps_per_epoch, scheduler=scheduler)


def attached_to(target: nn.Module | Optimizer) -> "Sparsifier | None":
    """Return the sparsifier attached to this model or optimizer, if any."""
    reference = _attached.get(plain_model(target) if isinstance(target, nn.Module) else plain_optimizer(target))
    return reference() if reference is not None else None


class Sparsifier:
    """Keeps a model sparse as its method and schedule ask; see `attach`.

    method   the method, with its schedule and knobs
    context  the run as the method sees it: weights, budgets, the twin so far, what the method remembers
    history  the phases so far: step, name, kind and sparsity as each began
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        *,
        steps_per_epoch: int | None = None,
        scheduler: Any | None = None,
    ) -> None:
        checks.check_types(model, optimizer, method)
        self.method = method
        self._model, self._optimizer = plain_model(model), plain_optimizer(optimizer)
        for target in (self._model, self._optimizer):
            if attached_to(target) is not None:
                raise RuntimeError(
                    f"this {type(target).__name__} already has a sparsifier; call .detach() on that one first"
                )
        layers = method.layers(self._model)
        checks.check_not_sharded(layers)
        checks.check_optimizer_holds(self._optimizer, layers)
        checks.check_optimizer_keeps_pruned(self._optimizer, layers)
        self._weights = {weight.name: weight for weight in layers.weights}
        self._ownership = OwnershipCheck(self._model, self._optimizer, layers.weights)
        self._leaks = LeakCheck(self._weights, self._optimizer)
        self._state = State()
        self._masking = Masking(
            self._weights, self._optimizer, self._state, on_backward=self._on_backward, new_latent=self._new_latent
        )
        first = method.schedule.phase_at(0, steps_per_epoch)
        self.context = MethodContext(
            self._model,
            self._optimizer,
            method,
            layers,
            phase=first if first.kind == "dense" else method.schedule.untrained,
            steps_per_epoch=steps_per_epoch,
            scheduler=scheduler,
            masking=self._masking,
            state=self._state,
        )
        for warning in [*layers.warnings(), *method.warnings(self.total_steps, steps_per_epoch)]:
            self.context.warn(warning)
        self.history: list[dict[str, Any]] = []
        watched = [model, self._model, *(weight.module for weight in layers.weights)]
        self._next_forward = NextForward(watched, self._on_forward)
        self._step_hooks = [
            self._optimizer.register_step_pre_hook(self._before_optimizer_step),
            self._optimizer.register_step_post_hook(self._after_optimizer_step),
            self._optimizer.register_load_state_dict_post_hook(lambda _: self._leaks.restart()),
        ]
        _attached[self._model] = _attached[self._optimizer] = weakref.ref(self)
        if first.kind == "dense":
            self._record(first)
        try:
            self._expect_step()
        except Exception:  # the method refuses: nothing may stay attached
            self.detach()
            raise

    # What it shows

    @property
    def layers(self) -> Layers:
        """The prunable weights, and why others are left dense."""
        return self.context.layers

    @property
    def step(self) -> int:
        """Optimizer steps seen: the number of the next one, counted from 0."""
        return self.context.step

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole schedule."""
        return self.context.total_steps

    @property
    def phase(self) -> Phase:
        """The phase whose model this is now. It changes when the next phase's first step begins."""
        return self.context.phase

    @property
    def masks(self) -> dict[str, Tensor]:
        """Boolean masks by name, True where a weight is kept; empty in dense phases."""
        return self._masking.kept()

    @property
    def layer_sparsity(self) -> dict[str, float]:
        """Share of zeros in each prunable layer, as the weights are now."""
        self._ownership.check_model("layer_sparsity")
        return {name: 1 - int(w.param.count_nonzero()) / max(1, w.param.numel()) for name, w in self._weights.items()}

    @property
    def sparsity(self) -> float:
        """Zeros / prunable weights, as the weights are now."""
        self._ownership.check_model("sparsity")
        return 1 - sum(int(w.param.count_nonzero()) for w in self._weights.values()) / self.layers.size

    def summary(self, example: Any | None = None) -> Summary:
        """Sum up layers, phases so far and, given an example input (a tensor or a tuple of arguments), FLOPs."""
        return Summary.of(self._model, self.layers, self.history, headline=repr(self).strip("<>"), example=example)

    def __repr__(self) -> str:
        return (
            f"<Sparsifier {self.method.name}: step {self.step} of {self.total_steps}, {self.phase.name} phase, "
            f"{len(self._weights)} layers, {self.layers.size:,} prunable weights>"
        )

    # What a loop may tell it

    def begin_step(self) -> None:
        """Begin a training step. Only loops that hooks cannot see into (CUDA graph replays) need to call this."""
        self._refuse_if_detached("begin_step")
        if self._state.forward_already_ran:
            self._masking.catch_up()
            self._next_forward.disarm()
        else:
            self._take_up()

    def mask_gradients(self) -> None:
        """Mask the step's gradients now, whoever wrote them: they are complete, and unscaled.

        Gradients are masked as backward writes them. Two kinds of loops need this call: those that change gradients
        where PyTorch does not notice (p.grad.data, numpy), after the change; and those that clip, with RigL or SNFS,
        before it. Steps in which a method looks at gradients whole mask them only as the optimizer's step begins, and
        clipping would see a larger norm than that of what is used.
        """
        self._refuse_if_detached("mask_gradients")
        self._take_up()
        if self._state.masked:
            if self._state.observing:
                self._masking.gradients.keep_whole()
            self._masking.gradients.mask_again()

    def set_step(self, step: int) -> None:
        """Set the number of optimizer steps that have run, for hosts that know it better."""
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            allowed = "expected the number of optimizer steps run so far, 0 or more"
            raise ArgumentError("step", received=step, allowed=allowed)
        self._refuse_if_detached("set_step")
        self.context.step = step
        self._expect_step()

    def report_metric(self, metric: float) -> None:
        """Tell the quality of the model as it is now, higher is better. With twin="best" the best dense one is kept.

        Call it after the learning-rate scheduler's step, so that the twin is kept with the rate it goes on with.
        """
        value = float(metric)
        if not math.isfinite(value):
            allowed = "expected a finite number, higher is better"
            raise ArgumentError("metric", received=metric, allowed=allowed, instead="negate a loss")
        context = self.context
        if not self.method.keeps_best_twin():
            context.warn('report_metric() changes nothing: the method keeps the last dense model; set twin="best"')
        elif self.phase.kind == "dense" and (context.best_metric is None or value > context.best_metric):
            context.keep_twin()
            context.best_metric = value

    def apply_masks(self, model: nn.Module) -> None:
        """Zero the pruned weights of a model of the same kind, such as an average of this one's weights.

        In a dense phase nothing is pruned, and nothing happens.
        """
        parameters = dict(plain_model(model).named_parameters(remove_duplicate=False))
        masks = self.masks
        if missing := [name for name in masks if name not in parameters]:
            allowed = f"it has no {', '.join(missing[:3])}"
            raise ArgumentError("model", allowed=allowed, instead="pass a copy of the model to apply_masks")
        for name, mask in masks.items():
            working.apply_(parameters[name], working.from_bool(mask).to(parameters[name].device))

    # The end

    def finish(self, *, early: bool = False) -> Result:
        """Return the sparse model as it is and its dense twin.

        `early=True` accepts a run stopped in its final phase.
        """
        self._refuse_if_detached("finish")
        self._ownership.check("finish()")
        context = self.context
        ends_dense = context.sparse_model is not None and self.phase.final and self.phase.kind == "dense"
        if not ends_dense and not (self.phase.final and self._state.sparse):
            raise RuntimeError(
                f"finish() at step {self.step} of {self.total_steps}, in a {self.phase.name} phase: the sparse model "
                "exists only in the final compressed phase. Train on, or use a shorter schedule. If your loop is over: "
                "steps_per_epoch counts optimizer steps (len(loader) // accumulation), steps of another optimizer are "
                f"not seen, and a resumed run needs sparsifier.load_state_dict\n{self.method.schedule}"
            )
        if not early and (warning := checks.check_finished(self.step, self.total_steps)):
            context.warn(warning)
        if ends_dense:
            context.keep_twin()
        else:
            self._leaks.check_finished(self._masking.masks)
            self._count_kept()  # a method may have raised the sparsity since the phase began
        sparse, masks = (context.sparse_model if ends_dense else None) or context.copy_sparse()
        twin = context.twin
        return Result(
            sparse=sparse,
            dense=twin.model if twin else None,
            dense_step=twin.step if twin else None,
            masks=masks,
            total_steps=self.total_steps,
            twin=twin,
        )

    def detach(self) -> None:
        """Take every hook away, for good. The weights stay as they are; nothing keeps them sparse any more."""
        for handle in self._step_hooks:
            handle.remove()
        self._step_hooks = []
        self._masking.lift(keep="effective")
        self._masking.gradients.forget_whole()
        self._state.detach()
        self._next_forward.disarm()
        self._next_forward.release()
        for target in (self._model, self._optimizer):
            if attached_to(target) is self:
                del _attached[target]

    def _refuse_if_detached(self, verb: str) -> None:
        if not self._state.attached:
            raise RuntimeError(f"{verb}() after detach(): masks and steps are gone by then; call {verb}() before it")

    def __reduce__(self) -> Any:
        raise TypeError("a sparsifier holds hooks and cannot be copied or pickled; save its state_dict() instead")

    # Checkpoints

    def state_dict(self) -> StateDict:
        """Return plain data and tensors, to be saved beside the model's and the optimizer's; see `attach`.

        Save it by torch.save, and load it with weights_only=True.
        """
        self._refuse_if_detached("state_dict")
        self._ownership.check("state_dict()")
        context = self.context
        return {
            **self._identity(),
            "step": self.step,
            "phase": self.phase.index,
            **self._masking.state_dict(),
            "history": [dict(event) for event in self.history],
            "best_metric": context.best_metric,
            "twin": dict(vars(context.twin)) if context.twin else None,
            "memory": to_cpu(context.memory),
            "kept_sparse": list(context.sparse_model) if context.sparse_model else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where `state` was saved. Model and optimizer load their own state, before or after this."""
        self._refuse_if_detached("load_state_dict")
        self._ownership.check("load_state_dict()")
        check_structure(state)
        check_identity(state, self._identity())
        check_fit(state, method=self.method, layers=self.layers, model=self._model, optimizer=self._optimizer)
        self._masking.load_state_dict(state)
        self._leaks.restart()
        schedule, phase, context = self.method.schedule, state["phase"], self.context
        context.step = state["step"]
        context.phase = schedule.phases[phase] if phase >= 0 else schedule.untrained
        context.best_metric = state["best_metric"]
        context.twin = Twin(**state["twin"]) if state["twin"] else None
        here, host = self.layers.weights[0].param.device, torch.device("cpu")
        context.memory = {
            key: to_device(value, host if key in self.method.on_host else here)
            for key, value in state["memory"].items()
        }
        kept = state["kept_sparse"]
        context.sparse_model = (kept[0], kept[1]) if kept else None
        self.history = [dict(event) for event in state["history"]]
        self._expect_step()

    def _identity(self) -> dict[str, Any]:
        return {
            "version": 1,
            "method": self.method.name,
            "config": self.method.config(),
            "steps_per_epoch": self.context.steps_per_epoch,
            "layers": {name: list(weight.param.shape) for name, weight in self._weights.items()},
        }

    # How phases change

    def _scheduled_phase(self) -> Phase:
        """Return the phase of the coming step."""
        return self.method.schedule.phase_at(self.step, self.context.steps_per_epoch)

    def _expect_step(self) -> None:
        """Find out what is due as the next step begins, and watch for that."""
        method, context, gradients = self.method, self.context, self._masking.gradients
        upcoming = self._scheduled_phase()
        new = upcoming.index != self.phase.index
        due = "phase" if new else "update" if method.updates_at(context, self.step) else None
        self._state.expect_step(due, observing=method.observes_at(context, self.step))
        gradients.forget_whole()
        if due == "update" or (new and self._writes_weights(upcoming)):
            gradients.watch()
            self._next_forward.arm()
            return
        # Lifting a mask before the first gradient is soon enough, and in sparse phases gradients are hooked.
        if self._state.forward_already_ran:
            self._next_forward.arm()
        else:
            self._next_forward.disarm()
        self._next_forward.release()
        if not self._state.masked:
            gradients.stop()

    def _writes_weights(self, phase: Phase) -> bool:
        """Return whether the model's weights change as this phase begins: by the method, or back to latent ones."""
        return self._state.latent or self.method.writes_weights(phase)

    def _take_up(self) -> None:
        """Do what is due as a step begins. The method may refuse: it is then still due."""
        due = self._state.due
        if due is None:
            return
        self._ownership.check(f"step {self.step}")
        if due == "update":
            self.method.update(self.context)
        else:
            phase = self._scheduled_phase()
            self.method.enter(self.context, phase)
            self.context.phase = phase
            self._leaks.restart()
        self._state.take_up()
        self._next_forward.disarm()
        if due == "phase":
            self._record(self.phase)
            self._warn_of_unreported_twin()

    def _take_up_after_forward(self) -> None:
        """Take masks now, but leave the weights until backward is done: the forward pass has read them."""
        phase = self._scheduled_phase()
        if phase.kind == "dense":
            if self._state.due == "update" or not self._writes_weights(phase):
                self._take_up()  # else weights change before the optimizer's step
            return
        self._state.forward_already_ran = True
        try:
            self._take_up()
        except Exception:
            self._state.forward_already_ran = False
            raise
        self._next_forward.arm()  # the weights change then, or at the end of the step, whichever comes first
        self._warn_of_late_start("at backward")

    def _new_latent(self) -> LatentWeights:
        method, context = self.method, self.context
        return LatentWeights(
            self.layers.weights,
            self._optimizer,
            self._state,
            effective_weights=partial(method.effective_weights, context),
            latent_gradient=None if method.straight_through else partial(method.latent_gradient, context),
            after_step=partial(method.after_step, context),
        )

    def _record(self, phase: Phase) -> None:
        kept = self._count_kept()
        pruned = 1 - sum(kept.values()) / self.layers.size if kept else 0.0
        self.history.append({"step": self.step, "phase": phase.name, "kind": phase.kind, "sparsity": pruned})

    def _count_kept(self) -> dict[str, int]:
        """Count the weights that each layer keeps, and warn of layers that keep none or next to none."""
        kept = {name: working.count_kept(mask) for name, mask in self.masks.items()}
        if warning := checks.empty_layers(kept):
            self.context.warn(warning)
        if thin := checks.thin_layers(kept, self.layers, self.context.budgets):
            topic = f"thin: {', '.join(thin)}"  # whatever their numbers
            self.context.warn(checks.nearly_empty(thin, len(kept)), topic)
        return kept

    def _warn_of_unreported_twin(self) -> None:
        twin = self.context.twin
        if self.phase.final and self.method.keeps_best_twin() and twin and self.context.best_metric is None:
            self.context.warn(
                'twin="best": no metric was reported in a dense phase, so the twin is the last dense model, of step '
                f"{twin.step:,}; call sparsifier.report_metric(accuracy) after each epoch of a dense phase, or set "
                'twin="last"'
            )

    def _warn_of_late_start(self, moment: str) -> None:
        self.context.warn(
            f"the start of a phase was noticed only {moment}, after a forward pass with the weights of the phase "
            "before: its first gradient is taken there. Forward passes that call no module, or call it with other "
            "tensors (torch.func.functional_call), and CUDA graph replays are not noticed. Call "
            "sparsifier.begin_step() at the top of each training step to make it exact"
        )

    # Hooks

    def _on_forward(self) -> None:
        """Begin a step, as its forward pass begins. One through functional_call has read other tensors: too late."""
        if self._ownership.in_model():
            self.begin_step()

    def _on_backward(self) -> None:
        """Do what is still due, as the first gradient of a step is there."""
        if self._state.due:
            self._take_up_after_forward()
        self._next_forward.release()
        self._state.enter_backward()

    def _before_optimizer_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        self._next_forward.release()
        self._ownership.check_next("optimizer.step()")
        closure = has_closure(args, kwargs)
        if self._state.due and not closure and self._writes_weights(self._scheduled_phase()):
            self._warn_of_late_start("at optimizer.step()")  # with a closure the forward pass is yet to run
        self._take_up()
        observing, latent = self._state.observing, self._state.latent
        if (observing or latent) and step_was_skipped(optimizer):
            return
        if (observing or latent) and closure:
            why = (
                "trains latent weights behind the model's and cannot let a closure compute with them" if latent
                else "looks at gradients before the optimizer's step, and a closure has not computed them yet"
            )  # fmt: skip
            raise RuntimeError(
                f"optimizer.step(closure): {self.method.name} {why}; call the closure yourself, then optimizer.step()"
            )
        if observing:
            with torch.no_grad():
                self.method.observe(self.context)
        self._masking.before_step()

    def _after_optimizer_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if step_was_skipped(optimizer):
            return
        masking, context = self._masking, self.context
        enforced = self._state.masked and not masking.keeps_zeros
        masking.after_step(args, kwargs)
        context.step += 1
        self._expect_step()
        if enforced:
            context.warn(
                f"{type(optimizer).__name__} is not known to keep zero weights at zero: masks are applied "
                "again after every step (one more pass over weights and optimizer state)"
            )
        elif self._state.masked:  # else they were zeroed just now
            self._leaks.after_step(masking.masks, self.step - 1, last=self._state.due == "phase")
