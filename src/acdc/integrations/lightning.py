"""Sparse training in Lightning, by a callback.

    trainer = Trainer(max_epochs=100, callbacks=[SparsifierCallback(acdc.ACDC(sparsity=0.9, epochs=100))])
    trainer.fit(module, loader)        # ckpt_path="last" works as ever

Afterwards the module is sparse, and callback.result holds it and its dense twin.
"""

import math
import warnings
from collections.abc import Mapping
from typing import Any

from acdc.core.context import SparsityWarning
from acdc.core.method import Method
from acdc.core.result import Result
from acdc.core.sparsifier import Sparsifier, attach, attached_to
from acdc.errors import ArgumentError
from acdc.integrations.host import StateError, check_method, dump_state, finish, fit_steps, load_state

try:
    from lightning.pytorch import Callback  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:  # the same package under its former name
    from pytorch_lightning import Callback  # pyright: ignore[reportMissingImports]

_HOST = "Lightning's Trainer"


class SparsifierCallback(Callback):
    """Attaches a method when training begins, keeps its state in every checkpoint, and ends it.

    The method's epochs are the Trainer's max_epochs; with max_steps they are equal shares of the run. With twin="best",
    `monitor` names the logged metric that chooses the twin, and `mode` says whether it should be "min" or "max".

    sparsifier  the sparsifier, from the beginning of training on
    result      the sparse model and its dense twin, once training has ended
    """

    def __init__(self, method: Method, *, monitor: str | None = None, mode: str = "max") -> None:
        check_method(method, "SparsifierCallback")
        if mode not in ("min", "max"):
            raise ArgumentError("mode", received=mode, allowed='expected "min" or "max"')
        self.method, self._monitor, self._sign = method, monitor, 1 if mode == "max" else -1
        self.sparsifier: Sparsifier | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._outcome: Result | str = "training has not begun: call trainer.fit() first"

    @property
    def result(self) -> Result:
        """Return the sparse model and its dense twin; raise if training did not get so far."""
        if isinstance(self._outcome, str):
            raise RuntimeError(f"SparsifierCallback.result: {self._outcome}")
        return self._outcome

    # Lightning's events

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._detach()  # from a call of trainer.fit() that was interrupted
        if attached_to(pl_module) is not None:
            raise RuntimeError(
                "this module already has a sparsifier: the Trainer has two SparsifierCallbacks, or acdc.attach was "
                "called as well. Remove one, or call sparsifier.detach()"
            )
        optimizer = _only_optimizer(trainer.optimizers)
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        self._outcome, loaded, self._loaded = "training is under way", self._loaded, None
        self.sparsifier = attach(
            pl_module,
            optimizer,
            self.method,
            steps_per_epoch=self._steps_per_epoch(trainer),
            scheduler=schedulers[0] if len(schedulers) == 1 else None,
            quiet=loaded is not None,
        )
        self.sparsifier.expect_gradients_ready()  # Lightning passes closures, and says when their gradients are there
        try:
            if loaded is not None:
                load_state(loaded, self.sparsifier, "the checkpoint")
            elif trainer.global_step:
                raise StateError(
                    f"{_HOST} resumes at step {trainer.global_step:,} from a checkpoint without the state of a "
                    "SparsifierCallback: resume from one that was saved with it, and not with save_weights_only=True"
                )
        except Exception:  # nothing may stay attached
            self._detach()
            raise

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self.sparsifier is not None:
            self.sparsifier.gradients_ready()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *others: Any) -> None:
        """Follow Lightning's count, which includes steps that a gradient scaler skipped."""
        if self.sparsifier is not None and self.sparsifier.step != trainer.global_step:
            self.sparsifier.set_step(trainer.global_step)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self.sparsifier is None or self._monitor is None or not self.sparsifier.method.keeps_best_twin():
            return
        if self._monitor not in (metrics := trainer.callback_metrics):
            allowed = f"the module logs {', '.join(metrics) or 'nothing'}"
            raise ArgumentError("monitor", received=self._monitor, allowed=allowed, instead="log it in validation_step")
        self.sparsifier.report_metric(self._sign * float(metrics[self._monitor]))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.sparsifier is None:
            return
        self._outcome = finish(self.sparsifier)
        if isinstance(self._outcome, str):
            warnings.warn(self._outcome, SparsityWarning, stacklevel=2)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._detach()  # not before, as other callbacks may save a checkpoint when training ends

    def state_dict(self) -> dict[str, Any]:
        return dump_state(self.sparsifier) if self.sparsifier is not None else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict or None  # the optimizer does not exist yet

    def _detach(self) -> None:
        if self.sparsifier is not None:
            self.sparsifier.detach()
            self.sparsifier = None

    def _steps_per_epoch(self, trainer: Any) -> int | None:
        total, batches = trainer.estimated_stepping_batches, trainer.num_training_batches
        if not math.isfinite(total):
            allowed = "training has no end, and a method must know it"
            raise ArgumentError("max_epochs", received=trainer.max_epochs, allowed=allowed, instead="write max_steps=…")
        per_epoch = math.ceil(batches / trainer.accumulate_grad_batches) if math.isfinite(batches) else None
        by_steps = trainer.max_steps > 0
        return fit_steps(self.method, total=int(total), per_epoch=per_epoch, by_steps=by_steps, host=_HOST)


def _only_optimizer(optimizers: Any) -> Any:
    if len(optimizers) != 1:
        raise ArgumentError(
            "configure_optimizers",
            allowed=f"it returned {len(optimizers)} optimizers, but a sparsifier works with one",
            instead="return one optimizer, with param_groups for parts that need other settings",
        )
    return optimizers[0]
