"""Wide residual networks (Zagoruyko and Komodakis 2016, arXiv:1605.07146), in two variants.

Pre-activation blocks in three stages of 16, 32 and 64 times `width` channels; WRN-28-10 is the paper's CIFAR-100 model.

"published" is the network of the AC/DC experiments: convolutions with biases, the stride on a block's second
convolution, dropout right after its first one, shortcuts of the block's raw input, momentum .9 in the last batch norm
and torch's default initial weights. "usual" is the original: no biases, the stride on the first convolution, dropout
after the second ReLU, shortcuts of the pre-activated input where the shape changes, momentum .1, He's weights.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError
from acdc.models.initialise import check_counts, initialise, initialise_as_torch

Variant = Literal["published", "usual"]


class Block(nn.Module):
    """A block x + conv(relu(bn(conv(relu(bn(x)))))), with dropout between the convolutions.

    Where the shape changes, the shortcut is a 1 x 1 convolution.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float, published: bool) -> None:
        super().__init__()
        strides = (1, stride) if published else (stride, 1)
        self.published = published
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, strides[0], padding=1, bias=published)
        self.dropout = nn.Dropout(dropout)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, strides[1], padding=1, bias=published)
        self.shortcut = None
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Conv2d(in_channels, channels, 1, stride, bias=published)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x), inplace=True)
        out = self.conv1(active)
        if self.published:
            out = F.relu(self.bn2(self.dropout(out)), inplace=True)
        else:
            out = self.dropout(F.relu(self.bn2(out), inplace=True))
        if self.shortcut is not None:
            x = self.shortcut(x if self.published else active)
        return self.conv2(out) + x


class WideResNet(nn.Module):
    """A wide residual network of `depth` 6 n + 4, for n blocks in each stage.

    The initial weights depend on `seed` alone; without one they come from torch's global generator.
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 10,
        classes: int = 100,
        dropout: float = 0.3,
        in_channels: int = 3,
        variant: Variant = "published",
        seed: int | None = None,
    ) -> None:
        super().__init__()
        _check(depth, width, classes, dropout, in_channels, variant)
        published = variant == "published"
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=published)
        stages, channels = [], 16
        for stage_width, stride in ((16 * width, 1), (32 * width, 2), (64 * width, 2)):
            blocks = []
            for index in range((depth - 4) // 6):
                first = stride if index == 0 else 1
                blocks.append(Block(channels, stage_width, first, dropout, published))
                channels = stage_width
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(channels, momentum=0.9 if published else 0.1)
        self.fc = nn.Linear(channels, classes)
        if published:
            initialise_as_torch(self, seed)
        else:
            initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.stages(self.conv1(x))), inplace=True)
        return self.fc(out.mean(dim=(2, 3)))


def wrn28_10(
    *,
    classes: int = 100,
    dropout: float = 0.3,
    in_channels: int = 3,
    variant: Variant = "published",
    seed: int | None = None,
) -> WideResNet:
    """Build WRN-28-10: 36,546,980 parameters for CIFAR-100 as published, 36,536,884 as usual."""
    return WideResNet(28, 10, classes, dropout, in_channels, variant, seed)


def _check(depth: int, width: int, classes: int, dropout: float, in_channels: int, variant: str) -> None:
    if depth < 10 or (depth - 4) % 6:
        near = max(10, 6 * round((depth - 4) / 6) + 4)
        expected = "expected 6 n + 4 for n blocks in each stage (10, 16, 22, 28, …)"
        raise ArgumentError("depth", received=depth, allowed=expected, instead=f"write depth={near}")
    check_counts(width=width, classes=classes, in_channels=in_channels)
    if not 0 <= dropout < 1:
        raise ArgumentError(
            "dropout",
            received=dropout,
            allowed="expected a fraction from 0 to below 1",
            instead="write dropout=0.3 as published, 0 for none",
        )
    if variant not in ("published", "usual"):
        raise ArgumentError(
            "variant",
            received=variant,
            allowed="expected 'published' (the AC/DC paper's network) or 'usual' (Zagoruyko and Komodakis's)",
            instead="write variant='published'",
        )
