"""A recipe's data and model, as the loop wants them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acdc import data, models
from acdc.data.images import Batches, ImageData, Images, InMemory, hold_out
from acdc.data.labels import corrupt
from acdc.measure.memorization import Memorization
from acdc.recipes.schema import Recipe
from acdc.train import hardware
from acdc.train.distributed import World
from acdc.train.execution import Loaders

_EVALUATION_BATCH = 1000  # images of 32 x 32; fewer where they are larger


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is learned: the batches, and what a model of it must look like."""

    loaders: Loaders
    classes: int
    shape: tuple[int, int, int]
    notes: tuple[str, ...]
    images: ImageData | None = None  # where all of it is in memory
    files: str | None = None  # a checksum of all names, where images are read from folders

    def example(self, device: torch.device) -> torch.Tensor:
        return torch.zeros(1, *self.shape, device=device)

    def new_model(self, recipe: Recipe) -> nn.Module:
        """The same initial weights at each call: they are a function of the seed."""
        channels, seed = self.shape[0], recipe.run.seeds[0]
        return models.build(
            recipe.model.name, classes=self.classes, in_channels=channels, seed=seed, **recipe.model.options
        )

    def described(self) -> dict[str, Any]:
        """What tells other data from these: a run is not gone on with on others."""
        loaders = self.loaders
        found: dict[str, Any] = {"train": loaders.train.samples, "test": loaders.test.samples}
        if loaders.validation:
            found["validation"] = loaders.validation.samples
        return found | ({"files": self.files} if self.files else {})

    def close(self) -> None:
        """End worker processes, if there are any."""
        for batches in (self.loaders.train, self.loaders.test, self.loaders.validation):
            getattr(batches, "close", lambda: None)()


def load(
    recipe: Recipe, device: torch.device, *, root: str | Path | None = None, workers: int | None = None, world: World
) -> Problem:
    """Raises ValueError or OSError, in words, for data that is missing, altered or does not fit the recipe."""
    if data.describe(recipe.data.name).kind == "folder":
        return _folder(recipe, device, root, workers, world)
    said, seed = recipe.data, recipe.run.seeds[0]
    images = data.load(said.name, root=root, **said.options)
    if said.crop > (side := min(images.shape[1:])):
        size = " x ".join(map(str, images.shape[1:]))
        raise ValueError(f"data.crop = {said.crop:,}: images of {said.name} are {size}; set it to {side} or less")
    if said.validation:
        with _as_set("validation", "data.validation"):
            images = hold_out(images, said.validation)
    if said.corrupt:
        with _as_set("count", "data.corrupt"):
            images = corrupt(images, said.corrupt, seed=seed, kind=said.corrupt_kind)
    _check_batch(recipe, len(images.train), world)
    images = images.to(device)
    make = partial(_in_memory, images=images, recipe=recipe, world=world)
    loaders = Loaders(
        train=make(images.train, train=True),
        test=make(images.test),
        validation=make(images.validation) if images.validation else None,
        memorization=_memorization(images, recipe),
    )
    return Problem(loaders=loaders, classes=images.classes, shape=images.shape, notes=images.notes, images=images)


@contextmanager
def _as_set(argument: str, setting: str) -> Iterator[None]:
    """Errors name what the recipe calls it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(str(error).replace(f"{argument} = ", f"{setting} = ", 1)) from None


def _in_memory(part: Images, *, images: ImageData, recipe: Recipe, world: World, train: bool = False) -> Batches:
    said, seed = recipe.data, recipe.run.seeds[0]
    pixels = images.shape[1] * images.shape[2]
    return InMemory(
        part,
        images,
        batch_size=recipe.train.batch_size if train else max(1, _EVALUATION_BATCH * 1024 // pixels),
        train=train,
        seed=seed,
        crop=said.crop,
        flip=said.flip,
        channels_last=recipe.train.channels_last,
        rank=world.rank,
        world=world.size,
    )


def _memorization(images: ImageData, recipe: Recipe) -> Memorization | None:
    if not images.corrupted:
        return None
    said, seed = recipe.data, recipe.run.seeds[0]
    return Memorization(images, crop=said.crop, flip=said.flip, seed=seed, channels_last=recipe.train.channels_last)


def _folder(
    recipe: Recipe, device: torch.device, root: str | Path | None, workers: int | None, world: World
) -> Problem:
    from acdc.data.image_folder import ImageFolder

    said = recipe.data
    for key in ("validation", "corrupt", "crop"):
        if getattr(said, key):
            raise ValueError(f"data.{key} = {getattr(said, key)}: not for images read from folders; leave it out")
    workers = workers if workers is not None else max(1, hardware.cores() // world.size)
    shared: dict[str, Any] = {
        "device": device,
        "seed": recipe.run.seeds[0],
        "workers": workers,
        "rank": world.rank,
        "world": world.size,
        "channels_last": recipe.train.channels_last,
        "bad_limit": said.bad_limit,
        "flip": said.flip,
        **said.options,
    }
    place = data.find_root(root)
    train = ImageFolder(place, "train", train=True, batch_size=recipe.train.batch_size, **shared)
    test = ImageFolder(place, "val", train=False, batch_size=256 * world.size, **shared)
    _check_batch(recipe, train.samples, world)
    size = said.options.get("size", 224)
    return Problem(
        loaders=Loaders(train=train, test=test),
        classes=len(train.class_names),
        shape=(3, size, size),
        notes=(),
        files=f"{train.names_checksum()} {test.names_checksum()}",
    )


def _check_batch(recipe: Recipe, samples: int, world: World) -> None:
    batch = recipe.train.batch_size
    if batch > samples:
        raise ValueError(
            f"train.batch_size = {batch:,}: {recipe.data.name} has {samples:,} training images; set it to {samples:,} "
            "or less"
        )
    last = samples % batch or batch
    if last < world.size:
        raise ValueError(
            f"train.batch_size = {batch:,}: the last batch of an epoch has {last} images for {world.size} processes; "
            "set another batch size"
        )
