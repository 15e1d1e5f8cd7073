"""The first images of CIFAR-10, for runs that a CPU can do: `--set data.name=benchmarks.cifar_subset:make`."""

from pathlib import Path

from torch.utils.data import TensorDataset

from acdc import data


def make(root: Path, train: int = 5000, test: int = 1000) -> tuple[TensorDataset, TensorDataset]:
    """Return the first `train` training images and the first `test` test images."""
    images = data.load("cifar10", root=root)
    parts = ((images.train, train), (images.test, test))
    first, second = (TensorDataset(part.pixels[:count], part.labels[:count]) for part, count in parts)
    return first, second
