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
from typing import Any

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

    The term of the positions is its additive bias, and exact.
    """
    time, width = query.shape[1], query.shape[3]
    rows = (query + position_bias.to(query.dtype)).permute(2, 0, 1, 3)
    bias = PositionBias.apply(rows, (positions / math.sqrt(width)).transpose(0, 1), reach)
    if time % _ALIGNED:
        bias = bias.contiguous()
    query = query + content_bias.to(query.dtype)  # in the type of the products: wider, it would only be copied
    query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    with sdpa_kernel(_KERNELS) if query.is_cuda else nullcontext():
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=bias, dropout_p=dropout)
    return out.transpose(1, 2)


class PositionBias(torch.autograd.Function):
    """The products of queries and positions, each at its key: the shift of Dai et al.'s appendix B, as a view.

    Rows are heads x batch x time x width, positions heads x keys x width; the result is batch x heads x time x keys.
    Row i of the products has time − 1 − i entries that no key of query i meets, and then one for each key, in order.
    With one more column in front, read on without the first `time` numbers and in rows of `keys`, each entry stands at
    its key. The entries that no key meets become those of keys after query i − 1, so they are −∞, as that column is.
    The gradient takes the same way back. Written by hand, it leaves the products at a width that matrix products and
    attention both read fast, and copies them once.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, positions: Tensor, reach: int | None) -> Tensor:
        heads, batch, time, _ = rows.shape
        keys = positions.shape[1]
        ctx.save_for_backward(rows, positions)
        products = torch.matmul(rows.flatten(1, 2), positions.transpose(1, 2)).unflatten(1, (batch, time))
        row = torch.arange(time, device=rows.device)[:, None]
        column = torch.arange(1, keys + 1, device=rows.device)
        hidden = column < (time - row)
        if reach is not None:
            hidden = hidden | (column <= keys - reach)
        shifted = products.new_empty(heads, batch, time, keys + 1)
        shifted[..., 0] = -torch.inf
        mask = torch.zeros_like(hidden, dtype=products.dtype).masked_fill_(hidden, -torch.inf)
        shifted[..., 1:] = products.add_(mask)
        return shifted.flatten(2)[..., time:].unflatten(2, (time, keys)).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, positions = ctx.saved_tensors
        grad = grads[0].contiguous()
        batch, heads, time, keys = grad.shape
        products = grad.new_empty(heads, batch, time, keys)
        products[:, :, 0, : time - 1] = 0
        products[:, :, 0, time - 1 :] = grad[:, :, 0, : keys - time + 1].transpose(0, 1)
        if time > 1:  # entries before a row's first key are those of hidden keys of the row before, whose gradient is 0
            size, stride = (heads, batch, time - 1, keys), (time * keys, heads * time * keys, keys + 1, 1)
            products[:, :, 1:] = grad.as_strided(size, stride, grad.storage_offset() + keys + 2 - time)
        products = products.flatten(1, 2)
        to_rows = torch.matmul(products, positions).view_as(rows)
        return to_rows, torch.matmul(products.transpose(1, 2), rows.flatten(1, 2)), None


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
