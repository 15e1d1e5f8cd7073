"""Residual networks for ImageNet (He et al. 2016, §4.1), version 1.5: a bottleneck's stride is in its 3 x 3.

Names and shapes are those of torchvision's state dicts, whose weights load unchanged.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError
from acdc.models.initialise import Init, check_counts, check_init, initialise


class Basic(nn.Module):
    """A basic block, relu(x + bn(conv(relu(bn(conv(x)))))), with two 3 x 3 convolutions: ResNet18 and 34."""

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = _downsample(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)), inplace=True)


class Bottleneck(nn.Module):
    """A bottleneck block of 1 x 1, 3 x 3 and 1 x 1 convolutions, the last to 4 x `channels`: ResNet50 and 101."""

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(in_channels, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _conv(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _conv(channels, 4 * channels, 1)
        self.bn3 = nn.BatchNorm2d(4 * channels)
        self.downsample = _downsample(in_channels, 4 * channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet(nn.Module):
    """A residual network; `blocks` is the number of blocks in each of the four stages.

    The initial weights depend on `seed` alone; without one they come from torch's global generator. `init` is "he", or
    "published" for torch's default in the last layer.
    """

    def __init__(
        self,
        *,
        block: type[Basic] | type[Bottleneck],
        blocks: Sequence[int],
        in_channels: int = 3,
        classes: int = 1000,
        init: Init = "he",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_init(init)
        if len(blocks) != 4 or min(blocks) < 1:
            instead = "for ResNet50 write ResNet(block=Bottleneck, blocks=(3, 4, 6, 3))"
            allowed = "expected four counts of blocks, each above 0"
            raise ArgumentError("blocks", received=tuple(blocks), allowed=allowed, instead=instead)
        check_counts(in_channels=in_channels, classes=classes)
        self.conv1 = _conv(in_channels, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        width = block.expansion
        self.layer1 = _stage(block, 64, 64, blocks[0], 1)
        self.layer2 = _stage(block, 64 * width, 128, blocks[1], 2)
        self.layer3 = _stage(block, 128 * width, 256, blocks[2], 2)
        self.layer4 = _stage(block, 256 * width, 512, blocks[3], 2)
        self.fc = nn.Linear(512 * width, classes)
        initialise(self, seed, linear_as_torch=init == "published")

    def forward(self, x: Tensor) -> Tensor:
        out = self.maxpool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        return self.fc(out.mean(dim=(2, 3)))


def resnet18(*, in_channels: int = 3, classes: int = 1000, init: Init = "he", seed: int | None = None) -> ResNet:
    """Build ResNet18: 11,689,512 parameters for ImageNet."""
    return ResNet(block=Basic, blocks=(2, 2, 2, 2), in_channels=in_channels, classes=classes, init=init, seed=seed)


def resnet34(*, in_channels: int = 3, classes: int = 1000, init: Init = "he", seed: int | None = None) -> ResNet:
    """Build ResNet34: 21,797,672 parameters for ImageNet."""
    return ResNet(block=Basic, blocks=(3, 4, 6, 3), in_channels=in_channels, classes=classes, init=init, seed=seed)


def resnet50(*, in_channels: int = 3, classes: int = 1000, init: Init = "he", seed: int | None = None) -> ResNet:
    """Build ResNet50: 25,557,032 parameters for ImageNet."""
    return ResNet(block=Bottleneck, blocks=(3, 4, 6, 3), in_channels=in_channels, classes=classes, init=init, seed=seed)


def resnet101(*, in_channels: int = 3, classes: int = 1000, init: Init = "he", seed: int | None = None) -> ResNet:
    """Build ResNet101: 44,549,160 parameters for ImageNet."""
    return ResNet(
        block=Bottleneck, blocks=(3, 4, 23, 3), in_channels=in_channels, classes=classes, init=init, seed=seed
    )


def _stage(
    block: type[Basic] | type[Bottleneck], in_channels: int, channels: int, count: int, stride: int
) -> nn.Sequential:
    out = channels * block.expansion
    return nn.Sequential(
        block(in_channels, channels, stride), *(block(out, channels, stride=1) for _ in range(count - 1))
    )


def _downsample(in_channels: int, channels: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and in_channels == channels:
        return None
    return nn.Sequential(_conv(in_channels, channels, 1, stride), nn.BatchNorm2d(channels))


def _conv(in_channels: int, channels: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, channels, size, stride=stride, padding=size // 2, bias=False)
