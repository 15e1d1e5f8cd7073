"""Checks that state dicts fit a model and its optimizer, before any of them is loaded."""

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from acdc.typed_data import DataError, MissingError, check, show

_SWITCHES = ("params", "lr", "foreach", "fused", "capturable")  # schedules or the device set these


def check_tensors(tensors: Any, like: Mapping[str, Any], name: str, *, some: bool = False) -> None:
    """Raise a DataError unless tensors have the names (or, with `some`, a few of them), shapes and kinds of `like`."""
    check(tensors, dict[str, Any], name)
    missing, more = (sorted({*a} - {*b}) for a, b in ((like, tensors), (tensors, like)))
    if missing and not some:
        raise MissingError(f"{name}.{missing[0]}")
    if more:
        raise DataError(f"{name}.{more[0]}", "no entry with this name", show(tensors[more[0]]))
    for key, tensor in tensors.items():
        if isinstance(like[key], Tensor):  # a state dict may hold other things, too
            check_tensor(tensor, like[key].shape, f"{name}.{key}")
            if not _alike(tensor, like[key]):
                raise DataError(f"{name}.{key}", _dtype(like[key]), _dtype(tensor))


def check_tensor(tensor: Any, shape: Sequence[int], name: str) -> None:
    """Raise a DataError unless this is a tensor of the given shape."""
    check(tensor, Tensor, name)
    if tuple(tensor.shape) != tuple(shape):
        raise DataError(name, f"shape {list(shape)}", show(tensor))


def check_optimizer(state: Any, optimizer: Optimizer, name: str, kinds: Mapping[str, Any] | None = None) -> None:
    """Raise a DataError unless the state belongs to an optimizer with these parameters, in the same groups.

    `kinds` is what such an optimizer stores for a parameter, where that is known: either all of it or none.
    """
    check(state, dict[str, Any], name)
    ours = optimizer.state_dict()["param_groups"]
    groups, entries = state.get("param_groups"), state.get("state")
    check(groups, list[dict[str, Any]], f"{name}.param_groups")
    check(entries, dict[int, dict[str, Any]], f"{name}.state")
    for index, group in enumerate(groups):
        check(group.get("params"), list[int], f"{name}.param_groups[{index}].params")
    if [group["params"] for group in groups] != [group["params"] for group in ours]:
        raise DataError(f"{name}.param_groups", "the model's parameters, but it holds others")
    for index, (group, own) in enumerate(zip(groups, ours, strict=True)):
        _check_group(group, own, f"{name}.param_groups[{index}]", exactly=kinds is not None)
    shapes = {
        number: param.shape
        for group, own in zip(optimizer.param_groups, ours, strict=True)
        for param, number in zip(group["params"], own["params"], strict=True)
    }
    for number, kept in entries.items():
        where = f"{name}.state[{number}]"
        if number not in shapes:
            raise DataError(where, f"the index of a parameter, below {len(shapes)}")
        if kinds is not None and kept and kept.keys() != kinds.keys():
            raise DataError(where, ", ".join(kinds) or "nothing", ", ".join(map(str, kept)))
        for key, like in (kinds or {}).items() if kept else ():
            if isinstance(like, Tensor):  # of the parameter's shape, or a single number
                check_tensor(kept[key], shapes[number] if like.ndim else (), f"{where}.{key}")
            if not _alike(kept[key], like):
                raise DataError(f"{where}.{key}", _dtype(like), _dtype(kept[key]))


def _check_group(group: Mapping[str, Any], own: Mapping[str, Any], name: str, *, exactly: bool) -> None:
    """Compare the options of a param group with our own optimizer's; `exactly` if the run itself sets them."""
    for key, value in own.items():
        if key not in group and (not exactly or not value):
            continue  # an option of a newer torch, which fills it in, or of a scheduler in a user's loop
        if exactly and key not in _SWITCHES and key in group and group[key] != value:
            raise DataError(f"{name}.{key}", _kind(value), _kind(group[key]))
        if key not in group or not _alike(group[key], value):
            raise DataError(f"{name}.{key}", _kind(value), _kind(group[key]) if key in group else "nothing")


def _alike(value: Any, like: Any) -> bool:
    """Return True if two values are of the same kind: both numbers, or sequences that match item by item.

    Where one is None the other may be, too: torch's optimizers use None for options that depend on the device.
    """
    if like is None or isinstance(like, bool):
        return isinstance(value, (bool, int, float, NoneType))
    if isinstance(like, (list, tuple)):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(like)
            and all(_alike(one, other) for one, other in zip(value, like, strict=True))
        )
    if isinstance(like, Tensor):
        return isinstance(value, Tensor) and value.is_floating_point() == like.is_floating_point()
    if isinstance(value, bool):  # which Python counts among the numbers
        return False
    return isinstance(value, (int, float) if isinstance(like, int | float) else type(like))


def _kind(value: Any) -> str:
    plain = isinstance(value, int | float | str | NoneType) and len(repr(value)) < 40
    return repr(value) if plain else show(value) if isinstance(value, Tensor) else type(value).__name__


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__
