"""The data of a recipe as batches for the training loop, or, if it is missing, its published facts."""

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
from acdc.data.random_labels import corrupt
from acdc.errors import ArgumentError, UsageError
from acdc.measure.memorization import Memorization
from acdc.recipes.schema import Recipe
from acdc.train import hardware
from acdc.train.distributed import World
from acdc.train.execution import Loaders

_EVALUATION_BATCH = 1000  # images of 32 x 32; fewer if they are larger


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """Numbers that describe a data set: how many images, of what shape, in how many classes."""

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


_PUBLISHED = {
    "digits": DataFacts(train=1397, test=400, shape=(1, 8, 8), classes=10),
    "cifar10": DataFacts(train=50_000, test=10_000, shape=(3, 32, 32), classes=10),
    "cifar100": DataFacts(train=50_000, test=10_000, shape=(3, 32, 32), classes=100),
    "imagenet": DataFacts(train=1_281_167, test=50_000, shape=(3, 224, 224), classes=1000),
}


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """The batches of a data set, and the facts a model for it must match."""

    loaders: Loaders
    name: str  # of the data
    classes: int
    shape: tuple[int, int, int]
    notes: tuple[str, ...]
    images: ImageData | None = None  # if all of it is in memory
    files: str | None = None  # a checksum of all file names, if images are read from folders

    @property
    def facts(self) -> DataFacts:
        loaders = self.loaders
        return DataFacts(
            train=loaders.train.samples,
            test=loaders.test.samples,
            shape=self.shape,
            classes=self.classes,
            validation=loaders.validation.samples if loaders.validation else 0,
        )

    def example(self, device: torch.device) -> torch.Tensor:
        """Return a batch of one black image."""
        return torch.zeros(1, *self.shape, device=device)

    def new_model(self, recipe: Recipe, processes: int = 1) -> nn.Module:
        """Build the recipe's model. Its initial weights depend only on the seed, so all calls return the same."""
        return build_model(recipe, self.facts, processes)

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes this data from other data, on which the run is not resumed."""
        loaders = self.loaders
        counts: dict[str, Any] = {"train": loaders.train.samples, "test": loaders.test.samples}
        if loaders.validation:
            counts["validation"] = loaders.validation.samples
        return counts | ({"files": self.files} if self.files else {})

    def close(self) -> None:
        """Stop worker processes, if there are any."""
        for batches in (self.loaders.train, self.loaders.test, self.loaders.validation):
            getattr(batches, "close", lambda: None)()


def build_model(recipe: Recipe, facts: DataFacts, processes: int = 1) -> nn.Module:
    """Build the recipe's model for such data, with the initial weights of the recipe's first seed.

    `processes` is how many train it together; batch norms of an evaluation do not depend on it.
    """
    return models.build(
        recipe.model.name,
        classes=facts.classes,
        in_channels=facts.shape[0],
        seed=recipe.run.seeds[0],
        bn_splits=recipe.norm_splits(processes),
        **recipe.model.options,
    )


def load_data(
    recipe: Recipe, device: torch.device, *, root: str | None, workers: int | None = None, world: World | None = None
) -> LoadedData:
    """Load a recipe's data, or raise a UsageError: its location and integrity are up to the user."""
    try:
        return load(recipe, device, root=root, workers=workers, world=world or World())
    except BrokenPipeError:  # the reader of our output is gone
        raise
    except (ModuleNotFoundError, ValueError, OSError) as error:
        raise UsageError([str(error)]) from None


def load(
    recipe: Recipe, device: torch.device, *, root: str | Path | None = None, workers: int | None = None, world: World
) -> LoadedData:
    """Load a recipe's data. A ValueError or OSError says what is missing, altered or does not fit the recipe."""
    if data.describe(recipe.data.name).kind == "folder":
        return _load_folder(recipe, device, root, workers, world)
    settings, seed = recipe.data, recipe.run.seeds[0]
    try:
        images = data.load(settings.name, root=root, **settings.options)
    except ArgumentError as error:
        raise error.under("data") from None
    if settings.crop > (side := min(images.shape[1:])):
        raise _too_large_a_crop(recipe, images.shape[1:], side)
    if settings.validation:
        with _naming("data.validation"):
            images = hold_out(images, settings.validation)
    if settings.corrupt:
        with _naming("data.corrupt"):
            images = corrupt(images, settings.corrupt, seed=seed, kind=settings.corrupt_kind)
    _check_batch(recipe, len(images.train), world)
    images = images.to(device)
    batches = partial(_in_memory, images=images, recipe=recipe, world=world)
    loaders = Loaders(
        train=batches(images.train, train=True),
        test=batches(images.test),
        validation=batches(images.validation) if images.validation else None,
        memorization=_memorization(images, recipe),
    )
    return LoadedData(
        loaders=loaders,
        name=images.name,
        classes=images.classes,
        shape=images.shape,
        notes=images.notes,
        images=images,
    )


def read_facts(recipe: Recipe, root: str | None) -> DataFacts:
    """Return the facts of the local data, or of the published data set if there is none and `root` is None.

    A `root` from the user promises that the data is there: otherwise an error says what is missing.
    """
    try:
        loaded = load(recipe, torch.device("cpu"), root=root, workers=0, world=World())
    except (FileNotFoundError, NotADirectoryError, ModuleNotFoundError) as error:
        if root is not None or recipe.data.name not in _PUBLISHED:
            raise
        return _published(recipe, str(error))
    loaded.close()
    return loaded.facts


def _published(recipe: Recipe, missing: str) -> DataFacts:
    settings, known = recipe.data, _PUBLISHED[recipe.data.name]
    train = known.train - settings.validation
    for setting, value, most in (
        ("data.validation", settings.validation, known.train - 1),
        ("data.corrupt", settings.corrupt, train),
        ("train.batch_size", recipe.train.batch_size, train),
    ):
        if value > most:
            raise _too_many_images(setting, value, recipe, known.train, most)
    size = settings.options.get("size", known.shape[1])
    if settings.crop > size:
        raise _too_large_a_crop(recipe, (size, size), size)
    return DataFacts(
        train=train,
        test=known.test,
        shape=(known.shape[0], size, size),
        classes=settings.options.get("classes", known.classes),
        validation=settings.validation,
        missing=missing,
    )


@contextmanager
def _naming(setting: str) -> Iterator[None]:
    """Rename a refused argument to its name in the recipe."""
    try:
        yield
    except ArgumentError as error:
        raise error.about(setting) from None


def _in_memory(part: Images, *, images: ImageData, recipe: Recipe, world: World, train: bool = False) -> Batches:
    settings, seed = recipe.data, recipe.run.seeds[0]
    pixels = images.shape[1] * images.shape[2]
    return InMemory(
        part,
        images,
        batch_size=recipe.train.batch_size if train else max(1, _EVALUATION_BATCH * 1024 // pixels),
        train=train,
        seed=seed,
        crop=settings.crop,
        flip=settings.flip,
        sizes=recipe.image_sizes(images.shape) if train else None,
        channels_last=recipe.train.channels_last,
        rank=world.rank,
        world=world.size,
    )


def _memorization(images: ImageData, recipe: Recipe) -> Memorization | None:
    if not images.corrupted:
        return None
    crop, flip = recipe.data.crop, recipe.data.flip
    return Memorization(
        images, crop=crop, flip=flip, seed=recipe.run.seeds[0], channels_last=recipe.train.channels_last
    )


def _load_folder(
    recipe: Recipe, device: torch.device, root: str | Path | None, workers: int | None, world: World
) -> LoadedData:
    from acdc.data.image_folder import ImageFolder

    settings = recipe.data
    for key in ("validation", "corrupt", "crop"):
        if value := getattr(settings, key):
            refused = "not available for images read from folders"
            raise ArgumentError(f"data.{key}", received=value, allowed=refused, instead="remove it")
    workers = workers if workers is not None else max(1, hardware.cores() // world.size)
    shared: dict[str, Any] = {
        "device": device,
        "seed": recipe.run.seeds[0],
        "workers": workers,
        "rank": world.rank,
        "world": world.size,
        "channels_last": recipe.train.channels_last,
        "bad_limit": settings.bad_limit,
        "flip": settings.flip,
        **settings.options,
    }
    folder, size = data.find_root(root), settings.options.get("size", data.IMAGE_SIZE)
    if settings.name == "folder":  # images of any size are tested like ImageNet's
        shared = {"resize": round(size * 256 / 224), **shared}
    sizes = recipe.image_sizes((3, size, size))
    train = ImageFolder(folder, "train", train=True, batch_size=recipe.train.batch_size, sizes=sizes, **shared)
    test = ImageFolder(folder, "val", train=False, batch_size=256 * world.size, **shared)
    _check_batch(recipe, train.samples, world)
    return LoadedData(
        loaders=Loaders(train=train, test=test),
        classes=len(train.class_names),
        name=data.own_name(settings.name, root, classes=len(train.class_names)),
        shape=(3, size, size),
        notes=(),
        files=f"{train.names_checksum()} {test.names_checksum()}",
    )


def _check_batch(recipe: Recipe, samples: int, world: World) -> None:
    batch = recipe.train.batch_size
    if batch > samples:
        raise _too_many_images("train.batch_size", batch, recipe, samples, samples)
    recipe.norm_splits(world.size)  # raises if batch norms cannot see so many images
    last = samples % batch or batch
    if last < world.size:
        raise ArgumentError(
            "train.batch_size",
            received=batch,
            allowed=f"the last batch of an epoch has {last} images for {world.size} processes",
            instead="choose another batch size",
        )


def _too_many_images(setting: str, value: int, recipe: Recipe, images: int, most: int) -> ArgumentError:
    allowed = f"{recipe.data.name} has {images:,} training images"
    return ArgumentError(setting, received=value, allowed=allowed, instead=f"set it to {most} or less")


def _too_large_a_crop(recipe: Recipe, size: tuple[int, ...], most: int) -> ArgumentError:
    allowed = f"images of {recipe.data.name} are {' x '.join(map(str, size))}"
    return ArgumentError("data.crop", received=recipe.data.crop, allowed=allowed, instead=f"set it to {most} or less")
