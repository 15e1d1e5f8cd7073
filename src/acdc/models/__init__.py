"""The models of the paper's experiments, a small one for the default run, and users' own, built by name.

    model = acdc.models.build("wrn28_10", classes=100, seed=0)
    model = acdc.models.build("gpt-10m", vocabulary=256, seed=0)
    model = acdc.models.build("mypkg.nets:build", classes=100, seed=0)

Image models have classes and in_channels; language models have a vocabulary instead. A model's module is imported when
the model is built.
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
# As above, counted with the vocabulary in brackets.
_LANGUAGE_MODELS = {
    "gpt-10m": ("gpt.gpt_10m", "a decoder for characters or bytes (vocabulary 256): 10,720,128 parameters"),
    "gpt-30m": ("gpt.gpt_30m", "a decoder for text (vocabulary 8,192): 29,893,120 parameters"),
    "gpt-124m": ("gpt.gpt_124m", "a decoder of GPT-2's size (vocabulary 50,257): 123,551,232 parameters"),
    "transformer-xl": (
        "transformer_xl.transformer_xl",
        "Transformer-XL large for WikiText-103 (vocabulary 267,735): 285,167,482 parameters",
    ),
    "transformer-xl-base": (
        "transformer_xl.transformer_xl_base",
        "Transformer-XL base for WikiText-103 (vocabulary 267,735): 191,950,298 parameters",
    ),
    "transformer-xl-small": (
        "transformer_xl.transformer_xl_small",
        "Transformer-XL for WikiText-2 (vocabulary 33,278): 28,175,870 parameters",
    ),
}
_EVERY = {**_MODELS, **_LANGUAGE_MODELS}
_LARGE = 1_000_000  # a vocabulary that contains every cut-off of an adaptive softmax
_KINDS = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    str: (str, "text"),
    bool: (bool, "True or False (in a recipe true or false)"),
    tuple: (list | tuple, "a list, such as [1, 2]"),
    type(None): (Integral, "a whole number"),  # one that follows from the others unless it is given
}


def names() -> tuple[str, ...]:
    """Return the names of the models that come with acdc."""
    return tuple(_EVERY)


def is_language_model(name: str) -> bool:
    """Return True if this is a language model that comes with acdc: it is built with a vocabulary, not classes."""
    return name in _LANGUAGE_MODELS


def describe(name: str) -> str:
    """Return one line about a model, with its size for the data set it is meant for."""
    _check_name(name)
    return _EVERY[name][1]


def check(name: str, options: Mapping[str, Any] | None = None) -> None:
    """Raise an ArgumentError unless there is such a model with these options. An import path is not followed."""
    if is_import_path(name):
        check_import_path("name", name)
        return
    import torch

    sizes: dict[str, Any] = {"vocabulary": _LARGE} if is_language_model(name) else {"classes": 10}
    with torch.device("meta"):
        build(name, **sizes, **(options or {}))


def build(
    name: str,
    *,
    classes: int | None = None,
    in_channels: int = 3,
    vocabulary: int | None = None,
    seed: int | None = None,
    bn_splits: int = 1,
    **options: Any,
) -> "nn.Module":
    """Return the model of that name; `options` are its own, such as wrn28_10's `dropout` and `variant`.

    Image models need `classes` and have `in_channels`; language models need `vocabulary`. The initial weights depend on
    `seed` alone; without one they come from torch's global generator. A function at an import path receives classes (or
    num_classes), in_channels, vocabulary and seed if it has parameters of these names. With `bn_splits` above 1 every
    batch norm sees a batch in so many parts, as if each were on its own GPU; see norm.py.
    """
    if is_import_path(name):
        offered = {"classes": classes, "num_classes": classes, "in_channels": in_channels, "vocabulary": vocabulary}
        given = {size: value for size, value in offered.items() if value is not None}
        model = _build_from_path(name, given, seed, options)
    else:
        model = _build_known(name, classes, in_channels, vocabulary, seed, options)
    if bn_splits != 1:
        from acdc.models.norm import split_batch_norms

        split_batch_norms(model, bn_splits)
    return model


def _build_known(
    name: str,
    classes: int | None,
    in_channels: int,
    vocabulary: int | None,
    seed: int | None,
    options: Mapping[str, Any],
) -> "nn.Module":
    _check_name(name)
    if is_language_model(name):
        _check_sizes(name, "a language model", vocabulary=vocabulary, classes=classes)
        sizes = {"vocabulary": vocabulary}
    else:
        _check_sizes(name, "an image model", classes=classes, vocabulary=vocabulary)
        sizes = {"classes": classes, "in_channels": in_channels}
    module, function = _EVERY[name][0].split(".")
    make = getattr(import_module(f"{__name__}.{module}"), function)
    _check_options(name, {**sizes, **options}, signature(make).parameters)
    return make(**sizes, seed=seed, **options)


def _check_sizes(name: str, kind: str, **sizes: int | None) -> None:
    """Raise unless the first of two sizes is given and the second, of the other kind of model, is not."""
    (needed, value), (other, unfit) = sizes.items()
    if unfit is not None:
        allowed = f"{name} is {kind} and has no {other}"
        raise ArgumentError(other, received=unfit, allowed=allowed, instead=f"give {needed} instead")
    if value is None:
        raise ArgumentError(
            needed, allowed=f"{name} is {kind} and needs it", instead=f"write, for example, {needed}=100"
        )


def _build_from_path(path: str, sizes: Mapping[str, int], seed: int | None, options: Mapping[str, Any]) -> "nn.Module":
    import torch

    offered = {**sizes, "seed": seed}
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
    if name not in _EVERY:
        instead = did_you_mean(name, _EVERY) or "; for the default run's model write 'digits_net'"
        expected = f"expected one of {', '.join(map(repr, _EVERY))}, or an import path such as 'mypkg.nets:build'"
        raise ArgumentError("name", received=name, allowed=f"{expected}{instead}")


def _check_options(name: str, options: Mapping[str, Any], known: Mapping[str, Parameter]) -> None:
    shared = ("vocabulary", "seed") if is_language_model(name) else ("classes", "in_channels", "seed")
    own = [option for option in known if option not in shared]
    for option, value in options.items():
        if option not in known:
            own.append("bn_splits")
            instead = did_you_mean(option, own) or f"; remove {option}"
            besides = f"{', '.join(shared[:-1])} and {shared[-1]}"
            allowed = f"{name} has the options {', '.join(own)} besides {besides}{instead}"
            raise ArgumentError(option, received=value, allowed=allowed)
        default = known[option].default
        if default is Parameter.empty or (value is None and default is None):
            continue  # classes or vocabulary, which the data determine
        kind, words = _KINDS[type(default)]
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
            instead = f"write, for example, {option}={1 if default is None else default!r}"
            raise ArgumentError(option, received=value, allowed=f"expected {words}", instead=instead)
