"""The result of a run: its sparse model, its dense twin, and how to train the twin further."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from acdc.core.hooks import plain_model, plain_optimizer
from acdc.core.optimizers import evaluation_weights
from acdc.errors import ArgumentError
from acdc.io import verify_safetensors, write_files, write_safetensors_at
from acdc.sparsity import packed
from acdc.sparsity.layers import is_sharded
from acdc.sparsity.sharding import count_nonzero, shards_of

SPARSE = "sparse.safetensors"
DENSE = "dense.safetensors"  # the dense twin
MASKS = "masks.safetensors"

StateDict = dict[str, Any]


@dataclass(frozen=True)
class Twin:
    """Model, optimizer and learning-rate scheduler as they were before step `step`, on the CPU."""

    step: int
    model: StateDict
    optimizer: StateDict
    scheduler: StateDict | None

    @classmethod
    def of(cls, step: int, model: nn.Module, optimizer: Optimizer, scheduler: Any | None) -> "Twin":
        with evaluation_weights(optimizer):
            return cls(
                step=step,
                model=to_cpu(model.state_dict()),
                optimizer=to_cpu(optimizer.state_dict()),
                scheduler=copy.deepcopy(scheduler.state_dict()) if scheduler is not None else None,
            )


@dataclass(frozen=True, repr=False)
class Result:
    """The outcome of one run: two plain state dicts, each loadable into the plain model. `print` it for what to do.

    `dense` is the twin as it was before step `dense_step`, in the middle of the learning-rate schedule: fine-tuning it
    (`finetune_dense`) is what the paper does. It is None if the method keeps no dense model. `masks` are boolean,
    True where a weight was kept.
    """

    sparse: StateDict
    dense: StateDict | None
    dense_step: int | None
    masks: dict[str, Tensor]
    total_steps: int
    twin: Twin | None

    def __repr__(self) -> str:
        twin = f"dense twin of step {self.dense_step:,}" if self.dense_step is not None else "no dense twin"
        return f"<Result after {self.total_steps:,} steps: {self._zeros()}; {twin}>"

    def __str__(self) -> str:
        lines = [
            f"result of {self.total_steps:,} steps: {self._zeros()}",
            "  result.sparse  the sparse model: model.load_state_dict(result.sparse)",
        ]
        if self.dense is not None:
            lines.append(f"  result.dense   its dense twin, as it was before step {self.dense_step:,}")
            lines.append("                 to train it further: acdc.finetune_dense(result, model, optimizer)")
        lines.append("  result.masks   True where a weight was kept")
        lines.append('  result.save("FOLDER") writes them as safetensors; acdc.Result.load("FOLDER") reads them')
        return "\n".join(lines)

    def _zeros(self) -> str:
        size = sum(mask.numel() for mask in self.masks.values())
        if not size:
            return "nothing is pruned"
        layers = f"{len(self.masks):,} layer{'s' if len(self.masks) > 1 else ''}"
        return f"{self.sparsity:.2%} of {size:,} weights pruned, in {layers}"

    @property
    def sparsity(self) -> float:
        """Return pruned / prunable weights. Of a result that stayed sharded, call it in every process."""
        if not self.masks:
            raise RuntimeError('this process holds no result: finish(gather="rank0") gave it to rank 0')
        kept = sum(count_nonzero(self.masks, shards_of(self.masks)).values())
        return 1 - kept / sum(mask.numel() for mask in self.masks.values())

    def save(self, folder: str | Path) -> None:
        """Write sparse.safetensors, dense.safetensors (if there is a twin) and masks.safetensors.

        The sparse model and the masks are packed: `acdc.load` reads any of the three as a plain state dict.
        They do not hold the optimizer's state, which finetune_dense needs beside the twin's weights.
        """
        if any(isinstance(value, Tensor) and is_sharded(value) for value in self.sparse.values()):
            raise RuntimeError('the result is sharded: call finish(gather="rank0"), and save() on rank 0')
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {SPARSE: self.sparse, DENSE: self.dense, MASKS: self.masks}
        existing = [name for name in parts if (folder / name).exists()]
        if existing:
            raise FileExistsError(f"{folder} already holds {', '.join(existing)}; give Result.save a new folder")
        details = {"total_steps": self.total_steps, "dense_step": self.dense_step}
        writers = {
            folder / name: partial(writer_for(name), tensors=part, details=details)
            for name, part in parts.items()
            if part is not None
        }
        write_files(writers)

    @classmethod
    def load(cls, folder: str | Path) -> "Result":
        """Read what `save` wrote, onto the CPU. A file that changed since raises an IntegrityError."""
        folder = Path(folder)
        sparse, details = _read(folder / SPARSE)
        masks, _ = _read(folder / MASKS)
        dense, _ = _read(folder / DENSE) if details["dense_step"] is not None else (None, {})
        return cls(
            sparse=sparse,
            dense=dense,
            dense_step=details["dense_step"],
            masks=masks,
            total_steps=details["total_steps"],
            twin=None,
        )


def writer_for(name: str) -> Callable[..., None]:
    """Return what writes a file of this name: sparse models and masks are packed, others are plain safetensors."""
    return packed.write if name.startswith((Path(SPARSE).stem, Path(MASKS).stem)) else write_safetensors_at


def _read(path: Path) -> tuple[StateDict, dict[str, Any]]:
    """Return the tensors of a file that Result.save wrote, and the details beside them."""
    verify_safetensors(path)
    tensors, details = packed.load_with_details(path, verify=False)
    if not {"total_steps", "dense_step"} <= details.keys():
        raise ValueError(f"{path}: not written by Result.save; read it with acdc.load")
    return tensors, details


def finetune_dense(
    result: Result, model: nn.Module, optimizer: Optimizer | Sequence[Optimizer], scheduler: Any | None = None
) -> range:
    """Put the dense twin back into the model and its momentum into the optimizer, and return the steps left to run.

    The paper's dense fine-tuning (§4) replaces the final compressed phase by dense training from the twin, with the
    same learning-rate schedule and the momentum kept:

        sparsifier.detach()
        for step in acdc.finetune_dense(result, model, optimizer, scheduler):
            ...one training step of the same loop...

    A scheduler is rewound if the sparsifier was attached with it (`acdc.attach(..., scheduler=scheduler)`). With
    twin="best" it is rewound to the best model's step, and all steps from there on remain. `acdc train`, whose rates
    are a function of the step, fine-tunes any twin over the final phase.
    """
    from acdc.core.sparsifier import attached_to  # the sparsifier builds results; only this check looks back

    if result.twin is None:
        why = (
            "it was read from files, which do not hold the optimizer's state"
            if result.dense is not None
            else 'the method that made it keeps none: it has no dense phase, or twin="none"'
        )
        raise ArgumentError("result", allowed=f"it has no dense twin to fine-tune: {why}")
    if attached_to(model) is not None:
        raise RuntimeError("the model has a sparsifier, which would prune the twin; call sparsifier.detach() first")
    if scheduler is not None and result.twin.scheduler is None:
        raise ArgumentError(
            "scheduler",
            allowed="its state at the twin's step was not kept",
            instead="attach with acdc.attach(..., scheduler=scheduler), or rewind it yourself to result.dense_step",
        )
    plain_model(model).load_state_dict(result.twin.model)
    plain_optimizer(optimizer).load_state_dict(copy.deepcopy(result.twin.optimizer))
    if scheduler is not None:
        scheduler.load_state_dict(copy.deepcopy(result.twin.scheduler))
    return range(result.twin.step, result.total_steps)


def to_cpu(value: Any) -> Any:
    return to_device(value, torch.device("cpu"))


def to_device(value: Any, device: torch.device) -> Any:
    """Copy nested dicts, lists and tensors to a device; the copy shares no memory with the original."""
    if isinstance(value, Tensor):
        return value.detach().to(device, copy=True)
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [to_device(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return copy.deepcopy(value)
