"""GPT: shapes and counts, causality, positions, initial weights, compiled and in half precision, and its errors."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc import find_prunable
from acdc.models.gpt import GPT, rotate, rotations
from tests.models.counting import equal_weights, on_meta

TINY: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "context": 16, "seed": 0}
VARIANTS = [{}, {"norm": "layer", "activation": "gelu"}, {"tied": False}, {"feedforward": 24}]


def text(batch: int = 3, time: int = 16, vocabulary: int = 50) -> Tensor:
    return torch.randint(0, vocabulary, (batch, time), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("options", VARIANTS)
def test_logits_and_loss(options: dict[str, Any]) -> None:
    model = GPT(50, **TINY, **options)
    tokens, targets = text(), text().flip(0)
    logits = model(tokens)
    assert logits.shape == (3, 16, 50)
    expected = -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(model.loss(tokens, targets), expected)
    assert model.loss(tokens, targets).item() == pytest.approx(math.log(50), rel=0.05), "nothing is known at first"


def test_targets_of_minus_100_do_not_count() -> None:
    model, tokens = GPT(50, **TINY), text()
    some = tokens.clone()
    some[:, 8:] = -100
    expected = F.cross_entropy(model(tokens)[:, :8].flatten(0, 1), tokens[:, :8].flatten())
    torch.testing.assert_close(model.loss(tokens, some), expected)


@pytest.mark.parametrize("options", VARIANTS)
def test_the_future_is_not_read(options: dict[str, Any]) -> None:
    model, tokens = GPT(50, **TINY, **options), text()
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 50
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(-1).any()


def test_attention_by_hand() -> None:
    """Softmax of the products of rotated queries and keys, position by position."""
    model: Any = GPT(50, **TINY).double()
    part, x = model.blocks[0].attention, torch.randn(2, 5, 32, dtype=torch.float64)
    q, k, v = part.qkv(x).chunk(3, dim=-1)
    rows = []
    for i in range(5):
        heads = []
        for h in range(4):
            query, keys, values = (y[:, :, 8 * h : 8 * h + 8] for y in (q, k, v))
            scores = torch.stack([(turned(query[:, i], i) * turned(keys[:, j], j)).sum(-1) for j in range(i + 1)], -1)
            heads.append(((scores / math.sqrt(8)).softmax(-1)[..., None] * values[:, : i + 1]).sum(1))
        rows.append(torch.cat(heads, -1))
    expected = part.out(torch.stack(rows, 1))
    torch.testing.assert_close(part(x, rotations(5, 8, x.device)), expected, rtol=1e-5, atol=1e-6)


def turned(vector: Tensor, position: int) -> Tensor:
    """Su et al., eq. 15, with frequencies 10000^(-2i/d) and pairs of a half each."""
    half = vector.shape[-1] // 2
    angles = torch.tensor([position * 10_000 ** (-2 * i / (2 * half)) for i in range(half)], dtype=vector.dtype)
    pairs = torch.complex(vector[..., :half], vector[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((pairs.real, pairs.imag), -1)


def test_products_of_rotated_vectors_depend_on_their_distance_alone() -> None:
    a, b = torch.randn(2, 8)
    turned = [rotate(vector.expand(20, 8), rotations(20, 8, vector.device)) for vector in (a, b)]
    products = turned[0] @ turned[1].T
    for distance in (0, 3, 7):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)


def test_initial_weights() -> None:
    model: Any = GPT(2000, layers=8, width=128, heads=4, context=8, tied=False, seed=0)
    for name, param in model.named_parameters():
        if param.ndim == 2:
            expected = 0.02 / math.sqrt(16) if name.endswith(("out.weight", "down.weight")) else 0.02
            assert param.std().item() == pytest.approx(expected, rel=0.02), name
            assert abs(param.mean().item()) < 3 * expected / math.sqrt(param.numel()) + 1e-4
        else:
            assert torch.equal(param, torch.ones_like(param))
    assert equal_weights(GPT(50, **TINY), GPT(50, **TINY))
    assert not equal_weights(GPT(50, **TINY), GPT(50, **{**TINY, "seed": 1}))


def test_counts_by_hand() -> None:
    model = on_meta(GPT, vocabulary=50, layers=2, width=32, heads=4, context=16)
    block = 4 * 32 * 32 + 3 * 32 * 128 + 2 * 32  # 8/3 · 32 is 85.3: the next multiple of 64 is 128
    assert sum(p.numel() for p in model.parameters()) == 50 * 32 + 2 * block + 32
    layers = find_prunable(model)
    assert layers.size == 2 * (block - 2 * 32)
    assert layers.left_dense == {"embedding.weight": "embedding (embeddings=True prunes it)"}
    with_embeddings = find_prunable(model, embeddings=True)
    assert with_embeddings.size == layers.size + 50 * 32, "tied weights count once"
    untied = on_meta(GPT, vocabulary=50, layers=2, width=32, heads=4, context=16, tied=False)
    assert find_prunable(untied).size == layers.size + 50 * 32, "a matrix of its own is a linear layer"


def test_compiled_whole_and_in_half_precision() -> None:
    model, tokens = GPT(50, **TINY), text()
    compiled: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(tokens), model(tokens))
    with torch.autocast("cpu", torch.bfloat16):
        half = model(tokens)
        assert half.dtype == torch.bfloat16
        loss = model.loss(tokens, tokens)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(half.float(), model(tokens), rtol=0.05, atol=0.02)
    torch.testing.assert_close(copy.deepcopy(model).bfloat16()(tokens).float(), model(tokens), rtol=0.05, atol=0.02)


def test_dropout_only_in_training() -> None:
    model, tokens = GPT(50, **TINY, dropout=0.5), text()
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    assert torch.equal(model(tokens), GPT(50, **TINY)(tokens))


def test_it_learns_a_text_by_heart() -> None:
    model, tokens = GPT(50, **TINY), text(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss = torch.zeros(())
    for _ in range(60):
        optimizer.zero_grad()
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5


def test_a_longer_sequence_than_the_context_is_refused() -> None:
    model = GPT(50, **TINY)
    assert model(text(1, 1)).shape == (1, 1, 50)
    message = r"^tokens=sequences of 17 tokens: expected sequences of 1 to 16 tokens, this model's context; split them"
    with pytest.raises(ValueError, match=message):
        model(text(2, 17))
    with pytest.raises(ValueError, match=r"sequences of 0 tokens.*; give it one token or more"):
        model(text(2, 0))
    for wrong in (text().float(), text()[0]):
        with pytest.raises(TypeError, match=r"tokens=a tensor of shape .* expected token numbers, batch x time"):
            model(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 30}, r"width=30: expected a multiple of 8: .* write width=32"),
        ({"norm": "batch"}, r"norm='batch': expected one of 'rms', 'layer'"),
        ({"activation": "swiglue"}, r"activation='swiglue': expected one of .*; did you mean swiglu\?"),
        ({"dropout": 1.0}, r"dropout=1.0: expected a fraction from 0 to below 1"),
        ({"layers": 0}, r"layers=0: expected a whole number above 0"),
        ({"feedforward": 0}, r"feedforward=0: expected a whole number above 0"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPT(50, **{**TINY, **options})


def test_state_dicts_hold_parameters_only() -> None:
    model = GPT(50, **TINY)
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}
    assert all(isinstance(p, nn.Parameter) for p in model.parameters())
