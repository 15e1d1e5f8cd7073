"""Finds a user's function by its import path, "package.module:function", and calls it with the arguments it takes."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from acdc.errors import ArgumentError, did_you_mean


def is_import_path(name: str) -> bool:
    """Return True if `name` is an import path such as "mypkg.nets:build" rather than a name that acdc knows."""
    return ":" in name


def check_import_path(argument: str, path: str) -> None:
    """Raise unless `path` has the form of an import path. Nothing is imported."""
    module, _, function = path.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *function.split("."))):
        raise ArgumentError(
            argument,
            received=path,
            allowed="expected a module and a function in it, separated by a colon",
            instead="write, for example, 'mypkg.nets:build'",
        )


def import_function(argument: str, path: str) -> Callable[..., Any]:
    """Return the function or class at an import path; an error calls it `argument`."""
    check_import_path(argument, path)
    module_name, _, function_name = path.partition(":")
    try:
        value: Any = import_module(module_name)
    except Exception as error:  # a module's own code may raise anything
        raise ArgumentError(
            argument,
            received=path,
            allowed=f"the module {module_name} cannot be imported ({type(error).__name__}: {error})",
            instead=f"run the command in the folder that holds {module_name.partition('.')[0]}, or install it; "
            f'python -c "import {module_name}" shows where it fails',
        ) from error
    for part in function_name.split("."):
        if not hasattr(value, part):
            known = [name for name in dir(value) if not name.startswith("_")]
            raise ArgumentError(
                argument,
                received=path,
                allowed=f"{module_name} has no {function_name}{did_you_mean(part, known)}",
                instead="put the name of one of its functions or classes after the colon",
            )
        value = getattr(value, part)
    if not callable(value):
        raise ArgumentError(
            argument,
            received=path,
            allowed=f"expected a function or a class, but it is of type {type(value).__name__}",
            instead="put the name of the function or class that builds it after the colon",
        )
    return value


def call(argument: str, path: str, *, offered: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call the function at an import path with its `options` and the `offered` values it has parameters for."""
    function = import_function(argument, path)
    parameters = inspect.signature(function).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    own = [name for name, one in parameters.items() if one.kind.name in ("POSITIONAL_OR_KEYWORD", "KEYWORD_ONLY")]
    for option, value in options.items():
        if option not in own and not takes_any:
            known = [name for name in own if name not in offered]
            raise ArgumentError(
                option,
                received=value,
                allowed=f"{path} takes {', '.join(known) or 'no options'}{did_you_mean(option, known)}",
                instead=f"remove {option}",
            )
    arguments = {name: value for name, value in offered.items() if name in own and name not in options} | dict(options)
    needed = [name for name in own if parameters[name].default is inspect.Parameter.empty and name not in arguments]
    if needed:
        raise ArgumentError(needed[0], allowed=f"{path} requires it", instead="set it")
    try:
        return function(**arguments)
    except Exception as error:  # a user's own code may raise anything
        listing = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise ArgumentError(
            argument,
            received=path,
            allowed=f"when called with {listing or 'no arguments'}, it raises {type(error).__name__}: {error}",
            instead="correct its options or its code",
        ) from error
