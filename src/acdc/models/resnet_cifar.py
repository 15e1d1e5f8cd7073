"""Residual networks for small images (He et al. 2016, §4.2), with 1 x 1 convolutions as shortcuts.

A 3 x 3 convolution, stages of basic blocks (the first block of every stage but the first halves the image), global
average pooling and one linear layer. Three stages of three blocks make ResNet20.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError
from acdc.models.initialise import Init, check_counts, check_init, initialise


class Block(nn.Module):
    """A block relu(x + bn(conv(relu(bn(conv(x)))))), with x through a 1 x 1 convolution where its shape changes."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, 1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(_conv(in_channels, channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network; `blocks` and `widths` are the numbers of blocks and channels in each stage.

    The initial weights depend on `seed` alone; without one they come from torch's global generator. `init` is "he", or
    "published" for torch's default in the last layer.
    """

    def __init__(
        self,
        *,
        blocks: Sequence[int],
        widths: Sequence[int],
        in_channels: int = 3,
        classes: int = 10,
        init: Init = "he",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_init(init)
        for argument, counts in (("blocks", blocks), ("widths", widths)):
            if len(counts) != len(blocks) or min(counts) < 1:
                allowed = "expected one count of blocks and one width for each stage, all above 0"
                instead = "for ResNet20 write ResNet(blocks=(3, 3, 3), widths=(16, 32, 64))"
                raise ArgumentError(argument, received=tuple(counts), allowed=allowed, instead=instead)
        check_counts(in_channels=in_channels, classes=classes)
        self.conv1 = _conv(in_channels, widths[0], 3, 1)
        self.bn1 = nn.BatchNorm2d(widths[0])
        stages, channels = [], widths[0]
        for index, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            strides = [1 if index == 0 else 2] + [1] * (count - 1)
            stages.append(
                nn.Sequential(*(Block(channels if i == 0 else width, width, s) for i, s in enumerate(strides)))
            )
            channels = width
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, classes)
        initialise(self, seed, linear_as_torch=init == "published")

    def forward(self, x: Tensor) -> Tensor:
        out = self.stages(F.relu(self.bn1(self.conv1(x))))
        return self.fc(out.mean(dim=(2, 3)))


def resnet20(*, in_channels: int = 3, classes: int = 10, init: Init = "he", seed: int | None = None) -> ResNet:
    """Build ResNet20: 272,474 parameters for CIFAR-10."""
    return ResNet(blocks=(3, 3, 3), widths=(16, 32, 64), in_channels=in_channels, classes=classes, init=init, seed=seed)


def digits_net(*, in_channels: int = 1, classes: int = 10, init: Init = "he", seed: int | None = None) -> ResNet:
    """Build a small network for the 8 x 8 grey digits: two stages of one block, 19,408 prunable weights."""
    return ResNet(blocks=(1, 1), widths=(16, 32), in_channels=in_channels, classes=classes, init=init, seed=seed)


def _conv(in_channels: int, channels: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, channels, size, stride=stride, padding=size // 2, bias=False)
