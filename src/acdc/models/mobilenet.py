"""MobileNetV1 (Howard et al. 2017, arXiv:1704.04861, table 1): 3 x 3 depthwise convolutions, each followed by a 1 x 1.

A 3 x 3 convolution of stride 2, thirteen such pairs, global average pooling and one linear layer. Batch norm and ReLU
follow every convolution.
"""

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError
from acdc.models.initialise import Init, check_counts, check_init, initialise, initialise_as_torch

# The output channels of each pair, and the stride of its depthwise convolution.
_PAIRS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


class Pair(nn.Module):
    """A depthwise convolution, which sees each channel alone, and a pointwise one, which mixes them."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(in_channels, in_channels, 3, stride, padding=1, groups=in_channels, bias=False)
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.pointwise = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.depthwise(x)), inplace=True)
        return F.relu(self.bn2(self.pointwise(out)), inplace=True)


class MobileNetV1(nn.Module):
    """MobileNetV1; `width` multiplies the channels of every convolution.

    The initial weights depend on `seed` alone; without one they come from torch's global generator. `init` is "he", or
    "published" for torch's default in all layers.
    """

    def __init__(
        self,
        *,
        width: float = 1.0,
        in_channels: int = 3,
        classes: int = 1000,
        init: Init = "he",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_init(init)
        if not 1 / 16 <= width <= 16:
            instead = "for the paper's network write MobileNetV1(width=1.0, classes=1000)"
            raise ArgumentError("width", received=width, allowed="expected a number from 1/16 to 16", instead=instead)
        check_counts(in_channels=in_channels, classes=classes)
        channels = int(32 * width)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        pairs = []
        for out, stride in _PAIRS:
            pairs.append(Pair(channels, int(out * width), stride))
            channels = int(out * width)
        self.pairs = nn.Sequential(*pairs)
        self.fc = nn.Linear(channels, classes)
        if init == "published":
            initialise_as_torch(self, seed)
        else:
            initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        out = self.pairs(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(out.mean(dim=(2, 3)))


def mobilenet_v1(
    *, width: float = 1.0, in_channels: int = 3, classes: int = 1000, init: Init = "he", seed: int | None = None
) -> MobileNetV1:
    """Build MobileNetV1: 4,231,976 parameters for ImageNet."""
    return MobileNetV1(width=width, in_channels=in_channels, classes=classes, init=init, seed=seed)
