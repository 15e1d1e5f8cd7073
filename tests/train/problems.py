"""Small recipes on made images, for tests of the trainer."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from acdc.data.data_facts import ImageFacts
from acdc.data.image_sizes import ImageSizes
from acdc.measure.predict import size_shares
from acdc.recipes import load
from acdc.recipes.fit import count_uses
from acdc.recipes.schema import Recipe
from acdc.runs.records import EpochRow
from acdc.train.distributed import World
from acdc.train.execution import Execution, Setting
from acdc.train.loading import LoadedData
from acdc.train.loading import load as load_data
from acdc.train.stage import Stage
from tests.conformance.harness import DEVICE

EAGER = Execution(False, False, ())
TABLES: dict[str, Any] = {
    "model": {"name": "digits_net"},
    "data": {"name": "synthetic", "classes": 4, "shape": [1, 8, 8], "train": 70, "test": 40, "crop": 1, "flip": True},
    "optimizer": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 5e-4},
    "rate": {"shape": "cosine", "warmup": 1},
    "train": {"epochs": 4, "batch_size": 16},
    "method": {"sparsity": 0.8, "schedule": "paper"},
    "run": {"finetune": True},
}


JPEGS = (
    "train.batch_size=4", "train.precision=fp32", "model.width=0.25", "data.size=32", "data.resize=36",
    "data.classes=2", "run.finetune=false", "model.bn_splits=1",
)  # fmt: skip
"""Settings of imagenet-mobilenet for the images of `jpegs`."""


def jpegs(root: Path) -> Path:
    """Dark cats and bright dogs, six of each to train on and three to test."""
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 6), ("val", 3)):
        for label, name in enumerate(("cat", "dog")):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(100 * label, 100 * label + 100, (40, 50, 3), generator=generator)
                Image.fromarray(pixels.byte().numpy()).save(root / split / name / f"{number}.jpg")
    return root


class MadeBatches:
    """Batches that a test makes itself: it says how many there are, and yields them."""

    samples: int
    batch_size: int
    steps: int
    labels = torch.zeros(0, dtype=torch.int64)
    unread: Sequence[int] = ()
    sizes: ImageSizes | None = None


def recipe(*settings: str) -> Recipe:
    """The small recipe, changed by `a.b=value` settings."""
    return load.from_tables("small", TABLES, settings)


def problem(said: Recipe, world: World | None = None) -> LoadedData:
    return load_data(said, torch.device(DEVICE), world=world or World())


def stage(
    folder: Path,
    *settings: str,
    execution: Execution = EAGER,
    change: Callable[[Setting], None] = lambda setting: None,
) -> Stage:
    """The method's stage of the small recipe, about to begin."""
    said = recipe(*settings)
    device = torch.device(DEVICE)
    setting = Setting(device=device, execution=execution, checkpoints=folder / "checkpoints")
    change(setting)
    learned = problem(said, setting.world)
    torch.manual_seed(0)
    model = learned.new_model(said).to(device)
    uses, facts = count_uses(model, learned.facts), learned.facts
    sizes = learned.loaders.train.sizes
    shares = size_shares(model, uses, sizes, facts.shape) if sizes and isinstance(facts, ImageFacts) else None
    method = said.build_method()
    return Stage(0, "acdc", model, learned.loaders, said, setting, uses=uses, size_shares=shares, method=method)


def outcome(rows: list[EpochRow]) -> list[tuple]:
    """What a row says, apart from the time it took."""
    return [tuple(value for name, value in vars(row).items() if not name.endswith("seconds")) for row in rows]
