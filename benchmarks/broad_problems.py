"""Problems of many kinds that a CPU trains in seconds, each with its net, optimizer and rate, in a plain loop.

The floor and the late rise of ACDC's default were chosen on the problems of EXPLORED, and on none of HELD_OUT's; its
criterion was chosen with both in sight, and FRESH were made after that. Eight make their own data, four take that of
scikit-learn, five CIFAR-10 at 16 x 16, one a text.

tabular   ten classes of made-up clusters, MLP with batch norm, Adam, cosine
cnn       CIFAR-10, convolutions without norm, AdamW, one cycle
vit       CIFAR-10, a small vision transformer, AdamW, cosine
letters   the next letter of a text, a decoder, AdamW, cosine
waves     chirps in noise, 1-d convolutions with batch norm, SGD, steps
mixer     CIFAR-10, MLP-mixer, AdamW, linear
friedman  regression, MLP with SiLU, Adam, cosine
sort      sort 10 of 16 digits, a transformer, AdamW, cosine
depthwise CIFAR-10, depthwise convolutions with layer norm, AdamW, cosine
dropout   digits, wide MLP with dropout, SGD, constant
encoder   digits, autoencoder, Adam, cosine
residual  CIFAR-10, residual net with batch norm, SGD with Nesterov's momentum, one cycle
denoise   digits in noise, convolutions without norm, Adam, constant
spots     count spots in noise, convolutions with batch norm, Adam, constant
angles    how far digits are turned, convolutions with group norm, SGD, one cycle
points    six curves as clouds of points, MLPs before and after a maximum, NAdam, cosine
tones     which of 12 tones sound in noise, residual 1-d convolutions with layer norm, RMSprop, steps
brackets  how deep brackets are nested, a decoder, AdamW, one cycle
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer

from acdc.data.cifar import load_cifar10
from acdc.data.digits import load_digits

Shape = Literal["cosine", "linear", "steps", "constant", "onecycle"]

EXPLORED = ("tabular", "friedman", "encoder", "dropout", "cnn", "vit", "letters", "residual", "denoise")
HELD_OUT = ("waves", "sort", "mixer", "depthwise", "spots", "angles")
FRESH = ("points", "tones", "brackets")
NEED_IMAGES = ("cnn", "vit", "mixer", "depthwise", "residual")
_TRAIN, _TEST = 4000, 5000  # images of CIFAR-10
_LETTERS, _WINDOW = 96, 32


@dataclass(frozen=True)
class Problem:
    """Data, a model, its optimizer, and the score that a run ends with: 100 is perfect."""

    name: str
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    batch: int
    new_model: Callable[[], nn.Module]
    new_optimizer: Callable[[nn.Module], Optimizer]
    shape: Shape
    target: Literal["class", "value"] = "class"
    mirrored: bool = False

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return len(self.train[0]) // self.batch

    def batches(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield an epoch's batches in random order."""
        inputs, targets = self.train
        order = torch.randperm(len(inputs), generator=generator)
        for index in range(self.steps):
            chosen = order[index * self.batch : (index + 1) * self.batch]
            yield (self._shifted(inputs[chosen], generator) if self.mirrored else inputs[chosen]), targets[chosen]

    def _shifted(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Mirror and shift a batch, all of its images alike."""
        down, right, mirror = torch.randint(0, 5, (3,), generator=generator).tolist()
        height, width = images.shape[2:]
        shifted = F.pad(images, (2, 2, 2, 2))[:, :, down : down + height, right : right + width]
        return shifted.flip(3) if mirror % 2 else shifted

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.target == "value":
            return F.mse_loss(outputs, targets)
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())

    @torch.no_grad()
    def score(self, model: nn.Module) -> float:
        """Return the accuracy on the test data in %, or how much of the targets' variance is explained."""
        model.eval()
        outputs = torch.cat([model(inputs) for inputs in self.test[0].split(1000)])
        model.train()
        targets = self.test[1]
        if self.target == "value":
            left = (outputs - targets).square().mean() / (targets - targets.mean(0)).square().mean()
            return 100 * (1 - left.item())
        return (outputs.argmax(-1) == targets).float().mean().item() * 100


def rate(shape: Shape, step: int, total: int) -> float:
    """Return the share of the highest learning rate; all but a constant one begin with a short linear rise."""
    done = step / total
    if shape == "constant":
        return 1.0
    warm = 0.3 if shape == "onecycle" else 0.05
    if done < warm:
        return (step + 1) / (warm * total + 1)
    left = (1 - done) / (1 - warm)
    if shape == "linear":
        return left
    if shape == "steps":
        return 1.0 if done < 0.5 else 0.1 if done < 0.8 else 0.01
    return (1 - math.cos(math.pi * left)) / 2


def load(name: str, data: Path | None = None, text: Path | None = None) -> Problem:
    """Load a problem; `data` is where CIFAR-10 lies, `text` a file of a few MB."""
    if name in NEED_IMAGES:
        if data is None:
            raise ValueError(f"{name} needs --data DIR, where CIFAR-10 lies")
        train, test = _cifar(str(data))
        build, optimizer, shape = {
            "cnn": (_Cnn, _adamw(2e-3), "onecycle"),
            "vit": (_Vit, _adamw(1e-3), "cosine"),
            "mixer": (_Mixer, _adamw(1e-3), "linear"),
            "depthwise": (_depthwise, _adamw(4e-3), "cosine"),
            "residual": (_residual, _nesterov(0.1), "onecycle"),
        }[name]
        return Problem(name, train, test, 50, build, optimizer, shape, mirrored=True)
    if name == "letters":
        if text is None:
            raise ValueError("letters needs --text FILE, a few MB of text")
        return Problem(name, *_letters(text), 32, _Decoder, _adamw(2e-3), "cosine")
    makers: dict[str, Callable[[], Problem]] = {
        "tabular": lambda: Problem(name, *_clusters(), 100, _tabular, _adam(1e-3), "cosine"),
        "waves": lambda: Problem(name, *_waves(), 100, _waves_net, _sgd(0.05), "steps"),
        "friedman": lambda: Problem(name, *_friedman(), 100, _regression, _adam(2e-3), "cosine", "value"),
        "sort": lambda: Problem(name, *_unsorted(), 100, _Sort, _adamw(1e-3), "cosine"),
        "dropout": lambda: Problem(name, *_digits(), 50, _dropout, _sgd(0.03), "constant"),
        "encoder": lambda: Problem(name, *_pictures(), 50, _encoder, _adam(2e-3), "cosine", "value"),
        "denoise": lambda: Problem(name, *_noisy(), 50, _denoiser, _adam(1e-3), "constant", "value"),
        "spots": lambda: Problem(name, *_spots(), 50, _counter, _adam(1e-3), "constant"),
        "angles": lambda: Problem(name, *_turned(), 50, _compass, _sgd(0.03), "onecycle", "value"),
        "points": lambda: Problem(name, *_curves(), 80, _Cloud, _nadam(2e-3), "cosine"),
        "tones": lambda: Problem(name, *_chords(), 80, _listener, _rmsprop(1e-3), "steps", "value"),
        "brackets": lambda: Problem(name, *_nested(), 80, _Depths, _adamw(2e-3), "onecycle"),
    }
    return makers[name]()


# Data: training and test parts, each of inputs and targets; the same in every run

Parts = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]


def _split(inputs: Tensor, targets: Tensor, train: int) -> Parts:
    return (inputs[:train], targets[:train]), (inputs[train:], targets[train:])


def _cifar(folder: str) -> Parts:
    whole = load_cifar10(folder)
    centre, width = (torch.tensor(values).view(1, -1, 1, 1) for values in (whole.mean, whole.std))

    def halved(part: object, count: int) -> tuple[Tensor, Tensor]:
        pixels = (part.pixels[:count].float() / 255 - centre) / width  # pyright: ignore[reportAttributeAccessIssue]
        return F.avg_pool2d(pixels, 2), part.labels[:count]  # pyright: ignore[reportAttributeAccessIssue]

    return halved(whole.train, _TRAIN), halved(whole.test, _TEST)


def _letters(path: Path) -> Parts:
    codes = torch.tensor(list(path.read_bytes()[:2_000_000]))
    codes = (codes - 32).clamp(0, _LETTERS - 1)  # what is not ASCII shares the last one
    windows = codes[: len(codes) // (_WINDOW + 1) * (_WINDOW + 1)].view(-1, _WINDOW + 1)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(0))[:6000]
    return _split(windows[order, :-1], windows[order, 1:], 4000)


def _clusters() -> Parts:
    from sklearn.datasets import make_classification  # here, as tables of results are made without it, too

    inputs, targets = make_classification(
        12_000, 40, n_informative=20, n_redundant=5, n_classes=10, n_clusters_per_class=3, random_state=0
    )
    return _split(torch.from_numpy(inputs).float(), torch.from_numpy(targets), 6000)


def _waves() -> Parts:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 6, (6000,), generator=generator)
    time = torch.linspace(0, 1, 128)
    begin = 4 + 3 * (labels % 3).float() + torch.rand(6000, generator=generator)
    grow = (labels // 3).float() * 6 + 2 * torch.rand(6000, generator=generator)
    phase = 2 * math.pi * torch.rand(6000, 1, generator=generator)
    clean = torch.sin(2 * math.pi * (begin[:, None] * time + grow[:, None] * time**2) + phase)
    noisy = clean + 1.5 * torch.randn(6000, 128, generator=generator)
    return _split(noisy[:, None], labels, 4000)


def _friedman() -> Parts:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(8000, 20, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = y + 6 * torch.sin(8 * x[:, 5]) * x[:, 6] + torch.randn(8000, generator=generator)
    return _split(2 * x - 1, ((y - y.mean()) / y.std())[:, None], 4000)


def _unsorted() -> Parts:
    digits = torch.randint(0, 16, (6000, 10), generator=torch.Generator().manual_seed(3))
    return _split(digits, digits.sort(1).values, 4000)


def _digits() -> Parts:
    whole = load_digits()
    parts = [(part.pixels.float().flatten(1) / 16 - 0.5, part.labels) for part in (whole.train, whole.test)]
    return parts[0], parts[1]


def _pictures() -> Parts:
    (train, _), (test, _) = _digits()
    return (train, train), (test, test)


def _noisy() -> Parts:
    generator = torch.Generator().manual_seed(4)

    def noisy(flat: Tensor) -> tuple[Tensor, Tensor]:
        clean = flat.view(-1, 1, 8, 8)
        return clean + 0.4 * torch.randn(clean.shape, generator=generator), clean

    (train, _), (test, _) = _digits()
    return noisy(train), noisy(test)


def _spots() -> Parts:
    generator = torch.Generator().manual_seed(5)
    counts = torch.randint(0, 6, (5000,), generator=generator)
    places = 2 + 12 * torch.rand(5000, 6, 2, 1, generator=generator)
    down, right = torch.exp(-((torch.arange(16) - places) ** 2) / 3).unbind(2)
    shown = (torch.arange(6) < counts[:, None]).float()
    images = torch.einsum("nsy,nsx,ns->nyx", down, right, shown)[:, None]
    return _split(images + 0.3 * torch.randn(images.shape, generator=generator), counts, 3000)


def _turned() -> Parts:
    generator = torch.Generator().manual_seed(6)

    def turned(flat: Tensor) -> tuple[Tensor, Tensor]:
        images = flat.view(-1, 1, 8, 8).repeat(2, 1, 1, 1)
        angles = math.pi * (torch.rand(len(images), generator=generator) - 0.5)
        cos, sin = angles.cos(), angles.sin()
        zero = torch.zeros_like(cos)
        turns = torch.stack([cos, -sin, zero, sin, cos, zero], 1).view(-1, 2, 3)
        grid = F.affine_grid(turns, list(images.shape), align_corners=False)
        return F.grid_sample(images, grid, align_corners=False, padding_mode="border"), torch.stack([cos, sin], 1)

    (train, _), (test, _) = _digits()
    return turned(train), turned(test)


def _curves() -> Parts:
    generator = torch.Generator().manual_seed(7)
    kinds, t = torch.randint(0, 6, (6000,), generator=generator), torch.rand(6000, 48, generator=generator)
    a = 2 * math.pi * t
    side = torch.sign(t - 0.5)
    shapes = [
        torch.stack([a.cos(), a.sin()], 2),  # a circle
        torch.stack([a.sin(), (2 * a).sin()], 2),  # an eight
        torch.stack([t * (2 * a).cos(), t * (2 * a).sin()], 2),  # a spiral
        torch.stack([2 * t - 1, (2 * t - 1) ** 2], 2),  # a parabola
        torch.stack([(0.5 + 0.5 * (3 * a).cos()) * a.cos(), (0.5 + 0.5 * (3 * a).cos()) * a.sin()], 2),  # three leaves
        torch.stack([4 * torch.minimum(t, 1 - t) - 1, side * (4 * torch.minimum(t, 1 - t) - 1)], 2),  # a cross
    ]
    points = torch.stack(shapes)[kinds, torch.arange(6000)]
    turn = 2 * math.pi * torch.rand(6000, generator=generator)
    turns = torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()], 1).view(-1, 2, 2)
    return _split(points @ turns + 0.15 * torch.randn(points.shape, generator=generator), kinds, 4000)


def _chords() -> Parts:
    generator = torch.Generator().manual_seed(8)
    loud = torch.rand(6000, 12, generator=generator) * (torch.rand(6000, 12, generator=generator) < 0.25)
    phases = 2 * math.pi * torch.rand(6000, 12, 1, generator=generator)
    tones = torch.sin(2 * math.pi * (3 + 2 * torch.arange(12))[:, None] * torch.linspace(0, 1, 96) + phases)
    heard = (loud[:, :, None] * tones).sum(1) + 0.3 * torch.randn(6000, 96, generator=generator)
    return _split(heard[:, None], loud, 4000)


def _nested() -> Parts:
    """Sequences of opening, closing and other letters, and after each letter the depth, from 0 to 7."""
    generator = torch.Generator().manual_seed(9)
    letters = torch.randint(0, 8, (6000, 32), generator=generator)  # 0 to 2 open, 3 to 5 close, if that is possible
    depths, depth = [], torch.zeros(6000, dtype=torch.long)
    for column in letters.T:
        depth = (depth + (column < 3).long() - ((column > 2) & (column < 6)).long()).clamp(0, 7)
        depths.append(depth)
    return _split(letters, torch.stack(depths, 1), 4000)


# Nets and optimizers


def _adam(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.Adam(model.parameters(), lr=lr)


def _adamw(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.05)


def _sgd(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)


def _nesterov(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, nesterov=True, weight_decay=5e-4)


def _nadam(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.NAdam(model.parameters(), lr=lr)


def _rmsprop(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.RMSprop(model.parameters(), lr=lr)


def _tabular() -> nn.Module:
    hidden = [layer for n in (40, 192, 192) for layer in (nn.Linear(n, 192), nn.BatchNorm1d(192), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(192, 10))


class _Cnn(nn.Sequential):
    def __init__(self) -> None:
        convolutions = [
            layer
            for n, m, stride in ((3, 24, 1), (24, 48, 2), (48, 48, 1), (48, 96, 2))
            for layer in (nn.Conv2d(n, m, 3, stride, 1), nn.ReLU())
        ]
        super().__init__(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))


def _block(width: int, heads: int) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)


class _Vit(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.position = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.Sequential(*(_block(width, 4) for _ in range(3)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.patches(images).flatten(2).mT + self.position).mean(1))


class _Decoder(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.letters, self.position = nn.Embedding(_LETTERS, width), nn.Parameter(0.02 * torch.randn(_WINDOW, width))
        self.blocks = nn.ModuleList(_block(width, 4) for _ in range(2))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, _LETTERS))

    def forward(self, codes: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(codes.shape[1])
        x = self.letters(codes) + self.position
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


class _Sort(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.digits, self.position = nn.Embedding(16, width), nn.Parameter(0.02 * torch.randn(10, width))
        self.blocks = nn.Sequential(_block(width, 4), _block(width, 4))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16))

    def forward(self, digits: Tensor) -> Tensor:
        return self.head(self.blocks(self.digits(digits) + self.position))


def _waves_net() -> nn.Module:
    convolutions = [
        layer
        for n, m in ((1, 32), (32, 64), (64, 64))
        for layer in (nn.Conv1d(n, m, 7, 2, 3), nn.BatchNorm1d(m), nn.ReLU())
    ]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 6))


class _Mix(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norms[0](x).mT).mT
        return x + self.channels(self.norms[1](x))


class _Mixer(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.mixes = nn.Sequential(*(_Mix(16, width) for _ in range(4)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.mixes(self.patches(images).flatten(2).mT).mean(1))


class _Separable(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, 1, 1, groups=width)
        self.norm = nn.GroupNorm(1, width)
        self.mlp = nn.Sequential(nn.Conv2d(width, 3 * width, 1), nn.GELU(), nn.Conv2d(3 * width, width, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.norm(self.depthwise(x)))


def _depthwise(width: int = 40) -> nn.Module:
    body = [nn.Conv2d(3, width, 4, 2, 1), *(_Separable(width) for _ in range(3))]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(width), nn.Linear(width, 10))


def _dropout() -> nn.Module:
    hidden = [layer for n in (64, 256) for layer in (nn.Linear(n, 256), nn.ReLU(), nn.Dropout(0.2))]
    return nn.Sequential(*hidden, nn.Linear(256, 10))


def _regression() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(20, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU()),
        nn.Linear(128, 1),
    )


def _encoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 12), nn.ReLU(), nn.Linear(12, 128), nn.ReLU()),
        nn.Linear(128, 64),
    )


class _Residual(nn.Module):
    def __init__(self, n: int, m: int, stride: int) -> None:
        super().__init__()
        first, second = nn.Conv2d(n, m, 3, stride, 1, bias=False), nn.Conv2d(m, m, 3, 1, 1, bias=False)
        self.body = nn.Sequential(first, nn.BatchNorm2d(m), nn.ReLU(), second, nn.BatchNorm2d(m))
        self.shortcut = nn.Conv2d(n, m, 1, stride, bias=False) if (n, stride) != (m, 1) else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _residual() -> nn.Module:
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [_Residual(n, m, stride) for n, m, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def _denoiser() -> nn.Module:
    hidden = [layer for n in (1, 32, 32) for layer in (nn.Conv2d(n, 32, 3, 1, 1), nn.GELU())]
    return nn.Sequential(*hidden, nn.Conv2d(32, 1, 3, 1, 1))


def _counter() -> nn.Module:
    convolutions = [
        layer
        for n, m, stride in ((1, 24, 1), (24, 48, 2), (48, 48, 2))
        for layer in (nn.Conv2d(n, m, 3, stride, 1), nn.BatchNorm2d(m), nn.ReLU())
    ]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(48 * 16, 64), nn.ReLU(), nn.Linear(64, 6))


def _compass() -> nn.Module:
    convolutions = [
        layer
        for n, m, stride in ((1, 32, 1), (32, 64, 2), (64, 64, 1))
        for layer in (nn.Conv2d(n, m, 3, stride, 1), nn.GroupNorm(4, m), nn.ReLU())
    ]
    return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(256, 2))


class _Cloud(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width))
        self.all = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, points: Tensor) -> Tensor:
        return self.all(self.each(points).amax(1))


class _Hears(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(1, width), nn.Conv1d(width, width, 5, 1, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 1, 2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def _listener(width: int = 48) -> nn.Module:
    body = [nn.Conv1d(1, width, 9, 2, 4), *(_Hears(width) for _ in range(3)), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveMaxPool1d(2), nn.Flatten(), nn.Linear(2 * width, 12))


class _Depths(_Decoder):
    """The decoder of letters, over an alphabet of eight: it names the depth after each letter."""

    def __init__(self, width: int = 64) -> None:
        super().__init__(width)
        self.letters, self.head = nn.Embedding(8, width), nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 8))
