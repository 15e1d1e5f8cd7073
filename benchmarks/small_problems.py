"""Problems that a CPU trains in seconds to minutes, in a plain loop: the shock study and the remedies share them.

digits   the residual net with batch norm of the digits recipe, SGD with Nesterov momentum
mlp      two hidden layers with layer norm on the digits, AdamW
cifar    a narrow residual net on 4,000 images of CIFAR-10 at 16 x 16 pixels, cropped and mirrored, SGD; needs --data
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from acdc.data.cifar import load_cifar10
from acdc.data.digits import load_digits
from acdc.data.images import Images
from acdc.models.resnet_cifar import ResNet

NAMES = ("digits", "mlp", "cifar")
_WARM_UP = 0.05  # of the run, in which the rate rises
_CIFAR = (4000, 6000)  # training and test images


@dataclass(frozen=True)
class Problem:
    """Images on one side, a model and its optimizer on the other."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch: int
    new_model: Callable[[int], nn.Module]
    new_optimizer: Callable[[nn.Module], Optimizer]
    augmented: bool = False

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return len(self.train[1]) // self.batch

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an epoch's batches in random order."""
        images, labels = self.train
        order = torch.randperm(len(labels), generator=generator)
        for index in range(self.steps):
            chosen = order[index * self.batch : (index + 1) * self.batch]
            yield (self._augment(images[chosen], generator) if self.augmented else images[chosen]), labels[chosen]

    def _augment(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Mirror and shift a batch, all of its images alike."""
        down, right, mirror = torch.randint(0, 5, (3,), generator=generator).tolist()
        height, width = images.shape[2:]
        shifted = F.pad(images, (2, 2, 2, 2))[:, :, down : down + height, right : right + width]
        return shifted.flip(3) if mirror % 2 else shifted


def load(name: str, data: str | None = None) -> Problem:
    """Load a problem; `data` is where CIFAR-10 lies."""
    if name == "cifar":
        if data is None:
            raise ValueError("cifar needs --data DIR, where CIFAR-10 lies")
        whole = load_cifar10(data)
        train, test = (
            _floats(images, count, whole.mean, whole.std, halve=True)
            for images, count in zip((whole.train, whole.test), _CIFAR, strict=True)
        )
        return Problem(name, train, test, 100, _cifar_net, _sgd, augmented=True)
    whole = load_digits()
    parts = [
        _floats(images, len(images.labels), whole.mean, whole.std, whole.scale) for images in (whole.train, whole.test)
    ]
    build, optimizer = (_digits_net, _sgd) if name == "digits" else (_mlp, _adamw)
    return Problem(name, parts[0], parts[1], 64, build, optimizer)


def small_cifar(root: Path) -> tuple[TensorDataset, TensorDataset]:
    """Return 10,000 training images of CIFAR-10 and 5,000 test images, at 16 x 16 pixels, as data of a recipe."""
    whole = load_cifar10(root)
    train, test = (
        TensorDataset(F.avg_pool2d(part.pixels[:count].float(), 2).round().to(torch.uint8), part.labels[:count])
        for part, count in zip((whole.train, whole.test), (10_000, 5_000), strict=True)
    )
    return train, test


def rate(step: int, total: int) -> float:
    """Return the share of the highest learning rate: a short linear rise, then half a cosine down to 0."""
    warm = max(1, int(_WARM_UP * total))
    return min(1.0, (step + 1) / warm) * (1 + math.cos(math.pi * max(0, step - warm) / max(1, total - warm))) / 2


@torch.no_grad()
def evaluate(model: nn.Module, problem: Problem) -> tuple[float, float]:
    """Return test accuracy in % and loss; the model is in training mode before and after."""
    model.eval()
    outputs = torch.cat([model(images) for images in problem.test[0].split(1000)])
    model.train()
    labels = problem.test[1]
    return (outputs.argmax(1) == labels).float().mean().item() * 100, F.cross_entropy(outputs, labels).item()


@torch.no_grad()
def recalibrate(model: nn.Module, problem: Problem) -> bool:
    """Take batch norm's statistics anew over the training images; return whether there are any."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    kept = [module.momentum for module in norms]
    for module in norms:
        module.reset_running_stats()
        module.momentum = None  # a plain average
    for images in problem.train[0].split(500) if norms else ():
        model(images)
    for module, momentum in zip(norms, kept, strict=True):
        module.momentum = momentum
    return bool(norms)


def _floats(
    images: Images, count: int, mean: Sequence[float], std: Sequence[float], scale: float = 255, *, halve: bool = False
) -> tuple[Tensor, Tensor]:
    centre, width = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))
    pixels = (images.pixels[:count].float() / scale - centre) / width
    return (F.avg_pool2d(pixels, 2) if halve else pixels), images.labels[:count]


def _digits_net(seed: int) -> nn.Module:
    return ResNet(blocks=(1, 1), widths=(16, 32), in_channels=1, classes=10, seed=seed)


def _cifar_net(seed: int) -> nn.Module:
    return ResNet(blocks=(2, 2, 2), widths=(8, 16, 32), classes=10, seed=seed)


def _mlp(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    hidden = [layer for inputs in (64, 128) for layer in (nn.Linear(inputs, 128), nn.LayerNorm(128), nn.GELU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10))


def _sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)


def _adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
