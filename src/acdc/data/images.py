"""Images of one size, held on the device as uint8 and augmented there, a batch at a time. No worker processes.

An epoch is a pure function of seed and epoch: its order, crops and flips are all drawn in advance, on the CPU, whatever
the device. So a run that is resumed inside an epoch, or shared between ranks, sees the same images as one that is not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from acdc.data.image_sizes import ImageSizes, scaled
from acdc.errors import ArgumentError

_GPU_VALUES = 1 << 24  # values augmented at a time on a GPU: 64 MB, 5,461 images of 3 x 32 x 32


class BadImagesError(RuntimeError):
    """More unreadable image files than a run may skip; `enough` is a limit that would let it continue."""

    def __init__(self, text: str, enough: int | None = None) -> None:
        super().__init__(text)
        self.enough = enough


class WorkerError(RuntimeError):
    """The unexpected death of a process that reads images."""


class Batches(Protocol):
    """The interface that the training loop needs of data."""

    samples: int  # in an epoch, over all ranks
    batch_size: int  # over all ranks
    labels: Tensor  # of all samples, in the order of an evaluation

    @property
    def sizes(self) -> ImageSizes | None:
        """Return the sizes of training images that grow; None if they have one size."""
        ...

    @property
    def unread(self) -> Sequence[int]:
        """Return the indices of the samples that the latest evaluation had to leave out, on this rank."""
        ...

    @property
    def steps(self) -> int:
        """Return the number of batches in an epoch; the last may be smaller."""
        ...

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this rank's share of the epoch's batches from `first` on: normalised images, and labels."""
        ...


@runtime_checkable
class FromFiles(Protocol):
    """The additional interface of batches that are read from files on demand."""

    skipped: list[str]  # files that this rank could not read

    def refuse_too_many(self, skipped: Sequence[str]) -> None:
        """Raise a BadImagesError if these are more than may be skipped."""
        ...


@dataclass(frozen=True)
class Images:
    """Pixels of shape (N, channels, height, width), uint8 or float32, and N labels."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Images":
        return Images(self.pixels.to(device), self.labels.to(device))

    def take(self, chosen: Tensor) -> "Images":
        chosen = chosen.to(self.labels.device)
        return Images(self.pixels[chosen], self.labels[chosen])


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """A data set. `mean` and `std` are those of the pixels, one per channel, in units of `scale`."""

    name: str
    classes: int
    train: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    validation: Images | None = None
    notes: tuple[str, ...] = ()  # what a reader of the run should know: labels corrupted, and how many
    corrupted: dict[str, Tensor] = field(default_factory=dict)  # of the training set: index, given, true
    corruption: tuple[str, int] | None = None  # kind and seed of the corrupted labels

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width

    def to(self, device: torch.device | str) -> "ImageData":
        held = self.validation.to(device) if self.validation else None
        return replace(self, train=self.train.to(device), test=self.test.to(device), validation=held)


def hold_out(data: ImageData, count: int, *, seed: int = 0) -> ImageData:
    """Set `count` training images aside, for choosing between models without looking at the test set.

    The split has its own seed, so that runs of different seeds choose on the same images.
    """
    total = len(data.train)
    if not 0 < count < total:
        allowed = f"{data.name} has {total:,} training images"
        raise ArgumentError("count", received=count, allowed=allowed, instead=f"set aside 1 to {total - 1}")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    kept, aside = order[count:].sort().values, order[:count].sort().values
    corrupted, notes = data.corrupted, data.notes
    if corrupted:
        place = torch.full((total,), -1)
        place[kept] = torch.arange(total - count)
        index = place[corrupted["index"]]
        stays = index >= 0
        corrupted = {key: value[stays] for key, value in corrupted.items()} | {"index": index[stays]}
        notes += (f"{int((~stays).sum()):,} of the random labels were set aside with the validation images",)
    return replace(
        data, train=data.train.take(kept), validation=data.train.take(aside), corrupted=corrupted, notes=notes
    )


def share(start: int, stop: int, rank: int, world: int) -> slice:
    """Return a rank's part of range(start, stop): in order of rank, the first ones larger by at most one."""
    each, rest = divmod(stop - start, world)
    begin = start + rank * each + min(rank, rest)
    return slice(begin, begin + each + (rank < rest))


def full_size_epoch(batches: Batches) -> int:
    """Return an epoch whose images have their full size: the first such one."""
    return batches.sizes.end if batches.sizes is not None else 0


def full_share(batches: Batches, rank: int, world: int) -> int:
    """Return how many images of a full batch a rank takes; the last batch of an epoch may have fewer."""
    part = share(0, min(batches.batch_size, batches.samples), rank, world)
    return part.stop - part.start


class InMemory:
    """Batches of `images` held in memory, shuffled and augmented if `train` is set.

    `crop` pads with that many black pixels on each side and cuts a window of the images' own size; `flip` mirrors half
    of them; `sizes` then scales them down in early epochs. With several ranks each takes its part of every batch.
    """

    def __init__(
        self,
        images: Images,
        data: ImageData,
        *,
        batch_size: int,
        train: bool = False,
        seed: int = 0,
        crop: int = 0,
        flip: bool = False,
        sizes: ImageSizes | None = None,
        channels_last: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.sizes = sizes
        self.samples, self.batch_size = len(images), batch_size
        self.labels, self.unread = images.labels, ()
        self._train, self._seed = train, seed
        self._crop, self._flip = (crop, flip) if train else (0, False)
        self._pixels = F.pad(images.pixels, (self._crop,) * 4) if self._crop else images.pixels
        self._height, self._width = images.pixels.shape[2:]
        self._rank, self._world = rank, world
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        device = images.pixels.device
        self._device = device
        # A GPU augments the images of many batches in the time it takes to launch one batch's kernels.
        values = batch_size * images.pixels[0].numel()
        self._at_once = max(1, _GPU_VALUES // values) if device.type == "cuda" else 1
        mean, std = (torch.tensor(values, device=device).view(1, -1, 1, 1) for values in (data.mean, data.std))
        self._shift, self._factor = mean / std, 1 / (std * data.scale)
        self._channel = torch.arange(images.pixels.shape[1], device=device).view(1, -1, 1, 1)
        self._rows = torch.arange(self._height, device=device).view(1, 1, -1, 1)
        self._columns = torch.arange(self._width, device=device).view(1, 1, 1, -1)

    @property
    def steps(self) -> int:
        return -(-self.samples // self.batch_size)

    def batches(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        drawn = self._draw(epoch)
        starts = range(first * self.batch_size, self.samples, self.batch_size)
        for begin in range(0, len(starts), self._at_once):
            shares = [
                share(start, min(start + self.batch_size, self.samples), self._rank, self._world)
                for start in starts[begin : begin + self._at_once]
            ]
            sizes = [part.stop - part.start for part in shares]
            here = torch.cat([torch.arange(part.start, part.stop) for part in shares]).to(self._device)
            images, labels = self._augment(*(values[here] for values in drawn))
            images = self._resized(images, epoch)
            yield from zip(images.split(sizes), labels.split(sizes), strict=True)

    def _augment(self, index: Tensor, down: Tensor, right: Tensor, mirror: Tensor) -> tuple[Tensor, Tensor]:
        """Return cropped, mirrored and normalised images, and their labels."""
        if self._crop or self._flip:
            columns = torch.where(mirror, self._width - 1 - self._columns, self._columns) + right
            pixels = self._pixels[index.view(-1, 1, 1, 1), self._channel, self._rows + down, columns]
        else:
            pixels = self._pixels[index]
        images = pixels.to(torch.float32, memory_format=self._format).mul_(self._factor).sub_(self._shift)
        return images, self.labels[index]

    def _resized(self, images: Tensor, epoch: int) -> Tensor:
        """Return the images in the size of the epoch, scaled bilinearly with antialiasing."""
        if self.sizes is None or (side := self.sizes.at(epoch)) == self.sizes.full:
            return images
        _, height, width = scaled((images.shape[1], self._height, self._width), side)
        small = F.interpolate(images, (height, width), mode="bilinear", antialias=True)
        return small.contiguous(memory_format=self._format)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw, for every image of the epoch in order: its index, its crop's offsets down and right, and mirroring."""
        shape = (self.samples, 1, 1, 1)
        if not self._train:
            nothing = torch.zeros(shape, dtype=torch.int64, device=self._device)
            return torch.arange(self.samples, device=self._device), nothing, nothing, nothing.bool()
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
        drawn = (
            torch.randperm(self.samples, generator=generator),
            torch.randint(2 * self._crop + 1, shape, generator=generator),
            torch.randint(2 * self._crop + 1, shape, generator=generator),
            torch.rand(shape, generator=generator) < (0.5 if self._flip else 0.0),
        )
        order, down, right, mirror = (values.to(self._device) for values in drawn)
        return order, down, right, mirror
