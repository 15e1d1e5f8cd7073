"""Data sets, each loaded to the device once; larger ones are read from a folder of images."""

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acdc.errors import did_you_mean

if TYPE_CHECKING:
    import torch

    from acdc.data.images import ImageData


@dataclass(frozen=True, kw_only=True)
class Known:
    """A data set that can be named. `module` is imported only when it is loaded."""

    name: str
    kind: Literal["memory", "folder"]  # held on the device whole, or read from a folder as training goes
    summary: str
    module: str
    function: str = ""
    needs_root: bool = False


_KNOWN = {
    known.name: known
    for known in (
        Known(
            name="digits",
            kind="memory",
            summary="scikit-learn's digits: 1,797 grey images of 8 x 8, 10 classes; nothing to fetch",
            module="acdc.data.digits",
            function="load_digits",
        ),
        Known(
            name="cifar10",
            kind="memory",
            summary="CIFAR-10: 60,000 images of 32 x 32, 10 classes, from the official Python files",
            module="acdc.data.cifar",
            function="load_cifar10",
            needs_root=True,
        ),
        Known(
            name="cifar100",
            kind="memory",
            summary="CIFAR-100: 60,000 images of 32 x 32, 100 classes, from the official Python files",
            module="acdc.data.cifar",
            function="load_cifar100",
            needs_root=True,
        ),
        Known(
            name="synthetic",
            kind="memory",
            summary="made images of any shape and number of classes, for benchmarks and tests; nothing to fetch",
            module="acdc.data.synthetic",
            function="load_synthetic",
        ),
        Known(
            name="imagenet",
            kind="folder",
            summary="ImageNet, or any folder of images with one folder for each class",
            module="acdc.data.image_folder",
            needs_root=True,
        ),
    )
}


def names() -> tuple[str, ...]:
    return tuple(_KNOWN)


def describe(name: str) -> Known:
    """What is known of a data set before it is loaded."""
    if name in _KNOWN:
        return _KNOWN[name]
    there = f"there are {', '.join(_KNOWN)}{did_you_mean(name, _KNOWN)}"
    raise ValueError(f"data = {name!r}: no data set has this name; {there}")


def find_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Where data lies: `root`, else the environment variable ACDC_DATA, else the folder data."""
    return Path(root if root is not None else os.environ.get("ACDC_DATA") or "data").expanduser()


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    device: "torch.device | str" = "cpu",
    **options: Any,
) -> "ImageData":
    """Load a data set of kind "memory". `root` counts for those that need files; `options` are its loader's own."""
    known = describe(name)
    if known.kind == "folder":
        raise ValueError(
            f"data = {name!r} is read from a folder as training goes and is not loaded whole; use {known.module}"
        )
    function: Callable[..., ImageData] = getattr(import_module(known.module), known.function)
    allowed = [option for option in inspect.signature(function).parameters if option not in ("root", "device")]
    unknown = [option for option in options if option not in allowed]
    if unknown:
        takes = f"takes {', '.join(allowed)}" if allowed else "takes no options"
        raise ValueError(f"data = {name!r} does not know {', '.join(unknown)}; it {takes}")
    if known.needs_root:
        options["root"] = find_root(root)
    return function(device=device, **options)
