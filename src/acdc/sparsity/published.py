"""Reads checkpoints of the published AC/DC code (github.com/IST-DASLab/ACDC, and WoodFisher, whose layout it shares).

That code wraps every convolution and linear layer, and saves a wrapped model, often under torch.nn.DataParallel:

    epoch, model_config       the last epoch, and {"arch": "wideresnet", "dataset": "cifar100"}
    model_state_dict          [module.]conv1._layer.weight, conv1._layer.bias, and masks as floats 0 and 1:
                              conv1._weight_mask, conv1._bias_mask; files for evaluation have plain names
    optimizer, lr_scheduler   state dicts, each beside a pickled class

Pruned weights may be off 0 in such a file, as masks are applied in the next forward pass; here they are 0. No class
that a file names is imported: torch's weights_only reader puts inert stand-ins in their place, and they are dropped.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acdc.errors import ArgumentError, ArgumentTypeError, Shown

_WRAPPED = "_layer"
_MASKS = {"_weight_mask": "weight", "_bias_mask": "bias"}

# Published names that differ from those of acdc.models, by architecture; each is the start of a name.
_STAGES = tuple((rf"layer{number}\.", rf"stages.{number - 1}.") for number in (1, 2, 3))
_WIDE_RESNET = (*_STAGES, (r"(stages\.\d+\.\d+\.shortcut)\.0\.", r"\1."), (r"bn1\.", "bn."), (r"linear\.", "fc."))
_CIFAR_RESNET = (*_STAGES, (r"(stages\.\d+\.\d+)\.downsample\.", r"\1.shortcut."))
_MOBILENET = (
    (r"model\.0\.0\.", "conv1."),
    (r"model\.0\.1\.", "bn1."),
    *(
        (rf"model\.{number}\.{index}\.", f"pairs.{number - 1}.{name}.")
        for number in range(1, 14)
        for index, name in ((0, "depthwise"), (1, "bn1"), (3, "pointwise"), (4, "bn2"))
    ),
)


@dataclass(frozen=True, kw_only=True)
class PublishedCheckpoint:
    """What a checkpoint of the published code holds, as plain tensors.

    weights        a state dict with plain names, those of acdc.models for its architectures; pruned weights are 0
    masks          boolean masks by name, True where a weight is kept; none if the file has none
    arch, dataset  the architecture and data set in its model_config, if any
    epoch          the last epoch that was trained, if any
    """

    weights: dict[str, Tensor]
    masks: dict[str, Tensor]
    arch: str | None
    dataset: str | None
    epoch: int | None


def from_published(source: str | Path | Mapping[str, Any], *, arch: str | None = None) -> PublishedCheckpoint:
    """Return the weights and masks of a checkpoint that the published AC/DC code saved: a file, or what is in it.

        checkpoint = acdc.from_published("best_sparse_checkpoint.ckpt")
        model = acdc.models.build("wrn28_10", classes=100)
        model.load_state_dict(checkpoint.weights)
        acdc.keep_masks(model, optimizer)

    `arch` is the published name of the architecture ("wideresnet", "mobilenet", "resnet20", …), for a bare state dict,
    which does not say. Names of the published WRN-28-10, MobileNet and CIFAR ResNets become those of acdc.models;
    its ImageNet ResNets have the same names already, and those of other models stay.
    """
    if not isinstance(source, str | Path | Mapping):
        raise ArgumentTypeError("source", received=source, allowed="expected a path, or the dict in such a file")
    content = source if isinstance(source, Mapping) else _read(Path(source))
    state, config = _find_state(content), content.get("model_config")
    config = config if isinstance(config, Mapping) else {}
    arch = arch or config.get("arch")
    weights, masks = _unwrap(state)
    rules = _rules(arch, weights)
    epoch = content.get("epoch")
    return PublishedCheckpoint(
        weights={_rename(name, rules): tensor for name, tensor in weights.items()},
        masks={_rename(name, rules): mask for name, mask in masks.items()},
        arch=arch,
        dataset=config.get("dataset"),
        epoch=epoch if isinstance(epoch, int) else None,
    )


class _Dropped:
    """A stand-in for whatever class or function a checkpoint names: it takes any arguments and does nothing."""

    def __new__(cls, *_: Any) -> "_Dropped":
        return super().__new__(cls)

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _read(path: Path) -> Mapping[str, Any]:
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except (ValueError, EOFError, pickle.UnpicklingError):  # not a zip file: torch before 1.6, or something else
        names = []
    try:
        with torch.serialization.safe_globals([(_Dropped, name) for name in names]):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ArgumentError(
            "source",
            received=Shown(str(path)),
            allowed=f"torch cannot read it without running code that the file names ({_first_line(error)})",
            instead="if you trust it, read it where it was made and save its tensors alone: "
            'torch.save({"model_state_dict": checkpoint["model_state_dict"]}, path)',
        ) from None
    if not isinstance(content, Mapping):
        raise ArgumentError(
            "source",
            received=Shown(str(path)),
            allowed="it holds a pickled object, perhaps a whole model, whose classes are never imported from a file",
            instead="read it where it was made and save model.state_dict()",
        )
    return content


def _find_state(content: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of the model in a checkpoint, which may be nothing else."""
    state = next((content[key] for key in ("model_state_dict", "state_dict") if key in content), content)
    if not isinstance(state, Mapping) or not state or not all(isinstance(value, Tensor) for value in state.values()):
        found = ", ".join(map(str, list(content)[:5])) or "nothing"
        raise ArgumentError(
            "source",
            allowed=f"it has no model_state_dict of tensors, only {found}",
            instead="pass a checkpoint that the published code saved (*.ckpt), or a state dict",
        )
    prefix = "module." if all(name.startswith("module.") for name in state) else ""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def _unwrap(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return plain weights, 0 where masks prune, and the masks that belong to weights, or prune biases."""
    weights: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name, tensor in state.items():
        *modules, last = [part for part in name.split(".") if part != _WRAPPED]
        plain = ".".join([*modules, _MASKS.get(last, last)])
        if last in _MASKS:
            if not ((tensor == 0) | (tensor == 1)).all():
                raise ArgumentError(f"source[{name!r}]", allowed="a mask is 0 or 1 everywhere, and this one is not")
            masks[plain] = tensor.bool() & masks.get(plain, torch.tensor(True))  # wrapped twice: two masks
        elif plain in weights:
            raise ArgumentError(f"source[{name!r}]", allowed=f"two of its entries are called {plain} without wrappers")
        else:
            weights[plain] = tensor
    for name, mask in masks.items():
        if name not in weights or weights[name].shape != mask.shape:
            there = f"{list(weights[name].shape)}" if name in weights else "absent"
            allowed = f"its mask has shape {list(mask.shape)}, but the weight is {there}"
            raise ArgumentError(f"source[{name!r}]", allowed=allowed, instead="pass the checkpoint of one model")
        weights[name] = weights[name].masked_fill(~mask, 0)
    return weights, {name: mask for name, mask in masks.items() if name.endswith("weight") or not mask.all()}


def _rules(arch: str | None, weights: Mapping[str, Tensor]) -> tuple[tuple[str, str], ...]:
    """Return the renamings for an architecture. The published code calls ResNets of CIFAR and ImageNet alike."""
    if arch is None:
        return ()
    if arch.startswith("wideresnet"):
        return _WIDE_RESNET
    if arch.startswith("mobilenet"):
        return _MOBILENET
    small = arch.startswith("resnet") and not any(name.startswith("layer4.") for name in weights)
    return _CIFAR_RESNET if small else ()


def _rename(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for start, replacement in rules:
        name = re.sub(rf"^{start}", replacement, name)
    return name


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
