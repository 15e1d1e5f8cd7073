"""Transformer-XL (Dai et al. 2019), as NVIDIA's implementation builds it and the paper trains it.

A text is read in segments of `target_length` tokens. Each layer also attends to its own inputs at the `memory_length`
tokens before, kept from earlier segments without gradients, at relative positions. Layers are post-norm:
norm(x + attention), then norm(x + feedforward).

    memory = model.start_memory(batch)
    for tokens, targets in segments:                  # batch x target_length, each row continuing the one before
        loss, memory = model(tokens, targets, memory)
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError, Shown
from acdc.models.adaptive_softmax import IGNORED, AdaptiveEmbedding, AdaptiveSoftmax, check_cutoffs
from acdc.models.initialise import check_counts, fill, generator_of
from acdc.models.relative_attention import relative_attention, sinusoids
from acdc.models.token_checks import check_dropout, check_tokens

Memory = tuple[Tensor, ...]
"""The last inputs of each layer, batch x tokens x width."""


class RelativeAttention(nn.Module):
    """Multi-head attention of a segment to itself and to the memory; `attend` computes it from the projections."""

    attend: Callable[..., Tensor] = staticmethod(relative_attention)

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, heads * head_width, bias=False)
        self.key_value = nn.Linear(width, 2 * heads * head_width, bias=False)
        self.position = nn.Linear(width, heads * head_width, bias=False)
        self.out = nn.Linear(heads * head_width, width, bias=False)

    def forward(
        self, x: Tensor, memory: Tensor, positions: Tensor, biases: tuple[Tensor, Tensor], reach: int | None
    ) -> Tensor:
        context = torch.cat((memory.to(x.dtype), x), dim=1) if memory.shape[1] else x
        query = self.query(x).unflatten(-1, (self.heads, -1))
        key, value = self.key_value(context).unflatten(-1, (2, self.heads, -1)).unbind(2)
        position = self.position(positions).unflatten(-1, (self.heads, -1))
        dropout = self.dropout if self.training else 0.0
        mixed = self.attend(query, key, value, position, *biases, reach=reach, dropout=dropout)
        return self.out(mixed.flatten(2))


class Layer(nn.Module):
    """Attention and the feed-forward part, each followed by a layer norm of its sum with the input."""

    def __init__(
        self, width: int, heads: int, head_width: int, feedforward: int, dropout: float, attention_dropout: float
    ) -> None:
        super().__init__()
        self.attention = RelativeAttention(width, heads, head_width, attention_dropout)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, feedforward)
        self.down = nn.Linear(feedforward, width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, memory: Tensor, positions: Tensor, biases: tuple[Tensor, Tensor], reach: int | None
    ) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x, memory, positions, biases, reach)))
        return self.norm2(x + self.dropout(self.down(self.dropout(F.relu(self.up(x))))))


class TransformerXL(nn.Module):
    """A language model over words numbered by falling frequency.

    cutoffs, div_val   the clusters of the adaptive embedding and softmax, and the factor between their widths; cut-offs
                       at the vocabulary or above are left out
    tied               the softmax multiplies by the embedding's vectors, and its projections but the first
    clamp              the largest distance told apart: positions further back look as far as this one
    same_length        each token attends to as many keys, those at distances below memory_length
    init_std, projection_std
                       normal initial weights, of the layers and of the clusters' projections; biases start at 0, and
                       the factors of norms at 1 ± init_std, as in NVIDIA's code

    The initial weights depend on `seed` alone; without one they come from torch's global generator.
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        layers: int = 18,
        width: int = 1024,
        heads: int = 16,
        head_width: int = 64,
        feedforward: int = 4096,
        dropout: float = 0.2,
        attention_dropout: float = 0.2,
        cutoffs: Sequence[int] = (),
        div_val: int = 1,
        tied: bool = True,
        target_length: int = 384,
        memory_length: int = 384,
        clamp: int | None = None,
        same_length: bool = False,
        init_std: float = 0.01,
        projection_std: float = 0.01,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        check_counts(vocabulary=vocabulary, layers=layers, width=width, heads=heads, head_width=head_width)
        check_counts(feedforward=feedforward, div_val=div_val)
        check_dropout("dropout", dropout)
        check_dropout("attention_dropout", attention_dropout)
        if width % 2:
            raise ArgumentError("width", width, "sines and cosines need an even width", f"write width={width + 1}")
        self.vocabulary, self.width = vocabulary, width
        self._set_lengths(target_length, memory_length, clamp, same_length)
        cutoffs = check_cutoffs(cutoffs, vocabulary, width, div_val)
        self.embedding = AdaptiveEmbedding(vocabulary, width, cutoffs, div_val)
        self.content_bias = nn.Parameter(torch.zeros(heads, head_width))
        self.position_bias = nn.Parameter(torch.zeros(heads, head_width))
        parts = (width, heads, head_width, feedforward, dropout, attention_dropout)
        self.layers = nn.ModuleList(Layer(*parts) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.softmax = AdaptiveSoftmax(self.embedding, width, tied=tied)
        self._initialise(init_std, projection_std, seed)

    def forward(self, tokens: Tensor, targets: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Return the mean cross-entropy of `targets`, the words after `tokens`, and the memory for the next segment.

        Both are batch x time. Targets at -100 do not count. Without memory, a text begins.
        """
        hidden, memory = self.hidden(tokens, memory)
        losses = self.softmax(self.embedding, hidden.flatten(0, 1), targets.flatten())
        return losses.sum() / (targets != IGNORED).sum(), memory

    def log_probabilities(self, tokens: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Return the log-probability of every word after each token, batch x time x vocabulary, and the memory."""
        hidden, memory = self.hidden(tokens, memory)
        return self.softmax.log_probabilities(self.embedding, hidden.flatten(0, 1)).unflatten(0, tokens.shape), memory

    def hidden(self, tokens: Tensor, memory: Memory | None = None) -> tuple[Tensor, Memory]:
        """Return the last layer's outputs, batch x time x width, and the memory for the next segment."""
        other = f"split them, or read them inside model.evaluation(target_length={tokens.shape[-1]})"
        check_tokens("tokens", tokens, self.target_length, "target_length", other)
        if memory is None:
            memory = self.start_memory(tokens.shape[0])
        self._check_memory(memory, tokens.shape[0])
        keys = memory[0].shape[1] + tokens.shape[1]
        distances = torch.arange(keys - 1, -1, -1, device=tokens.device)
        distances = distances if self.clamp is None else distances.clamp(max=self.clamp)
        positions = self.dropout(sinusoids(distances, self.width))
        biases, reach = (self.content_bias, self.position_bias), self.memory_length if self.same_length else None
        x, kept = self.dropout(self.embedding(tokens)), []
        for layer, before in zip(self.layers, memory, strict=True):
            kept.append(self._keep(before, x))
            x = layer(x, before, positions.to(x.dtype), biases, reach)
        return self.dropout(x), tuple(kept)

    def start_memory(self, batch: int) -> Memory:
        """Return the empty memory with which a text begins."""
        like = {"dtype": self.content_bias.dtype, "device": self.content_bias.device}  # which may be a DTensor
        return tuple(torch.zeros(batch, 0, self.width, **like) for _ in self.layers)

    @contextmanager
    def evaluation(
        self,
        *,
        target_length: int = 128,
        memory_length: int = 1600,
        clamp: int | None = 1000,
        same_length: bool = True,
    ) -> Iterator[None]:
        """Use other lengths inside a with block; by default those that WikiText-103 is evaluated with."""
        before = self.target_length, self.memory_length, self.clamp, self.same_length
        self._set_lengths(target_length, memory_length, clamp, same_length)
        try:
            yield
        finally:
            self._set_lengths(*before)

    def _set_lengths(self, target_length: int, memory_length: int, clamp: int | None, same_length: bool) -> None:
        check_counts(target_length=target_length, **({} if clamp is None else {"clamp": clamp}))
        if memory_length < 0 or (same_length and not memory_length):
            allowed = f"expected {'1' if same_length else '0'} or more{', with same_length' if same_length else ''}"
            raise ArgumentError("memory_length", memory_length, allowed, f"write memory_length={target_length}")
        self.target_length, self.memory_length = target_length, memory_length
        self.clamp, self.same_length = clamp, same_length

    def _keep(self, before: Tensor, x: Tensor) -> Tensor:
        """Return the last inputs of a layer, for the next segment."""
        x = x.detach()
        if x.shape[1] < self.memory_length and before.shape[1]:
            x = torch.cat((before.to(x.dtype), x), dim=1)
        return x[:, max(0, x.shape[1] - self.memory_length) :]

    def _check_memory(self, memory: Memory, batch: int) -> None:
        shapes = {tuple(part.shape) for part in memory}
        length = memory[0].shape[1] if memory and memory[0].ndim == 3 else 0
        if len(memory) != len(self.layers) or shapes != {(batch, length, self.width)}:
            received = Shown(f"{len(memory)} tensors of shape {', '.join(map(str, sorted(shapes)))}")
            allowed = f"expected {len(self.layers)} tensors of {batch} x tokens x {self.width}, one for each layer"
            raise ArgumentError("memory", received, allowed, f"begin with model.start_memory({batch})")
        if length > self.memory_length:
            raise ArgumentError(
                "memory",
                Shown(f"{length:,} tokens"),
                f"expected at most {self.memory_length:,}, this model's memory_length",
                f"read on inside model.evaluation(memory_length={length}), or begin with model.start_memory({batch})",
            )

    def _initialise(self, std: float, projection_std: float, seed: int | None) -> None:
        generator = generator_of(seed)
        for name, param in self.named_parameters():
            projection = ".projections." in name
            mean = 1.0 if name.endswith(("norm1.weight", "norm2.weight")) else 0.0
            if name.endswith(".bias") or ".biases." in name:
                nn.init.zeros_(param)
                continue
            spread = projection_std if projection else std
            fill(param, lambda weight, mean=mean, std=spread: weight.normal_(mean, std, generator=generator))


# Sizes by name. With WikiText-103's 267,735 words, as in NVIDIA's implementation: 285,167,482 parameters (the paper's)
# and 191,950,298. With WikiText-2's 33,278 words: 28,175,870.
transformer_xl = partial(
    TransformerXL,
    layers=18,
    width=1024,
    heads=16,
    head_width=64,
    feedforward=4096,
    dropout=0.2,
    attention_dropout=0.2,
    cutoffs=(19_997, 39_997, 199_997),
    div_val=4,
    target_length=384,
    memory_length=384,
    init_std=0.005,
)
transformer_xl_base = partial(
    TransformerXL,
    layers=16,
    width=512,
    heads=8,
    head_width=64,
    feedforward=2048,
    dropout=0.1,
    attention_dropout=0.0,
    cutoffs=(19_997, 39_997, 199_997),
    div_val=1,
    target_length=192,
    memory_length=192,
)
transformer_xl_small = partial(
    TransformerXL,
    layers=8,
    width=384,
    heads=6,
    head_width=64,
    feedforward=1536,
    dropout=0.3,
    attention_dropout=0.1,
    target_length=128,
    memory_length=128,
    init_std=0.02,
)
