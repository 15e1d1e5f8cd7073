"""The sparsifier that a user gets by attaching a method to a model and its optimizer.

It leaves the model plain: parameters stay plain tensors under their own names, and masks live outside. stepper.py
counts steps and begins phases.
"""

import math
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from acdc.core.checks import check_finished, check_types, check_values
from acdc.core.gathered_state import gather_state, split_state
from acdc.core.hooks import is_first_process, plain_model, plain_optimizer, untraced
from acdc.core.method import Method
from acdc.core.optimizers import parts_of
from acdc.core.result import Result, StateDict, Twin, to_cpu, to_device
from acdc.core.sharded_state import (
    Gather,
    check_gather,
    flatten,
    gather_tensors,
    is_kept,
    read_checkpoint,
    unflatten,
)
from acdc.core.state_dict import check_fit, check_identity, check_structure
from acdc.core.stepper import Stepper
from acdc.core.summary import Summary
from acdc.errors import ArgumentError
from acdc.schedule import Phase
from acdc.sparsity import masks as working
from acdc.sparsity.layers import Layers, is_sharded, local_part, state_name

# The optimizer's hooks keep a sparsifier alive; these are only weak references to it.
_attached: "weakref.WeakKeyDictionary[nn.Module | Optimizer, weakref.ref[Sparsifier]]" = weakref.WeakKeyDictionary()


def attach(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    method: Method,
    *,
    steps_per_epoch: int | None = None,
    scheduler: Any | None = None,
    quiet: bool = False,
) -> "Sparsifier":
    """Attach a method to a model and its optimizer; the training loop stays as it is.

    `steps_per_epoch` is the number of optimizer steps in an epoch (len(loader), divided by the gradient accumulation);
    a schedule written in steps does not need it. `scheduler` is only stored with the dense twin, for finetune_dense.
    What the method chose for this number of epochs and steps, and why, is printed in two lines, by one process of
    several, unless `quiet`; `sparsifier.choices` holds them too.

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

    To resume, build and attach all three in the same way, then load their states:

        states = torch.load("checkpoint.pt", weights_only=True)
        for part, state in zip((model, optimizer, sparsifier), states):
            part.load_state_dict(state)

    If several optimizers train the weights, pass a list of them, in the order in which they step: a step is counted
    when the last has stepped. Methods that look at gradients or train latent weights need one optimizer.
    """
    sparsifier = Sparsifier(model, optimizer, method, steps_per_epoch=steps_per_epoch, scheduler=scheduler)
    try:
        check_values(sparsifier.layers)
    except ArgumentError:
        sparsifier.detach()
        raise
    if not quiet and is_first_process():
        for line in sparsifier.choices:
            print(line, file=sys.stderr)
    return sparsifier


def attached_to(target: nn.Module | Optimizer) -> "Sparsifier | None":
    """Return the sparsifier attached to this model or optimizer, if any."""
    reference = _attached.get(plain_model(target) if isinstance(target, nn.Module) else plain_optimizer(target))
    return reference() if reference is not None else None


class Sparsifier:
    """The object that keeps a model sparse as its method and schedule require; see `attach`.

    method   the method, with its schedule and knobs, and all that it chose for this number of steps
    context  the run as the method sees it: weights, budgets, the twin so far, what the method remembers
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        method: Method,
        *,
        steps_per_epoch: int | None = None,
        scheduler: Any | None = None,
    ) -> None:
        check_types(model, optimizer, method)
        self.method = method = method.for_steps(steps_per_epoch)
        self._model, self._optimizer = plain_model(model), plain_optimizer(optimizer)
        for target in (self._model, *parts_of(self._optimizer)):
            if attached_to(target) is not None:
                raise RuntimeError(
                    f"this {type(target).__name__} already has a sparsifier; call .detach() on that one first"
                )
        self._stepper = Stepper(
            self._model, self._optimizer, method, called=model, steps_per_epoch=steps_per_epoch, scheduler=scheduler
        )
        self.context = self._stepper.context
        for target in (self._model, *parts_of(self._optimizer)):
            _attached[target] = weakref.ref(self)
        self._step_hooks: list[RemovableHandle] = []
        for part in parts_of(self._optimizer):
            self._step_hooks += [
                part.register_step_pre_hook(untraced(self._stepper.before_optimizer_step)),
                part.register_step_post_hook(untraced(self._stepper.after_optimizer_step)),
                # This one refers to the sparsifier: it lives as long as its optimizers, even if the user drops it.
                part.register_load_state_dict_post_hook(lambda _: self._stepper.leaks.restart()),
            ]
        try:
            self._stepper.expect_step()
        except Exception:  # the method refuses: nothing may stay attached
            self.detach()
            raise

    # Properties

    @property
    def layers(self) -> Layers:
        """Return the prunable weights, and why others are left dense."""
        return self.context.layers

    @property
    def choices(self) -> tuple[str, ...]:
        """What the method chose by itself and why, in two lines; none where a schedule was given."""
        return self.method.choices_made(self._model)

    @property
    def step(self) -> int:
        """Return the number of optimizer steps so far, which is the index of the next one."""
        return self.context.step

    @property
    def total_steps(self) -> int:
        """Return the number of optimizer steps in the whole schedule; those so far if the method has no end."""
        return self.context.total_steps if self.method.ends else self.step

    @property
    def phase(self) -> Phase:
        """Return the phase that the model is in. It changes when the next phase's first step begins."""
        return self.context.phase

    @property
    def history(self) -> list[dict[str, Any]]:
        """Return the phases so far: step, name, kind and sparsity at the start of each."""
        return self._stepper.history

    @property
    def masks(self) -> dict[str, Tensor]:
        """Return boolean masks by name, True where a weight is kept; empty in dense phases.

        Masks of sharded weights are DTensors, sharded like them.
        """
        return self.context.sharded_masks()

    @property
    def layer_sparsity(self) -> dict[str, float]:
        """Return the current share of zeros in each prunable layer.

        Of a sharded model this, `sparsity`, summary() and finish() count over all processes: call them in each.
        """
        sizes = {name: weight.param.numel() for name, weight in self._stepper.weights.items()}
        return {name: 1 - count / max(1, sizes[name]) for name, count in self._count_weights("layer_sparsity").items()}

    @property
    def sparsity(self) -> float:
        """Return the current share of zeros among all prunable weights."""
        return 1 - sum(self._count_weights("sparsity").values()) / self.layers.size

    def _count_weights(self, action: str) -> dict[str, int]:
        """Count the weights of each layer that are not 0."""
        self._stepper.ownership.check_model(action)
        return self.context.count_nonzero({name: weight.local for name, weight in self._stepper.weights.items()})

    def summary(self, example: Any | None = None) -> Summary:
        """Summarize layers, phases so far and, given an example input (a tensor or a tuple of arguments), FLOPs."""
        if example is not None and self._stepper.sharded:
            raise ArgumentError(
                "example",
                allowed="FLOPs are counted on whole weights, and this model is sharded",
                instead="load the gathered sparse model into a plain one and call acdc.flops.count(model, example)",
            )
        return Summary.of(
            self._model,
            self.layers,
            self._stepper.history,
            nonzeros=self._count_weights("summary()"),
            headline=repr(self).strip("<>"),
            example=example,
        )

    def __repr__(self) -> str:
        return (
            f"<Sparsifier {self.method.name}: step {self.step} of {self.total_steps}, {self.phase.name} phase, "
            f"{len(self._stepper.weights)} layers, {self.layers.size:,} prunable weights>"
        )

    # Calls from the training loop

    def begin_step(self) -> None:
        """Begin a training step. Only loops that hooks cannot observe (CUDA graph replays) need to call this."""
        self._refuse_if_detached("begin_step")
        self._stepper.begin_step()

    def mask_gradients(self) -> None:
        """Mask the step's gradients now, whoever wrote them. They must be complete and unscaled.

        Gradients are masked as backward writes them. Two kinds of loops need this call: those that change gradients
        where PyTorch does not notice (p.grad.data, numpy), after the change; and those that clip while RigL or SNFS
        is attached, before clipping. In steps in which a method looks at unmasked gradients, they are masked only
        when the optimizer's step begins, so clipping would see a larger norm than that of the gradients used.
        """
        self._refuse_if_detached("mask_gradients")
        self._stepper.mask_gradients()

    def expect_gradients_ready(self) -> None:
        """Promise that closures passed to the optimizer's step call gradients_ready() when backward is done.

        Methods that look at gradients before the step, or train latent weights, refuse other closures.
        """
        self._refuse_if_detached("expect_gradients_ready")
        self._stepper.closures_announce_gradients = True

    def gradients_ready(self) -> None:
        """Tell, inside a closure, that the step's gradients are complete; elsewhere this does nothing."""
        self._refuse_if_detached("gradients_ready")
        self._stepper.gradients_ready()

    def set_step(self, step: int) -> None:
        """Set the number of optimizer steps that have run, for hosts that count them better."""
        if isinstance(step, bool) or not isinstance(step, int) or step < 0:
            allowed = "expected the number of optimizer steps run so far, 0 or more"
            raise ArgumentError("step", received=step, allowed=allowed)
        self._refuse_if_detached("set_step")
        self.context.step = step
        self._stepper.expect_step()

    def report_metric(self, metric: SupportsFloat) -> None:
        """Report the quality of the current model; higher is better. With twin="best" the best dense model is kept.

        Call it after the learning-rate scheduler's step, so that the twin is stored with the rate it continues with.
        """
        value = float(metric)
        if not math.isfinite(value):
            allowed = "expected a finite number, higher is better"
            raise ArgumentError("metric", received=value, allowed=allowed, instead="negate a loss")
        context = self.context
        if not self.method.keeps_best_twin():
            context.warn('report_metric() has no effect: it is not the best dense model that is kept; set twin="best"')
        elif self.phase.kind == "dense" and (context.best_metric is None or value > context.best_metric):
            context.keep_twin()
            context.best_metric = value

    def apply_masks(self, model: nn.Module) -> None:
        """Zero the pruned weights of a model of the same kind, such as an average of this one's weights.

        In a dense phase nothing is pruned, so this does nothing.
        """
        named = plain_model(model).named_parameters(remove_duplicate=False)
        parameters = {state_name("", name): param for name, param in named}
        masks = self.masks
        if missing := [name for name in masks if name not in parameters]:
            allowed = f"it has no {', '.join(missing[:3])}"
            raise ArgumentError("model", allowed=allowed, instead="pass apply_masks a copy of the model")
        for name, mask in masks.items():
            param = parameters[name]
            if is_sharded(mask) and not is_sharded(param):
                mask = mask.full_tensor()  # pyright: ignore[reportAttributeAccessIssue]
            working.apply_(local_part(param), working.from_bool(local_part(mask)).to(param.device))

    # The end

    def finish(self, *, early: bool = False, gather: Gather = "nowhere") -> Result:
        """Return the sparse model and its dense twin.

        `early=True` accepts a run stopped in its final phase. Those of a sharded model stay sharded, on the host,
        unless `gather` asks for whole tensors on "rank0" (elsewhere the result is then empty) or "everywhere".
        """
        check_gather(gather)
        self._refuse_if_detached("finish")
        self._stepper.ownership.check("finish()")
        context = self.context
        ends_dense = context.sparse_model is not None and self.phase.final and self.phase.kind == "dense"
        if not ends_dense and not (self.phase.final and self._stepper.state.sparse):
            raise RuntimeError(
                f"finish() at step {self.step} of {self.total_steps}, in a {self.phase.name} phase: the sparse model "
                "exists only in the final compressed phase. Continue training, or use a shorter schedule. If your loop "
                f"is over: {self._counted()}steps of another optimizer are not counted, and a resumed run needs "
                f"sparsifier.load_state_dict\n{self.method.schedule}"
            )
        if not early and (warning := check_finished(self.step, self.total_steps, self._counted())):
            context.warn(warning)
        if ends_dense:
            context.keep_twin()
        else:
            self._stepper.leaks.check_finished(self._stepper.masking.masks)
            self._stepper.count_kept()  # a method may have raised the sparsity since the phase began
        sparse, masks = (context.sparse_model if ends_dense else None) or context.copy_sparse()
        twin = context.twin
        return Result(
            sparse=gather_tensors(sparse, gather),
            dense=gather_tensors(twin.model, gather) if twin else None,
            dense_step=twin.step if twin else None,
            masks=gather_tensors(masks, gather),
            total_steps=self.total_steps,
            twin=twin,
        )

    def _counted(self) -> str:
        """Return what steps_per_epoch should have been, if the loop has run all its epochs in the steps seen."""
        given, step, total = self.context.steps_per_epoch, self.step, self.total_steps
        if given is None or not step:
            return ""
        whole = total / step == total // step
        factor = f"1/{total // step} of" if whole else f"{step / total:.2%} of"
        if step > total:
            factor = f"{step / total:.3g} times"
        right = max(1, round(given * step / total))
        if right == given:  # some steps more or less, and not a wrong number of them in every epoch
            return f"it took {factor} the steps planned; "
        return (
            f"it took {factor} the steps planned, so if it ran all its epochs, write steps_per_epoch={right:,}, not "
            f"{given:,} (optimizer steps: len(loader) // accumulation); "
        )

    def detach(self) -> None:
        """Remove every hook, for good. The weights stay as they are, but nothing keeps them sparse any more."""
        for handle in self._step_hooks:
            handle.remove()
        self._step_hooks = []
        self._stepper.stop()
        for target in (self._model, *parts_of(self._optimizer)):
            if attached_to(target) is self:
                del _attached[target]

    def _refuse_if_detached(self, verb: str) -> None:
        if not self._stepper.state.attached:
            raise RuntimeError(f"{verb}() after detach(): masks and steps are gone; call {verb}() first")

    def __reduce__(self) -> Any:
        raise TypeError("a sparsifier holds hooks, so it cannot be copied or pickled; save its state_dict() instead")

    # Checkpoints

    def state_dict(self, *, gather: Gather = "nowhere") -> StateDict:
        """Return plain data and tensors, to be saved with those of the model and the optimizer; see `attach`.

        Save it with torch.save, and load it with weights_only=True. On a sharded model it is a flat mapping to tensors,
        for torch.distributed.checkpoint; see load_checkpoint. `gather` then asks for the state dict of a model that is
        not sharded, on "rank0" (elsewhere it is empty) or "everywhere", which any number of processes can load.
        """
        check_gather(gather)
        self._refuse_if_detached("state_dict")
        self._stepper.ownership.check("state_dict()")
        context = self.context
        state = {
            **self._identity(),
            "step": self.step,
            "phase": self.phase.index,
            **self._stepper.masking.state_dict(),
            "history": [dict(event) for event in self._stepper.history],
            "best_metric": context.best_metric,
            "twin": dict(vars(context.twin)) if context.twin else None,
            "memory": to_cpu(context.memory),
            "kept_sparse": list(context.sparse_model) if context.sparse_model else None,
        }
        if not self._stepper.sharded:
            return state
        flat = flatten(state, self._stepper.weights)
        return flat if gather == "nowhere" else gather_state(flat, self._stepper.weights, is_kept(gather))

    def load_checkpoint(self, folder: str | Path, key: str = "sparsifier") -> None:
        """Resume a sharded run, on any number of processes, from a folder of torch.distributed.checkpoint.

            dcp.save({"model": ..., "sparsifier": sparsifier.state_dict()}, checkpoint_id=folder)
            ...
            sparsifier.load_checkpoint(folder)

        `key` is the name under which the sparsifier's state was saved. Model and optimizer load their own state.
        """
        if not self._stepper.sharded:
            raise RuntimeError(
                "load_checkpoint() is for sharded models, and this one is not sharded: read the state dict with "
                "torch.load(path, weights_only=True) and call sparsifier.load_state_dict(state)"
            )
        self.load_state_dict(read_checkpoint(folder, key, self._stepper.weights))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where `state` was saved. Model and optimizer load their own state, before or after this."""
        self._refuse_if_detached("load_state_dict")
        self._stepper.ownership.check("load_state_dict()")
        # Gathered, or of a model that was not sharded: others have dotted names only.
        whole = not self._stepper.sharded or (isinstance(state, Mapping) and "masks" in state)
        if not whole:
            state = unflatten(state, self._stepper.weights)
        check_structure(state)
        check_identity(state, self._identity(), off=self.method.off)
        owners = {"model": self._model, "optimizer": self._optimizer}
        check_fit(state, method=self.method, layers=self.layers, whole=whole, **owners)
        if whole and self._stepper.sharded:
            state = split_state(state, self._stepper.weights, **owners)
        self._stepper.masking.load_state_dict(state)
        self._stepper.leaks.restart()
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
        self._stepper.set_dropout()
        kept = state["kept_sparse"]
        context.sparse_model = (kept[0], kept[1]) if kept else None
        self._stepper.history = [dict(event) for event in state["history"]]
        self._stepper.expect_step()

    def _identity(self) -> dict[str, Any]:
        return {
            "version": 1,
            "method": self.method.name,
            "config": self.method.config(self._model),
            "steps_per_epoch": self.context.steps_per_epoch,
            "layers": {name: list(weight.param.shape) for name, weight in self._stepper.weights.items()},
        }
