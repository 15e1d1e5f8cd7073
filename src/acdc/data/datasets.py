"""Users' own data: a function that returns two torch Datasets, for training and testing, which are held in memory.

    def make(root): return train, test        # data.name = "mypkg.data:make"

Each item is (image, label): a tensor of channels x height x width, all of one shape, and a whole number from 0. uint8
images are normalised by the mean and deviation of the training images; float images are used as they are. Both are
cropped and mirrored as data.crop and data.flip say, so a Dataset itself should do nothing at random.
"""

import os
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from acdc.data.images import ImageData, Images
from acdc.errors import ArgumentError
from acdc.import_path import call

_EXAMPLE = "make it return (train, test), two Datasets of (image, label)"
_SHARE = 0.5  # the share of the free memory that images may use


def load_datasets(
    path: str, *, root: Path, device: torch.device | str = "cpu", options: Mapping[str, Any] | None = None
) -> ImageData:
    """Load what the function at an import path returns when called with `options`, and with root if it takes one."""
    pair = call("name", path, offered={"root": root}, options=options or {})
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise _refused(path, f"expected two Datasets, but it returns {_described(pair)}", _EXAMPLE)
    for part, dataset in zip(("train", "test"), pair, strict=True):
        if not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
            raise _refused(path, f"{part} is {_described(dataset)}: it needs a length and items by index", _EXAMPLE)
        if not len(dataset):
            raise _refused(path, f"{part} is empty", "give it at least one image")
    first = _item(path, "train", pair[0], 0)[0]
    _check_memory(path, first, len(pair[0]) + len(pair[1]))
    train, test = (_images(path, part, data, first) for part, data in zip(("train", "test"), pair, strict=True))
    named = getattr(pair[0], "classes", None)
    labels = 1 + int(max(train.labels.max(), test.labels.max()))
    classes = max(labels, len(named)) if isinstance(named, Sized) else labels
    mean, std, scale = _normalisation(train.pixels)
    return ImageData(
        name=path, classes=classes, train=train.to(device), test=test.to(device), mean=mean, std=std, scale=scale
    )


def _images(path: str, part: str, dataset: Any, like: Tensor) -> Images:
    pixels = torch.empty((len(dataset), *like.shape), dtype=like.dtype)
    labels = torch.empty(len(dataset), dtype=torch.int64)
    for index in range(len(dataset)):
        image, label = _item(path, part, dataset, index)
        if image.shape != like.shape or image.dtype != like.dtype:
            difference = f"{_described(image)}, but the first of train is {_described(like)}"
            raise _refused(path, f"image {index} of {part} is {difference}", "give all images the same shape and type")
        pixels[index], labels[index] = image, label
    return Images(pixels, labels)


def _item(path: str, part: str, dataset: Any, index: int) -> tuple[Tensor, int]:
    item = dataset[index]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise _refused(path, f"item {index} of {part} is {_described(item)}; expected (image, label)", _EXAMPLE)
    image, label = item
    if (
        not isinstance(image, Tensor)
        or image.ndim != 3
        or not (image.dtype == torch.uint8 or image.is_floating_point())
    ):
        expected = "expected a tensor of channels x height x width, uint8 or float"
        instead = "convert it in the Dataset (torchvision: transforms.PILToTensor())"
        raise _refused(path, f"image {index} of {part} is {_described(image)}; {expected}", instead)
    if isinstance(label, Tensor) and label.ndim == 0:
        label = label.item()
    number = getattr(label, "__index__", None)
    if isinstance(label, bool) or number is None or number() < 0:
        expected = "expected a whole number from 0"
        raise _refused(path, f"label {index} of {part} is {label!r}; {expected}", "number the classes from 0")
    return image if image.dtype == torch.uint8 else image.float(), number()


def _normalisation(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Return the mean and deviation of each channel, and the value of white; float images stay unchanged."""
    channels = pixels.shape[1]
    if pixels.dtype != torch.uint8:
        return (0.0,) * channels, (1.0,) * channels, 1.0
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in range(channels):  # by counting each level: exact, and without a float copy
        counts = torch.bincount(pixels[:, channel].flatten(), minlength=256).double()
        share = counts / counts.sum()
        middle = (share * levels).sum()
        mean.append(middle.item())
        std.append(max(((share * (levels - middle) ** 2).sum().sqrt()).item(), 1 / 255))  # never 0
    return tuple(mean), tuple(std), 255.0


def _check_memory(path: str, image: Tensor, count: int) -> None:
    size, free = count * image.numel() * image.element_size(), free_memory()
    if free is not None and size > _SHARE * free:
        raise _refused(
            path,
            f"its {count:,} images of {' x '.join(map(str, image.shape))} need {size / 2**30:.3g} GiB, but only "
            f"{free / 2**30:.3g} GiB of memory are free, and images may use half of that",
            'use smaller or fewer images, or write them to files and set data.name = "folder"',
        )


def free_memory() -> int | None:
    """Return the number of free bytes of memory; None if the system does not say."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of {' x '.join(map(str, value.shape)) or 'no axes'}"
    return f"{len(value)} values" if isinstance(value, tuple | list) else f"a value of type {type(value).__name__}"


def _refused(path: str, allowed: str, instead: str) -> ArgumentError:
    return ArgumentError("name", received=path, allowed=allowed, instead=instead)
