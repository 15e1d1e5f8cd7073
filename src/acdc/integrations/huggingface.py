"""Sparse training in Hugging Face's Trainer, by a callback.

    trainer = Trainer(..., callbacks=[SparsifierCallback(acdc.ACDC(sparsity=0.9, epochs=3))])   # num_train_epochs=3
    trainer.train()                    # resume_from_checkpoint=True works as ever

`resume_from_checkpoint=newest_checkpoint(output_dir)` is safer: it skips checkpoints that are damaged, or that were
being written when the process was killed.

The Trainer's output_dir then has two models that from_pretrained reads: `sparse`, and `dense`, its dense twin.
"""

import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback  # pyright: ignore[reportMissingImports]

from acdc.core.context import SparsityWarning
from acdc.core.method import Method
from acdc.core.result import Result
from acdc.core.sparsifier import Sparsifier, attach, attached_to
from acdc.errors import ArgumentError
from acdc.integrations import sealed_folders
from acdc.integrations.host import StateError, check_method, finish, fit_steps, read_state, write_state
from acdc.io import write_safetensors

STATE = "acdc.pt"  # in each of the Trainer's checkpoints
_HOST = "the Trainer"


class SparsifierCallback(TrainerCallback):
    """Attaches a method when the Trainer begins to train, saves its state with every checkpoint, and ends it.

    The method's epochs are the Trainer's num_train_epochs; with max_steps they are equal shares of the run.
    `save=False` writes no models to output_dir. `resume_from` is the checkpoint that trainer.train resumes from, for
    checkpoints that lie outside output_dir. With twin="best", args.metric_for_best_model chooses the twin.

    sparsifier  the sparsifier, from the beginning of training on
    result      the sparse model and its dense twin, once training has ended
    """

    def __init__(self, method: Method, *, save: bool = True, resume_from: str | Path | None = None) -> None:
        check_method(method, "SparsifierCallback")
        self.method, self._save = method, save
        self._resume_from = Path(resume_from) if resume_from is not None else None
        self.sparsifier: Sparsifier | None = None
        self._outcome: Result | str = "training has not begun: call trainer.train() first"

    @property
    def result(self) -> Result:
        """Return the sparse model and its dense twin; raise if training did not get so far."""
        if isinstance(self._outcome, str):
            raise RuntimeError(f"SparsifierCallback.result: {self._outcome}")
        return self._outcome

    # The Trainer's events

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Any = None, optimizer: Any = None, **others: Any
    ) -> None:
        _check_arguments(args)
        if self.sparsifier is not None:  # of a call of trainer.train() that was interrupted
            self.sparsifier.detach()
            self.sparsifier = None
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise ArgumentError(
                "optimizer",
                allowed=f"{_HOST} has no torch optimizer when training begins, but {type(optimizer).__name__}",
                instead="pass optimizers=(optimizer, scheduler) to the Trainer, or train without DeepSpeed",
            )
        if attached_to(model) is not None:
            raise RuntimeError(
                "this model already has a sparsifier: the Trainer has two SparsifierCallbacks, or acdc.attach was "
                "called as well. Remove one: trainer.remove_callback(callback), or sparsifier.detach()"
            )
        self._outcome = "training is under way"
        self.sparsifier = attach(
            model,
            optimizer,
            self.method,
            steps_per_epoch=self._steps_per_epoch(args, state, others.get("train_dataloader")),
            scheduler=others.get("lr_scheduler"),
            quiet=state.global_step > 0,
        )
        if state.global_step:
            try:
                self._resume(args, state)
            except Exception:  # nothing may stay attached
                self.sparsifier.detach()
                raise

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Follow the Trainer's count, which includes steps that a gradient scaler skipped."""
        if self.sparsifier is not None and self.sparsifier.step != state.global_step:
            self.sparsifier.set_step(state.global_step)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **others: Any) -> None:
        key = args.metric_for_best_model
        if self.sparsifier is None or not key or not self.sparsifier.method.keeps_best_twin():
            return
        value = (metrics or {}).get(key if key.startswith("eval_") else f"eval_{key}")
        if value is not None:
            self.sparsifier.report_metric(value if args.greater_is_better else -value)

    def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self.sparsifier is None or not args.should_save:
            return
        folder = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if folder.is_dir():
            write_state(folder / STATE, self.sparsifier)
            several = args.world_size > 1  # each process writes a file of its own, and may not have written it yet
            sealed_folders.seal(folder, without=[p.name for p in folder.glob("rng_state_*")] if several else ())
        else:
            self.sparsifier.context.warn(
                f"{folder} is not where {_HOST} saves its checkpoints, so they hold no {STATE} and cannot be resumed"
            )

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        sparsifier = self.sparsifier
        if sparsifier is None:
            return
        self._outcome = finish(sparsifier)
        if isinstance(self._outcome, str):
            warnings.warn(self._outcome, SparsityWarning, stacklevel=2)
        elif self._save and args.should_save:
            _save_models(Path(args.output_dir), model, self._outcome)
        sparsifier.detach()
        self.sparsifier = None

    # Parts of on_train_begin

    def _steps_per_epoch(self, args: Any, state: Any, loader: Any) -> int | None:
        try:
            batches = len(loader)
        except TypeError:  # of an IterableDataset
            batches = 0
        per_epoch = -(-batches // args.gradient_accumulation_steps) or None
        by_steps = args.max_steps > 0
        return fit_steps(self.method, total=state.max_steps, per_epoch=per_epoch, by_steps=by_steps, host=_HOST)

    def _resume(self, args: Any, state: Any) -> None:
        assert self.sparsifier is not None
        given = args.resume_from_checkpoint  # a script may have set it; the Trainer itself ignores it
        usual = Path(args.output_dir, f"checkpoint-{state.global_step}")
        folder = self._resume_from or (Path(given) if isinstance(given, str) and Path(given).is_dir() else usual)
        path = folder / STATE
        if not path.is_file():
            raise StateError(
                f"{path}: there is no such file, but {_HOST} resumes at step {state.global_step:,}. If it resumes from "
                'another folder, write SparsifierCallback(..., resume_from="FOLDER"); if that one was saved without a '
                "SparsifierCallback, or by a process that was killed meanwhile, resume from an earlier one: "
                "resume_from_checkpoint=newest_checkpoint(output_dir) finds it"
            )
        read_state(path, self.sparsifier)


def newest_checkpoint(output_dir: str | Path) -> str | None:
    """Return the newest checkpoint that is as it was written, for resume_from_checkpoint; None if there is none.

    A warning names those that are skipped. SparsifierCallback writes the digests of the Trainer's files last.
    """
    found = sealed_folders.newest_intact(output_dir, "checkpoint-*")
    return None if found is None else str(found)


def _check_arguments(args: Any) -> None:
    if args.load_best_model_at_end:
        raise ArgumentError(
            "load_best_model_at_end",
            received=True,
            allowed="the best checkpoint may be one of a dense phase, which is not sparse",
            instead='set it to False: the model after the last step is the sparse one. ACDC(..., twin="best") keeps '
            "the best dense model",
        )


def _save_models(folder: Path, model: Any, result: Result) -> None:
    """Write the sparse model and its dense twin, each a folder that appears when it is complete."""
    for name, state in (("sparse", result.sparse), ("dense", result.dense)):
        if state is None:
            continue
        target, temporary = folder / name, folder / f".{name}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        if hasattr(model, "save_pretrained"):
            model.save_pretrained(temporary, state_dict=dict(state))  # which it empties
        else:
            write_safetensors({temporary / "model.safetensors": state})
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
