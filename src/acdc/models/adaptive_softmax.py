"""Adaptive embedding and softmax for large vocabularies (Grave et al. 2017; Baevski and Auli 2019), tied.

Words are numbered by falling frequency and cut into clusters at `cutoffs`. Cluster i has vectors of width / div_val^i,
which a projection brings to the model's width. The softmax first decides between the frequent words and the other
clusters, then within the cluster:

    p(word) = p_head(word)                                   if the word is among the frequent ones
    p(word) = p_head(cluster) · p_cluster(word)              otherwise

so that only the words of its own cluster are compared with a rare one.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc.errors import ArgumentError, ConflictError

IGNORED = -100  # a target that does not count, as in torch's cross_entropy
_uncompiled: Any = torch.compiler.disable


class AdaptiveEmbedding(nn.Module):
    """Vectors of the model's width for words of all clusters, times √width as in Vaswani et al. 2017.

    Each cluster reads every position, with zeros for the words of others: no shape depends on the data.
    """

    def __init__(self, vocabulary: int, width: int, cutoffs: Sequence[int], div_val: int) -> None:
        super().__init__()
        self.bounds = (0, *cutoffs, vocabulary)
        self.scale = math.sqrt(width)
        widths = [width // div_val**cluster for cluster in range(len(self.bounds) - 1)]
        sizes = [high - low for low, high in pairwise(self.bounds)]
        self.shapes = tuple(zip(sizes, widths, strict=True))
        self.words = nn.ModuleList(nn.Embedding(size, each) for size, each in self.shapes)
        narrow = widths if div_val > 1 else []  # vectors that already have the model's width need no projection
        self.projections = nn.ModuleList(nn.Linear(each, width, bias=False) for each in narrow)

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.words) == 1 and not self.projections:
            return self.words[0](tokens) * self.scale
        total: Tensor | None = None
        for cluster, words in enumerate(self.words):
            low, high = self.bounds[cluster : cluster + 2]
            inside = tokens - low  # numbers beyond the vocabulary stay what they are, and the look-up refuses them
            if cluster > 0:
                inside = inside.clamp(min=0)
            if cluster < len(self.words) - 1:
                inside = inside.clamp(max=high - low - 1)
            vectors = words(inside)
            vectors = vectors.masked_fill(((tokens < low) | (tokens >= high))[..., None], 0)
            if self.projections:
                vectors = self.projections[cluster](vectors)
            total = vectors if total is None else total + vectors
        assert total is not None
        return total * self.scale


class AdaptiveSoftmax(nn.Module):
    """The loss of target words, given what the model says of them.

    How many words of each cluster there are depends on the data: with cut-offs, CUDA graphs cannot capture it.
    Tied to an embedding, it multiplies by the embedding's own vectors, and by its projections in all clusters but the
    first, as NVIDIA's Transformer-XL does; untied, by its own.
    """

    def __init__(self, embedding: AdaptiveEmbedding, width: int, *, tied: bool) -> None:
        super().__init__()
        self.bounds, self.tied = embedding.bounds, tied
        shapes = embedding.shapes
        self.fixed_shapes = len(shapes) == 1  # for train.execution
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size, _ in shapes)
        self.clusters = nn.Linear(shapes[0][1], len(shapes) - 1) if len(shapes) > 1 else None
        own = shapes[:1] if tied else shapes
        self.projections = nn.ModuleList(
            nn.Linear(width, each, bias=False) for _, each in (own if embedding.projections else [])
        )
        self.words = nn.ModuleList(nn.Linear(each, size, bias=False) for size, each in ([] if tied else shapes))

    def forward(self, embedding: AdaptiveEmbedding, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of each target, given positions x width; 0 for those that do not count."""
        if self.fixed_shapes:
            return self._losses(embedding, hidden, targets)
        return self._losses_uncompiled(embedding, hidden, targets)

    @_uncompiled  # it would be compiled again for each number of words in each cluster
    def _losses_uncompiled(self, embedding: AdaptiveEmbedding, hidden: Tensor, targets: Tensor) -> Tensor:
        return self._losses(embedding, hidden, targets)

    def _losses(self, embedding: AdaptiveEmbedding, hidden: Tensor, targets: Tensor) -> Tensor:
        head = targets
        for cluster in range(1, len(self.biases)):
            inside = (targets >= self.bounds[cluster]) & (targets < self.bounds[cluster + 1])
            head = head.masked_fill(inside, self.bounds[1] + cluster - 1)
        losses = F.cross_entropy(self._head(embedding, hidden), head, reduction="none", ignore_index=IGNORED)
        for cluster in range(1, len(self.biases)):
            rows = self._rows(targets, cluster)
            logits = _wide(self._scores(embedding, hidden.index_select(0, rows), cluster))
            inside = F.cross_entropy(logits, targets.index_select(0, rows) - self.bounds[cluster], reduction="none")
            losses = losses.index_add(0, rows, inside)
        return losses

    def log_probabilities(self, embedding: AdaptiveEmbedding, hidden: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of all words, positions x vocabulary: slow, and obvious."""
        head = self._head(embedding, hidden).log_softmax(-1)
        parts = [head[:, : self.bounds[1]]]
        for cluster in range(1, len(self.biases)):
            within = _wide(self._scores(embedding, hidden, cluster)).log_softmax(-1)
            parts.append(head[:, self.bounds[1] + cluster - 1, None] + within)
        return torch.cat(parts, dim=-1)

    def _rows(self, targets: Tensor, cluster: int) -> Tensor:
        """Return the positions of targets in this cluster. On the meta device every word counts as a frequent one."""
        if targets.is_meta:
            return targets.new_empty(0)
        return ((targets >= self.bounds[cluster]) & (targets < self.bounds[cluster + 1])).nonzero().squeeze(1)

    def _head(self, embedding: AdaptiveEmbedding, hidden: Tensor) -> Tensor:
        if self.clusters is None:
            return _wide(self._scores(embedding, hidden, 0))
        hidden = self._project(embedding, hidden, 0)
        return _wide(torch.cat((self._words(embedding, hidden, 0), self.clusters(hidden)), dim=-1))

    def _scores(self, embedding: AdaptiveEmbedding, hidden: Tensor, cluster: int) -> Tensor:
        return self._words(embedding, self._project(embedding, hidden, cluster), cluster)

    def _project(self, embedding: AdaptiveEmbedding, hidden: Tensor, cluster: int) -> Tensor:
        if cluster < len(self.projections):
            return self.projections[cluster](hidden)
        return torch.matmul(hidden, _weight(embedding.projections[cluster])) if embedding.projections else hidden

    def _words(self, embedding: AdaptiveEmbedding, hidden: Tensor, cluster: int) -> Tensor:
        table = embedding.words[cluster] if self.tied else self.words[cluster]
        return F.linear(hidden, _weight(table), self.biases[cluster])


def _weight(module: nn.Module) -> Tensor:
    assert isinstance(module, nn.Embedding | nn.Linear)
    return module.weight


def _wide(logits: Tensor) -> Tensor:
    """Return logits in float32 or wider: half precision would round the loss."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def check_cutoffs(cutoffs: Sequence[int], vocabulary: int, width: int, div_val: int) -> tuple[int, ...]:
    """Return the cut-offs below the vocabulary, or raise unless they rise and every cluster has a width."""
    numbers = tuple(cutoffs)
    if any(not isinstance(cut, int) or isinstance(cut, bool) or cut < 1 for cut in numbers) or any(
        low >= high for low, high in pairwise(numbers)
    ):
        allowed = "expected rising numbers of words, each above 0"
        raise ArgumentError("cutoffs", list(numbers), allowed, "write cutoffs=[20000, 40000], or [] for one cluster")
    numbers = tuple(cut for cut in numbers if cut < vocabulary)
    if width // div_val ** len(numbers) < 1:
        allowed = f"the {len(numbers) + 1} clusters would have widths of {width} / {div_val}^i, the last of them 0"
        raise ConflictError("div_val", div_val, allowed, "write div_val=1, or fewer cutoffs")
    return numbers
