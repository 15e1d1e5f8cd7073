"""The three networks whose training steps are timed: two residual networks and a small GPT."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def resnet20(classes: int = 10) -> nn.Module:
    """Build ResNet-20 for 32 x 32 images (He et al. 2016, §4.2)."""
    return ResNet(nn.Sequential(_conv(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU()), Basic, 16, (3, 3, 3), classes)


def resnet50(classes: int = 1000, width: int = 64) -> nn.Module:
    """Build ResNet-50 with the stride in the 3 x 3 convolution: 25.6 M parameters."""
    stem = nn.Sequential(_conv(3, width, 7, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    return ResNet(stem, Bottleneck, width, (3, 4, 6, 3), classes)


class ResNet(nn.Module):
    """A stem, stages that double the width and halve the resolution, and a linear classifier."""

    def __init__(
        self,
        stem: nn.Module,
        block: "type[Basic] | type[Bottleneck]",
        width: int,
        depths: Sequence[int],
        classes: int,
    ) -> None:
        super().__init__()
        channels, blocks = width, []
        for stage, depth in enumerate(depths):
            for index in range(depth):
                blocks.append(block(channels, width << stage, 2 if stage and not index else 1))
                channels = (width << stage) * block.expansion
        self.features = nn.Sequential(stem, *blocks)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).mean((2, 3)))


class _Residual(nn.Module):
    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(_conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


class Basic(_Residual):
    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        body = nn.Sequential(
            *(_conv(inputs, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()),
            *(_conv(width, width, 3), nn.BatchNorm2d(width)),
        )
        super().__init__(body, inputs, width, stride)


class Bottleneck(_Residual):
    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        body = nn.Sequential(
            *(_conv(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU()),
            *(_conv(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()),
            *(_conv(width, 4 * width, 1), nn.BatchNorm2d(4 * width)),
        )
        super().__init__(body, inputs, 4 * width, stride)


class GPT(nn.Module):
    """A decoder of pre-norm blocks; 8 layers of width 512 have 25 M parameters in their linear layers."""

    def __init__(self, vocabulary: int = 1024, context: int = 512, width: int = 512, depth: int = 8) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Decoder(width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(positions))))


class Decoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
