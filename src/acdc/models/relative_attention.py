"""Attention with relative positions, as in Transformer-XL (Dai et al. 2019, §3.3): fused, and a slow reference.

Query i attends to key j at distance i − j, counted over the memory and the segment together. With R the projected
positions and u, v two learned vectors of each head,

    score(i, j) = (q_i + u)ᵀ k_j + (q_i + v)ᵀ R_{i−j}        weights = softmax(score / √width)

over the keys at distances 0 to `reach` − 1, or at all distances from 0 on without a reach.

Shapes: query batch x time x heads x width, key and value batch x keys x heads x width, where the last `time` keys
belong to the queries; positions keys x heads x width, from distance keys − 1 down to 0; u and v heads x width.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel

_ALIGNED = 16  # elements: torch's kernels read biases that begin at multiples of this; others are copied first
_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # those on a GPU that give the bias its gradient


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    *,
    reach: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the attended values, batch x time x heads x width, by torch's fused attention.

    The term of the positions is its additive bias, and exact. For R in front of which one row is added, row i of
    (q + v) · Rᵀ has time − i entries that no key of query i meets, and keys + 1 − (time − i) that one does, in order.
    Read on without the first `time` numbers and in rows of `keys`, each entry stands at its key: the shift of Dai et
    al.'s appendix B as a view. What the former entries become are the keys after query i − 1, so they are set to −∞.
    """
    batch, time = query.shape[:2]
    keys, width = key.shape[1], query.shape[3]
    rows = ((query + position_bias) / math.sqrt(width)).flatten(0, 1).transpose(0, 1)  # heads x (batch · time) x width
    scores = torch.matmul(rows, F.pad(positions, (0, 0, 0, 0, 1, 0)).permute(1, 2, 0)).unflatten(1, (batch, time))
    row = torch.arange(time, device=query.device)[:, None]
    column = torch.arange(keys + 1, device=query.device)
    hidden = column < (time - row)
    if reach is not None:
        hidden = hidden | (column <= keys - reach)
    # Added, not filled in: attention gives hidden keys a gradient of 0 by itself, which filling would write again.
    scores = scores.add_(torch.zeros_like(hidden, dtype=scores.dtype).masked_fill_(hidden, -torch.inf))
    bias = scores.flatten(2)[..., time:].unflatten(2, (time, keys)).transpose(0, 1)
    if time % _ALIGNED:
        bias = bias.contiguous()
    query, key, value = ((query + content_bias).transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    with sdpa_kernel(_KERNELS) if query.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(query.to(key.dtype), key, value, attn_mask=bias, dropout_p=dropout)
    return out.transpose(1, 2)


def relative_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    content_bias: Tensor,
    position_bias: Tensor,
    *,
    reach: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Return the same as relative_attention, step by step: all scores, the shift of appendix B, softmax, dropout."""
    batch, time, heads, width = query.shape
    keys = key.shape[1]
    content = torch.einsum("bihd,bjhd->bhij", query + content_bias, key)
    position = torch.einsum("bihd,jhd->bhij", query + position_bias, positions)
    padded = F.pad(position, (1, 0)).view(batch, heads, keys + 1, time)
    scores = (content + padded[:, :, 1:].reshape(batch, heads, time, keys)) / math.sqrt(width)
    at = torch.arange(keys, device=query.device)
    distance = at[keys - time :, None] - at
    hidden = (distance < 0) | (distance >= (keys if reach is None else reach))
    weights = F.dropout(F.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1), dropout)
    return torch.einsum("bhij,bjhd->bihd", weights, value)


def sinusoids(distances: Tensor, width: int) -> Tensor:
    """Return the sines, then the cosines, of each distance: distances x width, in float32."""
    frequencies = 10_000 ** -(torch.arange(0, width, 2, device=distances.device, dtype=torch.float32) / width)
    angles = distances.float()[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
