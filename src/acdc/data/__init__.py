"""Data sets, each loaded onto the device once; larger ones are read from a folder of images."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from acdc.errors import ArgumentError, did_you_mean
from acdc.import_path import check_import_path, is_import_path

if TYPE_CHECKING:
    import torch

    from acdc.data.images import ImageData


IMAGENET_CLASSES = 1000
_TEXT_FOLDERS = {"wikitext2": "wikitext-2", "wikitext103": "wikitext-103"}
IMAGE_SIZE = 224  # the height and width, in pixels, of images from a folder, unless data.size says otherwise


@dataclass(frozen=True, kw_only=True)
class Known:
    """A data set known by name. `module` is imported only when it is loaded."""

    name: str
    kind: Literal["memory", "folder", "text"]  # held on the device, read from a folder during training, or tokens
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
            summary="scikit-learn's digits: 1,797 grey images of 8 x 8, 10 classes; no download",
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
            summary="generated images of any shape and number of classes, for benchmarks and tests; no download",
            module="acdc.data.synthetic",
            function="load_synthetic",
        ),
        Known(
            name="imagenet",
            kind="folder",
            summary="ImageNet, or any folder of images with one folder for each class",
            module="acdc.data.image_folder",
            function="ImageFolder",
            needs_root=True,
        ),
        Known(
            name="folder",
            kind="folder",
            summary="your own JPEG or PNG files: DIR/train/CLASS/* and DIR/val/CLASS/*, seen at data.size (224) pixels",
            module="acdc.data.image_folder",
            function="ImageFolder",
            needs_root=True,
        ),
        Known(
            name="text",
            kind="text",
            summary="your own UTF-8 text: --data FILE, or a folder with train.txt, valid.txt and test.txt",
            module="acdc.data.text",
            function="load_text",
            needs_root=True,
        ),
        Known(
            name="wikitext2",
            kind="text",
            summary="WikiText-2's three files of words: 2,088,628 tokens to train on, 33,278 different ones",
            module="acdc.data.text",
            function="load_text",
            needs_root=True,
        ),
        Known(
            name="wikitext103",
            kind="text",
            summary="WikiText-103's three files of words: 103,227,021 tokens to train on, 267,735 different ones",
            module="acdc.data.text",
            function="load_text",
            needs_root=True,
        ),
    )
}


def names() -> tuple[str, ...]:
    return tuple(_KNOWN)


def describe(name: str) -> Known:
    """Return what is known about a data set before it is loaded. An import path is not followed."""
    if name in _KNOWN:
        return _KNOWN[name]
    if is_import_path(name):
        check_import_path("name", name)
        return Known(name=name, kind="memory", summary="your own function", module="acdc.data.datasets")
    expected = f"expected one of {', '.join(_KNOWN)}, or an import path such as 'mypkg.data:make'"
    raise ArgumentError("name", received=name, allowed=f"{expected}{did_you_mean(name, _KNOWN)}")


def option_types(name: str) -> dict[str, Any] | None:
    """Return the options of a data set with their types; None for a user's function, which is not imported."""
    known = describe(name)
    if is_import_path(name):
        return None
    function = getattr(import_module(known.module), known.function)
    hints = get_type_hints(function.__init__ if isinstance(function, type) else function, include_extras=True)
    if known.kind == "folder":
        return {option: hints[option] for option in ("size", "resize", "classes")}
    return {option: hint for option, hint in hints.items() if option not in ("root", "device", "say", "return")}


def find_text_root(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Return where a text is: the file or folder given, or one of the data set's name in the folder of all data."""
    if root is not None:
        path = Path(root).expanduser()
        inner = path / _TEXT_FOLDERS.get(name, "")
        return inner if inner.is_dir() else path
    if name == "text":
        raise FileNotFoundError(
            "no text was named; add --data FILE, or a folder with train.txt, valid.txt and test.txt"
        )
    return find_root() / _TEXT_FOLDERS[name]


def own_name(name: str, root: str | os.PathLike[str] | None = None, *, classes: int) -> str:
    """Return the data's name for naming runs: that of the folder for images in one, unless it holds ImageNet."""
    is_folder = name == "folder" or (name == "imagenet" and classes != IMAGENET_CLASSES)
    return find_root(root).resolve().name if is_folder else name


def find_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return where data is stored: `root`, or the environment variable ACDC_DATA, or the folder data."""
    return Path(root if root is not None else os.environ.get("ACDC_DATA") or "data").expanduser()


def load(
    name: str,
    *,
    root: str | os.PathLike[str] | None = None,
    device: "torch.device | str" = "cpu",
    **options: Any,
) -> "ImageData":
    """Load a data set of kind "memory". `root` is for those that need files; `options` are its loader's own."""
    known = describe(name)
    if known.kind != "memory":
        raise ArgumentError(
            "name",
            received=name,
            allowed="it is text"
            if known.kind == "text"
            else "it is read from a folder during training, and is not loaded whole",
            instead=f"use {known.module}",
        )
    if is_import_path(name):
        from acdc.data.datasets import load_datasets

        return load_datasets(name, root=find_root(root), device=device, options=options)
    function: Callable[..., ImageData] = getattr(import_module(known.module), known.function)
    allowed = option_types(name) or {}
    for option, value in options.items():
        if option not in allowed:
            takes = f"{name} takes {', '.join(allowed)}" if allowed else f"{name} takes no options"
            instead = f"remove {option}"
            raise ArgumentError(
                option, received=value, allowed=f"{takes}{did_you_mean(option, allowed)}", instead=instead
            )
    if known.needs_root:
        options["root"] = find_root(root)
    return function(device=device, **options)
