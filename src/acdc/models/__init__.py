"""The models of the paper's experiments, a small one for the default run, and users' own, built by name.

    model = acdc.models.build("wrn28_10", classes=100, seed=0)
    model = acdc.models.build("mypkg.nets:build", classes=100, seed=0)

A model's module is imported when the model is built.
"""

from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter, signature
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from acdc.errors import ArgumentError, did_you_mean
from acdc.import_path import call, check_import_path, is_import_path

if TYPE_CHECKING:
    from torch import nn


# The function that builds each model, and one line about it.
_MODELS = {
    "digits_net": ("resnet_cifar.digits_net", "two residual blocks for 8 x 8 grey digits: 19,706 parameters"),
    "resnet20": ("resnet_cifar.resnet20", "ResNet20 for CIFAR-10 (memorization): 272,474 parameters"),
    "wrn28_10": ("wide_resnet.wrn28_10", "WRN-28-10 for CIFAR-100, as published: 36,546,980 parameters"),
    "wide_resnet": ("wide_resnet.WideResNet", "WRN of any depth and width, WRN-28-10 by default"),
    "resnet18": ("resnet.resnet18", "ResNet18 for ImageNet: 11,689,512 parameters"),
    "resnet34": ("resnet.resnet34", "ResNet34 for ImageNet: 21,797,672 parameters"),
    "resnet50": ("resnet.resnet50", "ResNet50 v1.5 for ImageNet: 25,557,032 parameters"),
    "resnet101": ("resnet.resnet101", "ResNet101 v1.5 for ImageNet: 44,549,160 parameters"),
    "mobilenet_v1": ("mobilenet.mobilenet_v1", "MobileNetV1 for ImageNet: 4,231,976 parameters"),
}
_KINDS = {int: (Integral, "a whole number"), float: (Real, "a number"), str: (str, "text")}


def names() -> tuple[str, ...]:
    """Return the names of the models that come with acdc."""
    return tuple(_MODELS)


def describe(name: str) -> str:
    """Return one line about a model, with its size for the data set it is meant for."""
    _check_name(name)
    return _MODELS[name][1]


def check(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Raise an ArgumentError unless there is such a model with these options. An import path is not followed."""
    if is_import_path(name):
        check_import_path("name", name)
        return
    import torch

    with torch.device("meta"):
        build(name, classes=10, **(options or {}))


def build(
    name: str, *, classes: int, in_channels: int = 3, seed: int | None = None, bn_splits: int = 1, **options: Any
) -> "nn.Module":
    """Return the model of that name; `options` are its own, such as wrn28_10's `dropout` and `variant`.

    The initial weights depend on `seed` alone; without one they come from torch's global generator. A function at an
    import path receives classes (or num_classes), in_channels and seed if it has parameters of these names. With
    `bn_splits` above 1 every batch norm sees a batch in so many parts, as if each were on its own GPU; see norm.py.
    """
    if is_import_path(name):
        model = _build_from_path(name, classes, in_channels, seed, options)
    else:
        model = _build_known(name, classes, in_channels, seed, options)
    if bn_splits != 1:
        from acdc.models.norm import split_batch_norms

        split_batch_norms(model, bn_splits)
    return model


def _build_known(
    name: str, classes: int, in_channels: int, seed: int | None, options: Mapping[str, Any]
) -> "nn.Module":
    _check_name(name)
    module, function = _MODELS[name][0].split(".")
    make = getattr(import_module(f"{__name__}.{module}"), function)
    _check_options(name, {"classes": classes, "in_channels": in_channels, **options}, signature(make).parameters)
    return make(classes=classes, in_channels=in_channels, seed=seed, **options)


def _build_from_path(
    path: str, classes: int, in_channels: int, seed: int | None, options: Mapping[str, Any]
) -> "nn.Module":
    import torch

    offered = {"classes": classes, "num_classes": classes, "in_channels": in_channels, "seed": seed}
    with torch.random.fork_rng(devices=(), enabled=seed is not None):  # leaves the global generator unchanged
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        model = call("name", path, offered=offered, options=options)
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(
            "name",
            received=path,
            allowed=f"expected a torch.nn.Module, but it returns {type(model).__name__}",
            instead="make it return the model",
        )
    return model


def _check_name(name: str) -> None:
    if name not in _MODELS:
        instead = did_you_mean(name, _MODELS) or "; for the default run's model write 'digits_net'"
        expected = f"expected one of {', '.join(map(repr, _MODELS))}, or an import path such as 'mypkg.nets:build'"
        raise ArgumentError("name", received=name, allowed=f"{expected}{instead}")


def _check_options(name: str, options: Mapping[str, Any], known: Mapping[str, Parameter]) -> None:
    own = [option for option in known if option not in ("classes", "in_channels", "seed")]
    for option, value in options.items():
        if option not in known:
            own.append("bn_splits")
            instead = did_you_mean(option, own) or f"; remove {option}"
            allowed = f"{name} has the options {', '.join(own)} besides classes, in_channels and seed{instead}"
            raise ArgumentError(option, received=value, allowed=allowed)
        default = known[option].default
        if default is Parameter.empty:
            continue  # classes, which the data determine
        kind, words = _KINDS[type(default)]
        if isinstance(value, bool) or not isinstance(value, kind):
            instead = f"write, for example, {option}={default!r}"
            raise ArgumentError(option, received=value, allowed=f"expected {words}", instead=instead)
