"""scikit-learn's digits: 1,797 grey images of 8 x 8 pixels, ten classes. No download."""

from dataclasses import dataclass

import torch
from torch import Tensor

CLASSES = 10
TRAIN, TEST = 1397, 400


@dataclass(frozen=True)
class Split:
    """Images (N, channels, height, width) and labels (N), for training and for the test."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_digits(device: torch.device | str = "cpu", *, split_seed: int = 0) -> Split:
    """The digits, standardised by the training images, on `device`.

    Each class has the same share in both parts. The split has its own seed, so runs with other seeds share a test set.
    """
    try:
        from sklearn.datasets import load_digits as read
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ModuleNotFoundError(
            'the digits come with scikit-learn, which is not installed; type: pip install "acdc-torch[digits]"',
            name=error.name,
        ) from error
    pixels, classes = read(return_X_y=True)
    images = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8)
    labels = torch.as_tensor(classes, dtype=torch.int64)
    parts = train_test_split(range(len(labels)), test_size=TEST, stratify=classes, random_state=split_seed)
    train, test = (torch.tensor(part) for part in parts)
    mean, std = images[train].mean(), images[train].std()
    images = ((images - mean) / std).to(device)
    labels = labels.to(device)
    train, test = train.to(device), test.to(device)
    return Split(images[train], labels[train], images[test], labels[test])
