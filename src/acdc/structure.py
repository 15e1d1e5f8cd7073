"""Checks that data read from elsewhere has the structure that the code relies on, before any of it is used."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from torch import Tensor
from torch.optim import Optimizer

_SWITCHES = ("params", "lr", "foreach", "fused", "capturable")  # of a param group: set by schedules, or by the device


class Plain:
    """In the place of a type: numbers, texts, None, and lists, tuples and dicts of them."""


def check(value: Any, expected: Any, name: str) -> None:
    """Raise a ValueError that names the first part of nested plain data that is not of the expected type.

    `expected` is a type, Plain, a union, list[T], tuple[T, ...], dict[K, V], a TypedDict, or a dataclass, which stands
    for the dict of its fields. Keys that a TypedDict does not name are left alone.
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return
    if expected is Plain:
        _check_plain(value, name)
        return
    if origin in (Union, UnionType):
        for option in arguments:
            if _is_a(value, get_origin(option) or option):
                check(value, option, name)
                return
        raise _wrong(value, expected, name)
    if not _is_a(value, origin or expected):
        raise _wrong(value, expected, name)
    if is_typeddict(expected) or is_dataclass(expected):
        _check_keys(value, expected, name)
    elif origin is dict:
        for key, item in value.items():
            check(key, arguments[0], f"a key of {name}")
            check(item, arguments[1], f"{name}.{key}")
    elif origin is list or (origin is tuple and arguments[1:] == (...,)):
        for index, item in enumerate(value):
            check(item, arguments[0], f"{name}[{index}]")
    elif origin is tuple:
        if len(value) != len(arguments):
            raise ValueError(f"{name}: expected {len(arguments)} items, received {len(value)}")
        for index, (item, kind) in enumerate(zip(value, arguments, strict=True)):
            check(item, kind, f"{name}[{index}]")


def check_tensors(tensors: Any, like: Mapping[str, Any], name: str, *, some: bool = False) -> None:
    """Raise a ValueError unless tensors have the names, shapes and kinds of `like`; `some` of its names are enough."""
    check(tensors, dict[str, Any], name)
    missing, more = (sorted({*a} - {*b}) for a, b in ((like, tensors), (tensors, like)))
    if missing and not some:
        raise ValueError(f"{name}: {_names(missing)} missing")
    if more:
        raise ValueError(f"{name}: {_names(more)} not expected")
    for key, tensor in tensors.items():
        if isinstance(like[key], Tensor):  # a model may keep other things, too
            check_tensor(tensor, like[key].shape, f"{name}.{key}")
            if not _alike(tensor, like[key]):
                raise ValueError(f"{name}.{key}: expected {_dtype(like[key])}, received {_dtype(tensor)}")


def check_tensor(tensor: Any, shape: Sequence[int], name: str) -> None:
    """Raise a ValueError unless this is a tensor of the shape."""
    check(tensor, Tensor, name)
    if tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name}: expected shape {list(shape)}, received {list(tensor.shape)}")


def check_optimizer(state: Any, optimizer: Optimizer, name: str, kinds: Mapping[str, Any] | None = None) -> None:
    """Raise a ValueError unless the state is of an optimizer with these parameters, in as many groups.

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
        raise ValueError(f"{name}.param_groups: they hold other parameters than the model's")
    for index, (group, own) in enumerate(zip(groups, ours, strict=True)):
        for key, value in own.items():
            if key not in group and (kinds is None or not value):
                continue  # an option of a newer torch, which fills it in; or of a scheduler, in a user's loop
            if kinds is not None and key not in _SWITCHES and key in group and group[key] != value:
                raise ValueError(
                    f"{name}.param_groups[{index}].{key}: expected {value!r}, received {_kind(group[key])}"
                )
            if key not in group or not _alike(group[key], value):
                received = _kind(group[key]) if key in group else "nothing"
                raise ValueError(f"{name}.param_groups[{index}].{key}: expected {_kind(value)}, received {received}")
    shapes = {
        number: param.shape
        for group, own in zip(optimizer.param_groups, ours, strict=True)
        for param, number in zip(group["params"], own["params"], strict=True)
    }
    for number, kept in held.items():
        where = f"{name}.state[{number}]"
        if number not in shapes:
            raise ValueError(f"{where}: there is no such parameter")
        if kinds is not None and kept and kept.keys() != kinds.keys():
            raise ValueError(f"{where}: expected {', '.join(kinds) or 'nothing'}, received {', '.join(kept)}")
        for key, like in (kinds or {}).items() if kept else ():
            if isinstance(like, Tensor):  # of the parameter's shape, or one number
                check_tensor(kept[key], shapes[number] if like.ndim else (), f"{where}.{key}")
            if not _alike(kept[key], like):
                raise ValueError(f"{where}.{key}: expected {_dtype(like)}, received {_dtype(kept[key])}")


def _check_keys(value: Mapping[Any, Any], expected: Any, name: str) -> None:
    hints = get_type_hints(expected)
    if is_typeddict(expected):
        needed = expected.__required_keys__
    else:
        needed = {f.name for f in fields(expected) if f.default is MISSING and f.default_factory is MISSING}
        if unknown := sorted(str(key) for key in value.keys() - hints.keys()):
            raise ValueError(f"{name}: {_names(unknown)} not expected")
    if missing := sorted(needed - value.keys()):
        raise ValueError(f"{name}: {_names(missing)} missing")
    for key, kind in hints.items():
        if key in value:
            check(value[key], kind, f"{name}.{key}")


def _check_plain(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_plain(item, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check_plain(item, f"{name}[{index}]")
    elif not isinstance(value, (bool, int, float, str, NoneType)):
        raise ValueError(f"{name}: expected plain data, received {_kind(value)}")


def _is_a(value: Any, kind: Any) -> bool:
    if kind is Any or kind is Plain:
        return True
    if is_typeddict(kind) or is_dataclass(kind):
        kind = dict
    if isinstance(value, bool):  # which Python counts among the numbers
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind or NoneType)


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
    return _is_a(value, float if type(like) in (int, float) else type(like))


def _wrong(value: Any, expected: Any, name: str) -> ValueError:
    return ValueError(f"{name}: expected {_type_name(expected)}, received {_kind(value)}")


def _type_name(expected: Any) -> str:
    if get_origin(expected) in (Union, UnionType):
        return " or ".join(map(_type_name, get_args(expected)))
    if is_typeddict(expected) or is_dataclass(expected):
        return "dict"
    return "None" if expected is NoneType else str(getattr(expected, "__name__", expected))


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} ({_dtype(value)})"
    plain = isinstance(value, (int, float, str, NoneType)) and len(repr(value)) < 40
    return repr(value) if plain else type(value).__name__


def _dtype(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} {'is' if len(names) == 1 else 'are'}"
