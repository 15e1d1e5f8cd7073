"""Facts about data that a model, a method and a plan must fit: how much there is, and what a sample looks like.

Both kinds answer the same questions, so that checks, counts and plans need not know which they have.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from acdc.data.token_batches import streams_pass, windows_pass

Unit = Literal["image", "token"]


@dataclass(frozen=True, kw_only=True)
class ImageFacts:
    """Numbers that describe images: how many, of what shape, in how many classes."""

    unit: ClassVar[Unit] = "image"  # that FLOPs are counted for
    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int
    validation: int = 0
    missing: str | None = None  # why these describe the data set as published, and not as it is here

    def __str__(self) -> str:
        validation = f", {self.validation:,} validation" if self.validation else ""
        images = f"{self.train:,} training{validation} and {self.test:,} test images"
        return f"{images} of {' x '.join(map(str, self.shape))}, {self.classes:,} classes"

    def steps(self, batch_size: int) -> int:
        """Return the number of steps in an epoch."""
        return -(-self.train // batch_size)

    def trained(self, batch_size: int) -> int:
        """Return the number of images that an epoch trains on."""
        return self.train

    @property
    def batch_unit(self) -> str:
        """Return what a batch is counted in."""
        return "images"

    @property
    def sample(self) -> str:
        """Describe what a model receives."""
        return f"images of {' x '.join(map(str, self.shape))}"

    def model_arguments(self) -> Mapping[str, int]:
        """Return the arguments of a model that the data determines."""
        return {"classes": self.classes, "in_channels": self.shape[0]}

    def example(self, device: torch.device | str = "cpu") -> tuple[Tensor, int]:
        """Return a batch of one sample, and how many units it has: a black image is one."""
        return torch.zeros(1, *self.shape, device=device), 1


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """Numbers that describe a text: its tokens by part, their vocabulary, and how batches are cut from it."""

    unit: ClassVar[Unit] = "token"
    train: int
    test: int
    validation: int
    vocabulary: int
    length: int  # of a row of a batch
    evaluation_length: int
    order: Literal["windows", "streams"] = "windows"
    epoch_steps: int = 0  # 0 for a pass over the text
    missing: str | None = None

    def __str__(self) -> str:
        parts = f"{self.train:,} training, {self.validation:,} validation and {self.test:,} test tokens"
        return f"{parts}, {self.vocabulary:,} different ones, in {self.order} of {self.length:,}"

    def steps(self, batch_size: int) -> int:
        """Return the number of steps in an epoch; raise an ArgumentError if the text is shorter than a batch."""
        one_pass = (windows_pass if self.order == "windows" else streams_pass)(self.train, batch_size, self.length)
        return self.epoch_steps or one_pass

    def trained(self, batch_size: int) -> int:
        """Return the number of tokens that an epoch trains on."""
        return self.steps(batch_size) * batch_size * self.length

    @property
    def batch_unit(self) -> str:
        return f"rows of {self.length:,} tokens"

    @property
    def sample(self) -> str:
        return f"rows of {self.length:,} tokens out of {self.vocabulary:,}"

    def model_arguments(self) -> Mapping[str, int]:
        """Return the arguments of a model that the data determines."""
        return {"vocabulary": self.vocabulary}

    def example(self, device: torch.device | str = "cpu") -> tuple[Tensor, int]:
        """Return one row of tokens, and how many they are.

        Their numbers are spread as Zipf's law has it, by the logarithm of their rank: words are sorted by frequency,
        and what an adaptive softmax computes for one depends on how frequent it is.
        """
        ranks = torch.linspace(0, 1, self.length, dtype=torch.float64)
        numbers = (self.vocabulary**ranks - 1).clamp(0, self.vocabulary - 1).to(torch.int64)
        return numbers[None].to(device), self.length


Facts = ImageFacts | TextFacts
