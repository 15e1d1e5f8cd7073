"""Synthetic images of any shape, for benchmarks and tests: each class is a coarse pattern with noise, easy to learn."""

import torch
from torch import Tensor

from acdc.data.images import ImageData, Images

CELLS = 4  # the pattern is this many cells high and wide
PATTERN, NOISE = 64, 192  # levels of grey; together below 256, so that no sum overflows
MEAN = (PATTERN - 1 + NOISE - 1) / 2 / 255
STD = ((PATTERN**2 - 1 + NOISE**2 - 1) / 12) ** 0.5 / 255  # deviation of the sum of two uniform variables


def load_synthetic(
    *,
    classes: int = 10,
    shape: tuple[int, int, int] = (3, 32, 32),
    train: int = 2048,
    test: int = 512,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> ImageData:
    """Draw `train` and `test` images of `shape` (channels, height, width); the same for the same seed, on any device.

    Classes take turns, so each has the same number of images, give or take one.
    """
    shape = _checked(classes, shape, train, test)
    generator = torch.Generator().manual_seed(seed)
    patterns = _patterns(classes, shape, generator)
    parts = [_draw(patterns, count, generator) for count in (train, test)]
    return ImageData(
        name="synthetic",
        classes=classes,
        train=parts[0].to(device),
        test=parts[1].to(device),
        mean=(MEAN,) * shape[0],
        std=(STD,) * shape[0],
    )


def _patterns(classes: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    channels, height, width = shape
    coarse = torch.randint(PATTERN, (classes, channels, CELLS, CELLS), dtype=torch.uint8, generator=generator)
    rows, columns = (torch.arange(size) * CELLS // size for size in (height, width))
    return coarse[:, :, rows][:, :, :, columns]


def _draw(patterns: Tensor, count: int, generator: torch.Generator) -> Images:
    labels = torch.arange(count) % len(patterns)
    pixels = torch.randint(NOISE, (count, *patterns.shape[1:]), dtype=torch.uint8, generator=generator)
    for start in range(0, count, len(patterns)):  # whole rounds, so that the patterns need not be gathered
        part = pixels[start : start + len(patterns)]
        part += patterns[: len(part)]
    return Images(pixels, labels)


def _checked(classes: int, shape: tuple[int, int, int], train: int, test: int) -> tuple[int, int, int]:
    """Return the shape as a tuple of three (a recipe's is a list), or raise one error about all that is wrong."""
    sizes = {"classes": classes, "train": train, "test": test}
    wrong = [f"{name} = {value!r}" for name, value in sizes.items() if type(value) is not int or value < 1]
    if len(shape) != 3 or any(type(size) is not int or size < 1 for size in shape):
        wrong.append(f"shape = {shape!r}")
    if wrong:
        raise ValueError(
            f"synthetic: {', '.join(wrong)}: counts are whole numbers from 1, and a shape is three of them, as in "
            "load_synthetic(classes=10, shape=(3, 32, 32), train=2048, test=512)"
        )
    channels, height, width = shape
    return channels, height, width
