"""A decoder-only language model of today's kind: pre-norm, rotary positions, RMSNorm and SwiGLU.

A block is x + attention(norm(x)), then x + feedforward(norm(x)); a final norm and the output matrix follow, which is
the embedding's own if `tied`. Linear layers have no bias. norm="layer" and activation="gelu" give GPT-2's parts.

Weights are drawn as in GPT-2 (Radford et al. 2019, §2.3; nanoGPT): normal with std .02, and .02 / √(2 · layers) in the
two matrices of each block that write to the residual stream.
"""

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ConflictError
from acdc.models.initialise import check_counts, fill, generator_of
from acdc.models.token_checks import check_choice, check_dropout, check_tokens

_BASE = 10_000  # of the rotary frequencies


class Attention(nn.Module):
    """Causal self-attention, with queries and keys rotated by their positions (Su et al. 2021)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key = rotate(query, rotation), rotate(key, rotation)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) · up(x)), as in Shazeer 2020."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class GELU(nn.Module):
    """down(gelu(up(x))), as in GPT-2."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """One layer: attention, then the feed-forward part, each on a normalised copy of the residual stream."""

    def __init__(self, width: int, heads: int, inner: int, norm: str, activation: str, dropout: float) -> None:
        super().__init__()
        self.norm1 = _norm(norm, width)
        self.attention = Attention(width, heads, dropout)
        self.norm2 = _norm(norm, width)
        self.feedforward = SwiGLU(width, inner) if activation == "swiglu" else GELU(width, inner)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x), rotation))
        return x + self.dropout(self.feedforward(self.norm2(x)))


class GPT(nn.Module):
    """A language model over `vocabulary` tokens, with at most `context` of them in a sequence.

    `feedforward` is the inner width: by default 8/3 · width for SwiGLU, rounded up to a multiple of 64, and 4 · width
    for GELU, which have as many weights. The initial weights depend on `seed` alone; without one they come from torch's
    global generator.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 6,
        width: int = 384,
        heads: int = 6,
        context: int = 256,
        feedforward: int | None = None,
        norm: str = "rms",
        activation: str = "swiglu",
        tied: bool = True,
        dropout: float = 0.0,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_counts(vocabulary=vocabulary, layers=layers, width=width, heads=heads, context=context)
        check_choice("norm", norm, ("rms", "layer"))
        check_choice("activation", activation, ("swiglu", "gelu"))
        check_dropout("dropout", dropout)
        if width % (2 * heads):
            instead = f"write width={2 * heads * max(1, round(width / (2 * heads)))}"
            allowed = (
                f"expected a multiple of {2 * heads}: rotary positions need an even width in each of {heads} heads"
            )
            raise ConflictError("width", received=width, allowed=allowed, instead=instead)
        if feedforward is None:
            feedforward = 64 * math.ceil(8 * width / 3 / 64) if activation == "swiglu" else 4 * width
        check_counts(feedforward=feedforward)
        self.vocabulary, self.context, self.head_width = vocabulary, context, width // heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.dropout = nn.Dropout(dropout)
        parts = (width, heads, feedforward, norm, activation, dropout)
        self.blocks = nn.ModuleList(Block(*parts) for _ in range(layers))
        self.norm = _norm(norm, width)
        self.head = None if tied else nn.Linear(width, vocabulary, bias=False)
        self._initialise(seed)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits, batch x time x vocabulary, for the token after each of `tokens`, batch x time."""
        check_tokens("tokens", tokens, self.context, "context")
        rotation = rotations(tokens.shape[1], self.head_width, tokens.device)
        x = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, rotation)
        x = self.norm(x)
        return F.linear(x, self.embedding.weight) if self.head is None else self.head(x)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of `targets`, the tokens that follow `tokens`; those at -100 do not count."""
        logits = self(tokens)
        wide = torch.promote_types(logits.dtype, torch.float32)  # half precision would round the loss
        return F.cross_entropy(logits.flatten(0, 1).to(wide), targets.flatten())

    def _initialise(self, seed: int | None) -> None:
        generator = generator_of(seed)
        residual = 0.02 / math.sqrt(2 * len(self.blocks))
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                std = residual if name.endswith((".out", ".down")) else 0.02
                fill(module.weight, lambda weight, std=std: weight.normal_(0, std, generator=generator))


def rotations(length: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines that turn positions 0 to `length`, time x width / 2, in float32.

    They are computed at each pass rather than stored: half-precision copies of a model would round them.
    """
    frequencies = _BASE ** -(torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (x_i, x_{i + width/2}) by its position's angle, computed in float32 or wider."""
    cos, sin = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def _norm(kind: str, width: int) -> nn.Module:
    return nn.RMSNorm(width) if kind == "rms" else nn.LayerNorm(width)


# Sizes by name: 10,720,128 parameters with a vocabulary of 256 (nanoGPT's size for characters), 29,893,120 with 8,192,
# and 123,551,232 with GPT-2's 50,257.
gpt_10m = partial(GPT, layers=6, width=384, heads=6, context=256)
gpt_30m = partial(GPT, layers=8, width=512, heads=8, context=512)
gpt_124m = partial(GPT, layers=12, width=768, heads=12, context=1024)
