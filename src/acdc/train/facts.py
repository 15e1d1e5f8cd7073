"""What a data set is like, read or not: how many images, of what shape, in how many classes."""

from dataclasses import dataclass

import torch

from acdc.recipes.schema import Recipe
from acdc.train import loading
from acdc.train.distributed import World


@dataclass(frozen=True, kw_only=True)
class Facts:
    train: int
    test: int
    shape: tuple[int, int, int]
    classes: int
    validation: int = 0
    missing: str | None = None  # why these are of the set as it is published

    @classmethod
    def of(cls, problem: loading.Problem) -> "Facts":
        loaders = problem.loaders
        return cls(
            train=loaders.train.samples,
            test=loaders.test.samples,
            shape=problem.shape,
            classes=problem.classes,
            validation=loaders.validation.samples if loaders.validation else 0,
        )

    def told(self) -> str:
        held = f", {self.validation:,} validation" if self.validation else ""
        images = f"{self.train:,} training{held} and {self.test:,} test images"
        return f"{images} of {' x '.join(map(str, self.shape))}, {self.classes:,} classes"

    def steps(self, batch_size: int) -> int:
        """Of an epoch."""
        return -(-self.train // batch_size)


_PUBLISHED = {
    "digits": Facts(train=1397, test=400, shape=(1, 8, 8), classes=10),
    "cifar10": Facts(train=50_000, test=10_000, shape=(3, 32, 32), classes=10),
    "cifar100": Facts(train=50_000, test=10_000, shape=(3, 32, 32), classes=100),
    "imagenet": Facts(train=1_281_167, test=50_000, shape=(3, 224, 224), classes=1000),
}


def facts_of(recipe: Recipe, root: str | None) -> Facts:
    """Of the data as it is found; of the set as it is published where it is not, unless `root` said where it lies."""
    try:
        problem = loading.load(recipe, torch.device("cpu"), root=root, workers=0, world=World())
    except (FileNotFoundError, NotADirectoryError, ModuleNotFoundError) as error:
        if root is not None or recipe.data.name not in _PUBLISHED:
            raise
        return _published(recipe, str(error))
    problem.close()
    return Facts.of(problem)


def _published(recipe: Recipe, missing: str) -> Facts:
    said, known = recipe.data, _PUBLISHED[recipe.data.name]
    train, has = known.train - said.validation, f"{said.name} has {known.train:,} training images"
    for key, value, most in (
        ("data.validation", said.validation, known.train - 1),
        ("data.corrupt", said.corrupt, train),
        ("train.batch_size", recipe.train.batch_size, train),
    ):
        if value > most:
            raise ValueError(f"{key} = {value:,}: {has}; set it to {most:,} or less")
    size = said.options.get("size", known.shape[1])
    if said.crop > size:
        images = f"images of {said.name} are {size} x {size}"
        raise ValueError(f"data.crop = {said.crop:,}: {images}; set it to {size} or less")
    return Facts(
        train=train,
        test=known.test,
        shape=(known.shape[0], size, size),
        classes=said.options.get("classes", known.classes),
        validation=said.validation,
        missing=missing,
    )
