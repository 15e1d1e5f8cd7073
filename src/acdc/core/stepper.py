"""The stepper, which takes a method through its phases: it asks the schedule what is due, and lets the method do it.

It works through torch's hooks. masking.py keeps weights sparse; hooks.py notices the beginning of a step; state.py
holds what all of them know about the current step. In dense phases nothing is hooked but the optimizer's step, at
whose end the steps are counted.
"""

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from acdc.core import checks
from acdc.core.context import MethodContext
from acdc.core.guards import LeakCheck, OwnershipCheck
from acdc.core.hooks import NextForward, has_closure, keeps_zeros, step_was_skipped
from acdc.core.latent import LatentWeights
from acdc.core.masking import Masking
from acdc.core.method import Method
from acdc.core.optimizers import Optimizers, parts_of
from acdc.core.returning import ReturningWeights
from acdc.core.state import State
from acdc.schedule import Phase
from acdc.sparsity.layers import is_sharded
from acdc.sparsity.sharding import fsdp_roots, reshard


class Stepper:
    """A method running on a model. `called` is the model as the loop calls it: `model` itself or a wrapper."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method,
        *,
        called: nn.Module,
        steps_per_epoch: int | None,
        scheduler: Any | None,
    ) -> None:
        reshard(model)
        layers = method.layers(model)
        shards = checks.check_sharding(model, method, layers)
        self.sharded = any(is_sharded(weight.param) for weight in layers.weights)
        checks.check_optimizer_holds(optimizer, layers)
        checks.check_several(optimizer, method)
        checks.check_optimizer_keeps_pruned(optimizer, layers)
        self.weights = {weight.name: weight for weight in layers.weights}
        self.ownership = OwnershipCheck(model, optimizer, layers.weights)
        self.leaks = LeakCheck(self.weights, optimizer, shards)
        self.state = State()
        self.masking = Masking(
            self.weights, optimizer, self.state, on_backward=self._on_backward, new_latent=self._new_latent
        )
        first = method.schedule.phase_at(0, steps_per_epoch)
        self.context = MethodContext(
            model,
            optimizer,
            method,
            layers,
            phase=first if first.kind == "dense" else method.schedule.untrained,
            steps_per_epoch=steps_per_epoch,
            scheduler=scheduler,
            masking=self.masking,
            state=self.state,
            shards=shards,
        )
        self._several = optimizer if isinstance(optimizer, Optimizers) else None
        self.history: list[dict[str, Any]] = []
        self.closures_announce_gradients = False  # whether a closure calls gradients_ready when it has computed them
        self._awaits_gradients = False
        self._emptied = False
        self._method = method
        self._returning = ReturningWeights(self.weights)
        # Inside a root of fully_shard weights are gathered copies by the time a layer is called.
        within = fsdp_roots(model) if self.sharded else [weight.module for weight in layers.weights]
        self._next_forward = NextForward([called, model, *within], self._on_forward, first=self.sharded)
        for warning in [*layers.warnings(), *method.warnings(self.context.total_steps, steps_per_epoch)]:
            self.context.warn(warning)
        if first.kind == "dense":
            self._record(first)

    def begin_step(self) -> None:
        """Begin a training step and do what is due."""
        if self.state.forward_already_ran:
            self.masking.catch_up()
            self._next_forward.disarm()
        else:
            self._take_up()

    def mask_gradients(self) -> None:
        """Mask gradients before the optimizer's step begins, with copies for a method that looks at them unmasked."""
        self._take_up()
        if self.state.masked:
            if self.state.observing:
                self.masking.gradients.keep_whole()
            self.masking.gradients.mask_again()

    def stop(self) -> None:
        """Remove all hooks on the model and its gradients, for good, and leave the weights as they are."""
        self.masking.lift(keep="effective")
        self.masking.gradients.forget_whole()
        self.context.set_dropout(lowered=False)
        self.state.detach()
        self._next_forward.disarm()
        self._next_forward.release()

    # Due actions

    def _scheduled_phase(self) -> Phase:
        """Return the phase of the next step."""
        return self._method.schedule.phase_at(self.context.step, self.context.steps_per_epoch)

    def expect_step(self) -> None:
        """Find out what is due when the next step begins, and watch for that moment."""
        method, context, gradients = self._method, self.context, self.masking.gradients
        upcoming = self._scheduled_phase()
        new = upcoming.index != context.phase.index
        due = "phase" if new else "update" if method.updates_at(context, context.step) else None
        self.state.expect_step(due, observing=method.observes_at(context, context.step))
        gradients.forget_whole()
        if due == "update" or (new and self._writes_weights(upcoming)):
            gradients.watch()
            self._next_forward.arm()
            return
        # Lifting a mask before the first gradient is early enough, and in sparse phases gradients are hooked.
        if self.state.forward_already_ran:
            self._next_forward.arm()
        else:
            self._next_forward.disarm()
        self._next_forward.release()
        if not self.state.masked:
            gradients.stop()

    def _writes_weights(self, phase: Phase) -> bool:
        """Return True if the model's weights change when this phase begins: by the method, or back to latent ones.

        A sharded model cannot be looked at in the middle of a backward pass, so its phases begin before forward.
        """
        return self.sharded or self.state.latent or self._method.writes_weights(phase)

    def _take_up(self) -> None:
        """Do what is due when a step begins. If the method raises, it remains due."""
        due = self.state.due
        if due is None:
            return
        self.ownership.check(f"step {self.context.step}")
        if due == "update":
            self._method.update(self.context)
        else:
            phase = self._scheduled_phase()
            self._method.enter(self.context, phase)
            self.context.phase = phase
            self.set_dropout()
            self.leaks.restart()
        self.state.take_up()
        self._next_forward.disarm()
        if due == "phase":
            self._record(self.context.phase)
            self._warn_of_unreported_twin()
        elif self._method.raises_sparsity:
            self._warn_of_emptied()

    def _take_up_after_forward(self) -> None:
        """Choose masks now, but leave the weights until backward is done: the forward pass has read them."""
        phase = self._scheduled_phase()
        if phase.kind == "dense":
            if self.state.due == "update" or not self._writes_weights(phase):
                self._take_up()  # otherwise weights would change before the optimizer's step
            return
        self.state.forward_already_ran = True
        try:
            self._take_up()
        except Exception:
            self.state.forward_already_ran = False
            raise
        self._next_forward.arm()  # the weights change then or at the end of the step, whichever comes first
        self._warn_of_late_start("at backward")

    def set_dropout(self) -> None:
        """Give dropout layers the rates that the method wants in this phase."""
        self.context.set_dropout(lowered=self._method.lowers_dropout(self.context.phase))

    def _new_latent(self) -> LatentWeights:
        method, context = self._method, self.context
        return LatentWeights(
            self.context.layers.weights,
            self.context.optimizer,
            self.state,
            effective_weights=partial(method.effective_weights, context),
            latent_gradient=None if method.straight_through else partial(method.latent_gradient, context),
            after_step=partial(method.after_step, context),
        )

    def _record(self, phase: Phase) -> None:
        kept = self.count_kept()
        pruned = 1 - sum(kept.values()) / self.context.layers.size if kept else 0.0
        self.history.append({"step": self.context.step, "phase": phase.name, "kind": phase.kind, "sparsity": pruned})

    def count_kept(self) -> dict[str, int]:
        """Count the weights that each layer keeps, and warn about layers that keep few or none."""
        kept = self.context.count_nonzero(self.context.masks)
        if warning := checks.empty_layers(kept):
            self.context.warn(warning)
        if thin := checks.thin_layers(kept, self.context.layers, self.context.budgets):
            topic = f"thin: {', '.join(thin)}"  # regardless of their numbers
            self.context.warn(checks.nearly_empty(thin, len(kept)), topic)
        return kept

    def _warn_of_emptied(self) -> None:
        """Warn of layers as soon as a rising sparsity takes all they have, once: finish() names those that follow."""
        if not self._emptied and (warning := checks.empty_layers(self.context.count_nonzero(self.context.masks))):
            self._emptied = True
            self.context.warn(warning)

    def _warn_of_unreported_twin(self) -> None:
        twin = self.context.twin
        if self.context.phase.final and self._method.keeps_best_twin() and twin and self.context.best_metric is None:
            self.context.warn(
                'twin="best": no metric was reported in a dense phase, so the twin is the last dense model, from step '
                f"{twin.step:,}; call sparsifier.report_metric(accuracy) after each epoch of a dense phase, or set "
                'twin="last"'
            )

    def _warn_of_late_start(self, moment: str) -> None:
        self.context.warn(
            f"the start of a phase was noticed only {moment}, after a forward pass with the weights of the previous "
            "phase, so its first gradient is taken at those. Forward passes that call no module, or call it with other "
            "tensors (torch.func.functional_call), and CUDA graph replays are not noticed. Call "
            "sparsifier.begin_step() at the top of each training step to make it exact"
        )

    # Hooks

    def _on_forward(self) -> None:
        """Begin a step with its forward pass. One through functional_call reads other tensors: too late."""
        if self.ownership.in_model():
            self.begin_step()

    def _on_backward(self) -> None:
        """Do what is still due when the first gradient of a step arrives; in a sharded model, before the step."""
        if self.state.due and not self.sharded:
            self._take_up_after_forward()
        self._next_forward.release()
        self.state.enter_backward()

    def before_optimizer_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if (several := self._several) is not None:
            if has_closure(args, kwargs):
                raise RuntimeError(
                    "optimizer.step(closure): with several optimizers each closure would compute gradients after "
                    "others have stepped; call backward() once, then step() of each without a closure"
                )
            if not several.begins_step(optimizer):
                self.masking.before_step()  # what was written since the first of them stepped, such as clipped ones
                return
        self._next_forward.release()
        self.ownership.check_next("optimizer.step()")
        closure = has_closure(args, kwargs)
        if self.state.due and not closure and self._writes_weights(self._scheduled_phase()):
            self._warn_of_late_start("at optimizer.step()")  # with a closure the forward pass has yet to run
        self._take_up()
        self._awaits_gradients = closure and self.closures_announce_gradients
        if not self._awaits_gradients:
            self._before_update(optimizer, closure)

    def gradients_ready(self) -> None:
        """Go on where before_optimizer_step left off: the closure has computed the gradients."""
        if self._awaits_gradients:
            self._awaits_gradients = False
            self._before_update(self.context.optimizer, closure=False)

    def _before_update(self, optimizer: Optimizer, closure: bool) -> None:
        observing, latent = self.state.observing, self.state.latent
        if (observing or latent) and step_was_skipped(optimizer):
            return
        if (observing or latent) and closure:
            why = (
                "trains latent weights behind the model's and cannot let a closure compute with them" if latent
                else "looks at gradients before the optimizer's step, when a closure has not computed them yet"
            )  # fmt: skip
            raise RuntimeError(
                f"optimizer.step(closure): {self._method.name} {why}; call the closure yourself, then optimizer.step()"
            )
        if observing:
            with torch.no_grad():
                self._method.observe(self.context)
        self.masking.before_step()
        if not self.state.sparse:
            self._returning.before_step(
                self._method.returning_step(self.context, self.context.step), self.context.memory
            )

    def after_optimizer_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if step_was_skipped(optimizer):
            return
        masking, context = self.masking, self.context
        if self._several is not None and not self._several.ends_step(optimizer):
            self._after_one_of_several(optimizer)
            return
        self._returning.after_step()
        enforced = self.state.masked and not masking.keeps_zeros
        masking.after_step(args, kwargs)
        self._method.notice(context)
        context.step += 1
        self.expect_step()
        if enforced:
            unknown = [type(part).__name__ for part in parts_of(context.optimizer) if not keeps_zeros(part)]
            context.warn(
                f"{' and '.join(unknown)} is not known to keep zero weights at zero: masks are applied "
                "again after every step (one more pass over weights and optimizer state)"
            )
        elif self.state.masked:  # otherwise they were zeroed just now
            self.leaks.after_step(masking.masks, self.context.step - 1, last=self.state.due == "phase")

    def _after_one_of_several(self, optimizer: Optimizer) -> None:
        """Finish the step of one optimizer by itself: a gradient scaler may skip those that follow."""
        trained = {id(param) for group in optimizer.param_groups for param in group["params"]}
        held = [name for name, weight in self.weights.items() if id(weight.param) in trained]
        self._returning.after_step(held)
        if self.state.masked and not keeps_zeros(optimizer):
            self.masking.zero(held)
