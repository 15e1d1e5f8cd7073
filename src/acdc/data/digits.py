"""scikit-learn's digits: 1,797 grey images of 8 x 8 pixels, ten classes. No download."""

from typing import Annotated

import torch

from acdc.data.images import ImageData, Images
from acdc.typed_data import Limits

CLASSES = 10
TRAIN, TEST = 1397, 400
WHITE = 16  # pixels are counts of 0 to 16
SplitSeed = Annotated[int, Limits(least=0, most=2**32 - 1, text="a whole number from 0 to 4294967295")]


def load_digits(device: torch.device | str = "cpu", *, split_seed: SplitSeed = 0) -> ImageData:
    """Load the digits onto `device`, with the mean and deviation of the training images.

    Each class has the same share in both parts. The split has its own seed, so runs with other seeds share a test set.
    """
    try:
        from sklearn.datasets import load_digits as read
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        raise ModuleNotFoundError(
            'the digits come with scikit-learn, which is not installed; run: pip install "acdc-torch[digits]" (in a '
            'checkout: ".[digits]")',
            name=error.name,
        ) from error
    pixels, classes = read(return_X_y=True)
    parts = train_test_split(range(len(classes)), test_size=TEST, stratify=classes, random_state=split_seed)
    train, test = (torch.tensor(part) for part in parts)
    whole = Images(
        torch.as_tensor(pixels, dtype=torch.uint8).view(-1, 1, 8, 8), torch.as_tensor(classes, dtype=torch.int64)
    )
    training_pixels = whole.pixels[train].float() / WHITE
    return ImageData(
        name="digits",
        classes=CLASSES,
        train=whole.take(train).to(device),
        test=whole.take(test).to(device),
        mean=(training_pixels.mean().item(),),
        std=(training_pixels.std().item(),),
        scale=WHITE,
    )
