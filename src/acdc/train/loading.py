"""The data of a recipe as batches for the training loop, or, if it is missing, its published facts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acdc import data, models
from acdc.data.data_facts import Facts, ImageFacts, TextFacts
from acdc.data.images import Batches, ImageData, Images, InMemory, hold_out
from acdc.data.random_labels import corrupt
from acdc.data.text import LENGTH, TextData, load_text
from acdc.data.vocabulary import BPE_SIZE
from acdc.errors import ArgumentError, UsageError
from acdc.measure.memorization import Memorization
from acdc.recipes.schema import Recipe
from acdc.train import hardware
from acdc.train.distributed import World
from acdc.train.execution import Loaders
from acdc.train.text_loaders import text_facts, token_loaders

_EVALUATION_BATCH = 1000  # images of 32 x 32; fewer if they are larger


_PUBLISHED = {
    "digits": ImageFacts(train=1397, test=400, shape=(1, 8, 8), classes=10),
    "cifar10": ImageFacts(train=50_000, test=10_000, shape=(3, 32, 32), classes=10),
    "cifar100": ImageFacts(train=50_000, test=10_000, shape=(3, 32, 32), classes=100),
    "imagenet": ImageFacts(train=1_281_167, test=50_000, shape=(3, 224, 224), classes=1000),
}


# The published counts of WikiText's words, with an end of each line; Merity et al. 2016.
_PUBLISHED_TEXT = {
    "wikitext2": {"train": 2_088_628, "validation": 217_646, "test": 245_569, "vocabulary": 33_278},
    "wikitext103": {"train": 103_227_021, "validation": 217_646, "test": 245_569, "vocabulary": 267_735},
}
_UNKNOWN_TEXT = {"train": 10_000_000, "validation": 500_000, "test": 500_000}  # tokens, to plan with
_UNKNOWN_VOCABULARY = {"words": 50_000, "characters": 256, "bpe": BPE_SIZE}


@dataclass(frozen=True, kw_only=True)
class LoadedData:
    """The batches of a data set, and the facts a model for it must match."""

    loaders: Loaders
    name: str  # of the data
    facts: Facts
    notes: tuple[str, ...]
    images: ImageData | None = None  # if all of it is in memory
    files: str | None = None  # a checksum of all file names, if images are read from folders
    text: TextData | None = None

    def new_model(self, recipe: Recipe, processes: int = 1) -> nn.Module:
        """Build the recipe's model. Its initial weights depend only on the seed, so all calls return the same."""
        return build_model(recipe, self.facts, processes)

    def identity(self) -> dict[str, Any]:
        """Return what distinguishes this data from other data, on which the run is not resumed."""
        facts = self.facts
        counts: dict[str, Any] = {"train": facts.train, "test": facts.test}
        if facts.validation:
            counts["validation"] = facts.validation
        if self.text:
            counts |= {"text": self.text.packed.info.source, "vocabulary": self.text.vocabulary.digest}
        return counts | ({"files": self.files} if self.files else {})

    def close(self) -> None:
        """Stop worker processes, if there are any."""
        for batches in (self.loaders.train, self.loaders.test, self.loaders.validation):
            getattr(batches, "close", lambda: None)()


def build_model(recipe: Recipe, facts: Facts, processes: int = 1) -> nn.Module:
    """Build the recipe's model for such data, with the initial weights of the recipe's first seed.

    `processes` is how many train it together; batch norms of an evaluation do not depend on it.
    """
    return models.build(
        recipe.model.name,
        **facts.model_arguments(),
        seed=recipe.run.seeds[0],
        bn_splits=recipe.norm_splits(processes),
        **recipe.model.options,
    )


def load_data(
    recipe: Recipe,
    device: torch.device,
    *,
    root: str | None,
    workers: int | None = None,
    world: World | None = None,
    vocabulary: Path | None = None,
) -> LoadedData:
    """Load a recipe's data, or raise a UsageError: its location and integrity are up to the user.

    `vocabulary` is that of a run whose models are to be evaluated, on this text or another.
    """
    try:
        return load(recipe, device, root=root, workers=workers, world=world or World(), vocabulary=vocabulary)
    except BrokenPipeError:  # the reader of our output is gone
        raise
    except (ModuleNotFoundError, ValueError, OSError) as error:
        raise UsageError([str(error)]) from None


def load(
    recipe: Recipe,
    device: torch.device,
    *,
    root: str | Path | None = None,
    workers: int | None = None,
    world: World,
    vocabulary: Path | None = None,
) -> LoadedData:
    """Load a recipe's data. A ValueError or OSError says what is missing, altered or does not fit the recipe."""
    kind = data.describe(recipe.data.name).kind
    if kind == "text":
        return _load_text(recipe, device, root, world, vocabulary)
    if kind == "folder":
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
        facts=_image_facts(loaders, images.shape, images.classes),
        notes=images.notes,
        images=images,
    )


def _image_facts(loaders: Loaders, shape: tuple[int, int, int], classes: int) -> ImageFacts:
    validation = loaders.validation.samples if loaders.validation else 0
    return ImageFacts(
        train=loaders.train.samples, test=loaders.test.samples, shape=shape, classes=classes, validation=validation
    )


def _load_text(
    recipe: Recipe, device: torch.device, root: str | Path | None, world: World, vocabulary: Path | None
) -> LoadedData:
    options: dict[str, Any] = dict(recipe.data.options) | ({"vocabulary": str(vocabulary)} if vocabulary else {})
    say = print if world.first else lambda text: None

    def read() -> TextData:
        return load_text(data.find_text_root(recipe.data.name, root), say=say, **options)

    try:
        world.on_rank_zero(lambda: read() and None)  # packs the text; the others then find it packed
        text = read()
    except ArgumentError as error:
        raise (error if error.argument.startswith(("data", "train.")) else error.under("data")) from None
    facts = text_facts(text)
    batch = recipe.train.batch_size
    if batch < world.size:
        allowed = f"fewer rows than the {world.size} processes"
        raise ArgumentError("train.batch_size", received=batch, allowed=allowed, instead=f"set it to {world.size}")
    # A text that models are only evaluated on may be shorter than a batch of training.
    cut = (facts, batch) if vocabulary is None else (replace(facts, length=1), world.size)
    loaders = token_loaders(text, *cut, device, seed=recipe.run.seeds[0], rank=world.rank, world=world.size)
    limit = text.settings.epoch_evaluation
    short = [part for part in ("valid", "test") if limit and limit < text.counts(part).tokens - 1]
    partly = f"after each epoch only the first {limit:,} tokens of a part are evaluated; the final models on all"
    return LoadedData(
        loaders=loaders, name=text.name, facts=facts, notes=(*text.notes, *([partly] if short else ())), text=text
    )


def read_facts(recipe: Recipe, root: str | None) -> Facts:
    """Return the facts of the local data, or of the published data set if there is none and `root` is None.

    A `root` from the user promises that the data is there: otherwise an error says what is missing.
    """
    try:
        loaded = load(recipe, torch.device("cpu"), root=root, workers=0, world=World())
    except (FileNotFoundError, NotADirectoryError, ModuleNotFoundError) as error:
        if root is None and data.describe(recipe.data.name).kind == "text":
            return _published_text(recipe, str(error))
        if root is not None or recipe.data.name not in _PUBLISHED:
            raise
        return _published(recipe, str(error))
    loaded.close()
    return loaded.facts


def _published(recipe: Recipe, missing: str) -> ImageFacts:
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
    return ImageFacts(
        train=train,
        test=known.test,
        shape=(known.shape[0], size, size),
        classes=settings.options.get("classes", known.classes),
        validation=settings.validation,
        missing=missing,
    )


def _published_text(recipe: Recipe, missing: str) -> TextFacts:
    """Return the published facts of a text, or those of an imaginary one to plan with."""
    options = recipe.data.options
    known = _PUBLISHED_TEXT.get(recipe.data.name)
    counts = known or _UNKNOWN_TEXT
    vocabulary = options.get("size") or (known or {}).get("vocabulary") or _UNKNOWN_VOCABULARY[options["tokens"]]
    if known is None:
        missing = f"{missing}. The plan is for an imaginary text of {counts['train']:,} tokens"
    length = options.get("length", LENGTH)
    return TextFacts(
        train=counts["train"],
        validation=counts["validation"],
        test=counts["test"],
        vocabulary=vocabulary,
        length=length,
        evaluation_length=options.get("evaluation_length", length),
        order=options.get("order", "windows"),
        epoch_steps=options.get("steps", 0),
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
    loaders = Loaders(train=train, test=test)
    return LoadedData(
        loaders=loaders,
        facts=_image_facts(loaders, (3, size, size), len(train.class_names)),
        name=data.own_name(settings.name, root, classes=len(train.class_names)),
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
