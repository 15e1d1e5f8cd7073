"""Checks that state dicts fit a model and its optimizer, before any of them is loaded."""

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from acdc.typed_data import DataError, MissingError, check, show

_SWITCHES = ("params", "lr", "foreach", "fused", "capturable")  # of a param group: set by schedules, or by the device


def check_tensors(tensors: Any, like: Mapping[str, Any], name: str, *, some: bool = False) -> None:
    """Raise a DataError unless tensors have the names, shapes and kinds of `like`; `some` of its names are enough."""
    check(tensors, dict[str, Any], name)
    missing, more = (sorted({*a} - {*b}) for a, b in ((like, tensors), (tensors, like)))
    if missing and not some:
        raise MissingError(f"{name}.{missing[0]}")
    if more:
        raise DataError(f"{name}.{more[0]}", "nothing of this name", show(tensors[more[0]]))
    for key, tensor in tensors.items():
        if isinstance(like[key], Tensor):  # a model may keep other things, too
            check_tensor(tensor, like[key].shape, f"{name}.{key}")
            if not _alike(tensor, like[key]):
                raise DataError(f"{name}.{key}", _dtype(like[key]), _dtype(tensor))


def check_tensor(tensor: Any, shape: Sequence[int], name: str) -> None:
    """Raise a DataError unless this is a tensor of the shape."""
    check(tensor, Tensor, name)
    if tuple(tensor.shape) != tuple(shape):
        raise DataError(name, f"shape {list(shape)}", show(tensor))


def check_optimizer(state: Any, optimizer: Optimizer, name: str, kinds: Mapping[str, Any] | None = None) -> None:
    """Raise a DataError unless the state is of an optimizer with these parameters, in as many groups.

    `kinds` is what such an optimizer keeps of a parameter, where that is known: all of it or nothing must be there.
    """
    check(state, dict[str, Any], name)
    ours = optimizer.state_dict()["param_groups"]
    groups, held = state.get("param_groups"), state.get("state")
    check(groups, list[dict[str, Any]], f"{name}.param_groups")
    check(held, dict[int, dict[str, Any]], f"{name}.state")
    for index, group in enumerate(groups):
        check(group.get("params"), list[int], f"{name}.param_groups[{index}].params")
    if [group["params"] for group in groups] != [group["params"] for group in ours]:
        raise DataError(f"{name}.param_groups", "the model's parameters, and they hold others")
    for index, (group, own) in enumerate(zip(groups, ours, strict=True)):
        _check_group(group, own, f"{name}.param_groups[{index}]", exactly=kinds is not None)
    shapes = {
        number: param.shape
        for group, own in zip(optimizer.param_groups, ours, strict=True)
        for param, number in zip(group["params"], own["params"], strict=True)
    }
    for number, kept in held.items():
        where = f"{name}.state[{number}]"
        if number not in shapes:
            raise DataError(where, f"the number of a parameter, below {len(shapes)}")
        if kinds is not None and kept and kept.keys() != kinds.keys():
            raise DataError(where, ", ".join(kinds) or "nothing", ", ".join(map(str, kept)))
        for key, like in (kinds or {}).items() if kept else ():
            if isinstance(like, Tensor):  # of the parameter's shape, or one number
                check_tensor(kept[key], shapes[number] if like.ndim else (), f"{where}.{key}")
            if not _alike(kept[key], like):
                raise DataError(f"{where}.{key}", _dtype(like), _dtype(kept[key]))


def _check_group(group: Mapping[str, Any], own: Mapping[str, Any], name: str, *, exactly: bool) -> None:
    """Compare the options of a param group with our own optimizer's; `exactly` where a run sets them itself."""
    for key, value in own.items():
        if key not in group and (not exactly or not value):
            continue  # an option of a newer torch, which fills it in; or of a scheduler, in a user's loop
        if exactly and key not in _SWITCHES and key in group and group[key] != value:
            raise DataError(f"{name}.{key}", _kind(value), _kind(group[key]))
        if key not in group or not _alike(group[key], value):
            raise DataError(f"{name}.{key}", _kind(value), _kind(group[key]) if key in group else "nothing")


def _alike(value: Any, like: Any) -> bool:
    """True where a value is of the kind of another: numbers among themselves, sequences item by item.

    Where one is None the other may be too: options of torch's optimizers are, where they depend on the device.
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
