"""Transformer-XL: attention against a slow reference, memory against one long segment, the adaptive softmax, errors."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from acdc import find_prunable
from acdc.models.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from acdc.models.relative_attention import relative_attention, relative_attention_reference, sinusoids
from acdc.models.transformer_xl import RelativeAttention, TransformerXL
from tests.conformance.harness import DEVICE
from tests.models.counting import equal_weights, on_meta

TINY: dict[str, Any] = {
    "layers": 2,
    "width": 32,
    "heads": 4,
    "head_width": 8,
    "feedforward": 48,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "cutoffs": (20, 40),
    "div_val": 2,
    "target_length": 16,
    "memory_length": 16,
    "init_std": 0.2,  # so that scores differ
    "projection_std": 0.2,
    "seed": 0,
}


def text(batch: int = 3, time: int = 16, vocabulary: int = 60) -> Tensor:
    return torch.randint(0, vocabulary, (batch, time), generator=torch.Generator().manual_seed(1))


# Attention


def operands(time: int, keys: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype).requires_grad_()

    return [draw(2, time, 3, 8), draw(2, keys, 3, 8), draw(2, keys, 3, 8), draw(keys, 3, 8), draw(3, 8), draw(3, 8)]


LENGTHS = [(1, 1), (5, 5), (16, 16), (16, 48), (7, 19), (1, 9), (32, 32), (16, 21)]
REACHES = [None, 1, 4, 1000]


@pytest.mark.parametrize(("time", "keys"), LENGTHS)
@pytest.mark.parametrize("reach", REACHES)
def test_fused_attention_is_the_reference(time: int, keys: int, reach: int | None) -> None:
    """Values and the gradients of all six operands, in float64."""
    outcomes = []
    for attend in (relative_attention, relative_attention_reference):
        given = operands(time, keys)
        out = attend(*given, reach=reach)
        (out * torch.arange(out.numel(), dtype=out.dtype, device=DEVICE).view_as(out).sin()).sum().backward()
        outcomes.append([out, *(tensor.grad for tensor in given)])
    for fused, reference in zip(*outcomes, strict=True):
        torch.testing.assert_close(fused, reference, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_attention_in_lower_precision(dtype: torch.dtype) -> None:
    exact = relative_attention_reference(*operands(16, 48), reach=20)
    near = relative_attention(*operands(16, 48, dtype), reach=20)
    assert near.dtype == dtype
    error = (near.double() - exact).abs().max()
    other = (relative_attention_reference(*operands(16, 48, dtype), reach=20).double() - exact).abs().max()
    assert error < 4 * other, "rounds no worse than the reference does"


@pytest.mark.parametrize("reach", [None, 3])
def test_the_reference_is_the_formula(reach: int | None) -> None:
    """Dai et al. §3.3, score by score."""
    query, key, value, positions, u, v = operands(4, 7)
    got = relative_attention_reference(query, key, value, positions, u, v, reach=reach)
    for i in range(4):
        at = i + 3
        seen = [j for j in range(at + 1) if reach is None or at - j < reach]
        scores = [
            ((query[:, i] + u) * key[:, j]).sum(-1) + ((query[:, i] + v) * positions[7 - 1 - (at - j)]).sum(-1)
            for j in seen
        ]
        weights = (torch.stack(scores, -1) / math.sqrt(8)).softmax(-1)
        expected = torch.einsum("bhj,bjhd->bhd", weights, value[:, seen])
        torch.testing.assert_close(got[:, i], expected)


def test_dropout_of_attention_keeps_the_mean() -> None:
    given = [tensor.detach() for tensor in operands(16, 16)]
    exact = relative_attention(*given)
    drawn = torch.stack([relative_attention(*given, dropout=0.3) for _ in range(400)])
    assert not torch.equal(drawn[0], drawn[1])
    assert (drawn.mean(0) - exact).abs().mean() < 4 * drawn.std(0).mean() / math.sqrt(400)


def test_sinusoids_by_hand() -> None:
    assert torch.allclose(
        sinusoids(torch.tensor([0, 3]), 4),
        torch.tensor([[0, 0, 1, 1], [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]]),
    )


def test_a_model_with_either_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = text()
    model = TransformerXL(60, **TINY)
    fused, memory = model(tokens, tokens)
    second, _ = model(tokens, tokens, memory)
    monkeypatch.setattr(RelativeAttention, "attend", staticmethod(relative_attention_reference))
    slow, memory = model(tokens, tokens)
    torch.testing.assert_close(fused, slow)
    torch.testing.assert_close(second, model(tokens, tokens, memory)[0])


# Memory


def test_cached_memory_equals_one_long_segment() -> None:
    """In segments of 16 with all of the past in memory, and 64 tokens at once without memory."""
    model, tokens = TransformerXL(60, **TINY).double().eval(), text(2, 65)
    with model.evaluation(target_length=64, memory_length=64, clamp=None, same_length=False):
        whole, _ = model.log_probabilities(tokens[:, :64])
        memory, parts = model.start_memory(2), []
        for start in range(0, 64, 16):
            part, memory = model.log_probabilities(tokens[:, start : start + 16], memory)
            parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("clamp", [None, 6])
@pytest.mark.parametrize("lengths", [(16, 16, 16, 16), (10, 20, 1, 33), (3,) * 21 + (1,)])
def test_segments_do_not_matter_if_all_tokens_see_as_many(clamp: int | None, lengths: tuple[int, ...]) -> None:
    """With same_length a token attends to the 12 last ones, wherever segments begin."""
    model, tokens = TransformerXL(60, **TINY).double().eval(), text(2, 64)
    with model.evaluation(target_length=64, memory_length=12, clamp=clamp, same_length=True):
        whole, _ = model.log_probabilities(tokens)
        memory, parts = model.start_memory(2), []
        for segment in tokens.split(lengths, dim=1):
            part, memory = model.log_probabilities(segment, memory)
            assert memory[0].shape[1] <= 12
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-9, atol=1e-11)


def test_memory_reaches_back_and_has_no_gradient() -> None:
    model, tokens = TransformerXL(60, **TINY), text(2, 33)
    _, memory = model(tokens[:, :16], tokens[:, 1:17])
    assert [tuple(part.shape) for part in memory] == [(2, 16, 32)] * 2
    assert not any(part.requires_grad for part in memory)
    with_memory, _ = model(tokens[:, 16:32], tokens[:, 17:], memory)
    without, _ = model(tokens[:, 16:32], tokens[:, 17:])
    assert not torch.isclose(with_memory, without)
    other = text(2, 33).roll(1, 0)
    _, others = model(other[:, :16], other[:, 1:17])
    assert not torch.isclose(with_memory, model(tokens[:, 16:32], tokens[:, 17:], others)[0])


def test_memory_grows_to_its_length_and_forgets_the_oldest() -> None:
    model = TransformerXL(60, **{**TINY, "memory_length": 10}).eval()
    tokens, memory = text(1, 16), None
    for start, expected in ((0, 4), (4, 8), (8, 10), (12, 10)):
        _, memory = model(tokens[:, start : start + 4], tokens[:, start : start + 4], memory)
        assert memory[0].shape == (1, expected, 32)
    torch.testing.assert_close(memory[0], model.embedding(tokens[:, 6:]))


def test_no_memory() -> None:
    model, tokens = TransformerXL(60, **{**TINY, "memory_length": 0}), text()
    loss, memory = model(tokens, tokens)
    assert memory[0].shape == (3, 0, 32)
    assert torch.equal(model(tokens, tokens, memory)[0], loss)


def test_evaluation_lengths_end_with_the_block() -> None:
    model = TransformerXL(60, **TINY)
    with model.evaluation():
        assert (model.target_length, model.memory_length, model.clamp, model.same_length) == (128, 1600, 1000, True)
    with pytest.raises(ValueError, match="129 tokens"), model.evaluation():
        model(text(1, 129), text(1, 129))
    assert (model.target_length, model.memory_length, model.clamp, model.same_length) == (16, 16, None, False)


def test_the_future_is_not_read() -> None:
    model, tokens = TransformerXL(60, **TINY).eval(), text()
    changed = tokens.clone()
    changed[:, 9:] = (changed[:, 9:] + 1) % 60
    before, after = (model.log_probabilities(each)[0] for each in (tokens, changed))
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.isclose(before[:, 9:], after[:, 9:]).all(-1).any()


# Adaptive embedding and softmax

CLUSTERS = [((), 1), ((20, 40), 1), ((20, 40), 2), ((1, 59), 4)]


@pytest.mark.parametrize(("cutoffs", "div_val"), CLUSTERS)
@pytest.mark.parametrize("tied", [True, False])
def test_the_loss_is_that_of_all_probabilities(cutoffs: tuple[int, ...], div_val: int, tied: bool) -> None:
    model = TransformerXL(60, **{**TINY, "cutoffs": cutoffs, "div_val": div_val, "tied": tied}).double().eval()
    tokens, targets = text(), text().flip(1)
    logs, _ = model.log_probabilities(tokens)
    assert logs.shape == (3, 16, 60)
    torch.testing.assert_close(logs.exp().sum(-1), torch.ones(3, 16, dtype=torch.float64), rtol=1e-6, atol=0)
    expected = -logs.gather(-1, targets[..., None]).mean()
    torch.testing.assert_close(model(tokens, targets)[0], expected)
    some = targets.clone()
    some[:, 5:] = -100
    expected = -logs.gather(-1, targets[..., None])[:, :5].mean()
    torch.testing.assert_close(model(tokens, some)[0], expected)


def test_a_vector_is_its_cluster_s_and_projected() -> None:
    embedding: Any = AdaptiveEmbedding(60, 32, (20, 40), 2)
    for token, cluster, row in ((0, 0, 0), (19, 0, 19), (20, 1, 0), (39, 1, 19), (40, 2, 0), (59, 2, 19)):
        vector = embedding.words[cluster].weight[row]
        assert len(vector) == 32 // 2**cluster
        expected = embedding.projections[cluster].weight @ vector * math.sqrt(32)
        torch.testing.assert_close(embedding(torch.tensor([[token]]))[0, 0], expected)


def test_a_batch_without_rare_words_still_gives_every_weight_a_gradient() -> None:
    """As DistributedDataParallel expects, and so that no optimizer skips a step of some weights."""
    model, tokens = TransformerXL(60, **TINY), text(vocabulary=20)
    model(tokens, tokens)[0].backward()
    assert all(param.grad is not None for param in model.parameters() if param.ndim > 1)


@pytest.mark.parametrize(("cutoffs", "div_val"), CLUSTERS)
@pytest.mark.parametrize("word", [-1, 60])
def test_words_beyond_the_vocabulary_are_refused(cutoffs: tuple[int, ...], div_val: int, word: int) -> None:
    model, tokens = TransformerXL(60, **{**TINY, "cutoffs": cutoffs, "div_val": div_val}), text()
    wrong = tokens.clone()
    wrong[1, 3] = word
    with pytest.raises(IndexError):
        model(wrong, tokens)
    with pytest.raises(IndexError):
        model(tokens, wrong)


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.*should not be instantiated")  # torch's compiler
def test_what_depends_on_the_words_is_not_compiled_again_for_each_batch() -> None:
    """The layers are compiled once, and give the loss and gradients that they give uncompiled."""
    from torch._dynamo.testing import CompileCounter

    torch.compiler.reset()
    counter, model = CompileCounter(), TransformerXL(60, **TINY)
    fast = torch.compile(model, backend=counter, dynamic=False)
    compiled = []
    for words in (text(), text().clamp(max=19), text().flip(0), text().remainder(30)):
        loss, _ = fast(words, words)
        compiled.append(counter.frame_count)
        assert torch.equal(loss, model(words, words)[0])
    loss.backward()
    assert compiled[0] > 0
    assert compiled == compiled[:1] * 4
    torch.compiler.reset()


def test_what_is_tied() -> None:
    """The vectors, and all projections but the first."""
    tied: Any
    untied: Any
    tied, untied = (AdaptiveSoftmax(AdaptiveEmbedding(60, 32, (20, 40), 2), 32, tied=t) for t in (True, False))
    shapes = {name: tuple(param.shape) for name, param in tied.named_parameters()}
    assert shapes == {
        "biases.0": (20,),
        "biases.1": (20,),
        "biases.2": (20,),
        "clusters.weight": (2, 32),
        "clusters.bias": (2,),
        "projections.0.weight": (32, 32),
    }
    assert [tuple(part.weight.shape) for part in untied.words] == [(20, 32), (20, 16), (20, 8)]
    assert len(untied.projections) == 3


# Counts and weights


def test_counts_by_hand() -> None:
    """The large model over WikiText-103's words, as in NVIDIA's implementation with its manual_config."""
    from acdc.models.transformer_xl import transformer_xl

    model = on_meta(transformer_xl, vocabulary=267_735)
    words = 19_997 * 1024 + 20_000 * 256 + 160_000 * 64 + 67_738 * 16
    projections = 1024 * (1024 + 256 + 64 + 16) + 1024 * 1024  # the embedding's, and the softmax's first
    attention, feedforward = 5 * 1024 * 1024, 2 * 1024 * 4096
    layer = attention + feedforward + 4096 + 1024 + 2 * 2 * 1024  # biases, and two norms
    clusters = 3 * 1024
    total = words + projections + 18 * layer + 2 * 1024 + 267_735 + clusters + 3
    assert sum(p.numel() for p in model.parameters()) == total == 285_167_482
    layers = find_prunable(model)
    assert layers.size == 18 * (attention + feedforward) + projections + clusters
    assert {name for name in layers.left_dense if layers.left_dense[name].startswith("embedding ")} == {
        f"embedding.words.{i}.weight" for i in range(4)
    }
    assert {"content_bias", "position_bias"} < set(layers.left_dense)
    assert find_prunable(model, embeddings=True).size == layers.size + words


def test_initial_weights() -> None:
    options = {"width": 256, "layers": 1, "feedforward": 512, "init_std": 0.005, "projection_std": 0.01}
    model = TransformerXL(600, **{**TINY, **options, "cutoffs": (200, 400)})
    for name, param in model.named_parameters():
        if "norm" in name and name.endswith("weight"):
            assert param.mean().item() == pytest.approx(1, abs=2e-3)
        if (name.endswith("bias") and "_" not in name) or ".biases." in name:
            assert not param.any(), name
        elif param.numel() > 1000:
            assert param.std().item() == pytest.approx(0.01 if ".projections." in name else 0.005, rel=0.06), name
        assert not param.isnan().any()
    assert equal_weights(TransformerXL(60, **TINY), TransformerXL(60, **TINY))


def test_half_precision_and_copies() -> None:
    model, tokens = TransformerXL(60, **TINY), text()
    exact, memory = model(tokens, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        near, _ = model(tokens, tokens)
        again, _ = model(tokens, tokens, memory)
    torch.testing.assert_close(near, exact, rtol=0.03, atol=0)
    torch.testing.assert_close(again, model(tokens, tokens, memory)[0], rtol=0.03, atol=0)
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(tokens, tokens)[0], exact)


def test_it_learns_a_text_by_heart() -> None:
    model, tokens = TransformerXL(60, **{**TINY, "init_std": 0.02, "projection_std": 0.02}), text(2, 33)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    second = torch.zeros(())
    for _ in range(60):
        optimizer.zero_grad()
        first, memory = model(tokens[:, :16], tokens[:, 1:17])
        second, _ = model(tokens[:, 16:32], tokens[:, 17:], memory)
        (first + second).backward()
        optimizer.step()
    assert second.item() < 0.5


# Errors


def test_a_longer_segment_than_the_positions_is_refused() -> None:
    model = TransformerXL(60, **TINY)
    message = (
        r"^tokens=sequences of 17 tokens: expected sequences of 1 to 16 tokens, this model's target_length; "
        r"split them, or read them inside model.evaluation\(target_length=17\)"
    )
    with pytest.raises(ValueError, match=message):
        model(text(2, 17), text(2, 17))


def test_memory_that_does_not_fit_is_refused() -> None:
    model, tokens = TransformerXL(60, **TINY), text(2)
    with model.evaluation(target_length=16, memory_length=32):
        _, memory = model(tokens, tokens)
        _, memory = model(tokens, tokens, memory)
    with pytest.raises(
        ValueError, match=r"^memory=32 tokens: expected at most 16, this model's memory_length; read on"
    ):
        model(tokens, tokens, memory)
    for wrong in (memory[:1], model.start_memory(3), tuple(part[..., :8] for part in memory), ()):
        with pytest.raises(
            ValueError, match=r"memory=\d tensors .*expected 2 tensors of 2 x tokens x 32.*start_memory\(2"
        ):
            model(tokens, tokens, wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cutoffs": (40, 20)}, r"cutoffs=\[40, 20\]: expected rising numbers of words"),
        ({"cutoffs": (0, 20)}, r"cutoffs=\[0, 20\]: expected rising numbers of words"),
        ({"cutoffs": (2.5,)}, r"cutoffs=\[2.5\]: expected rising"),
        ({"div_val": 8}, r"div_val=8: the 3 clusters would have widths of 32 / 8\^i, the last of them 0"),
        ({"width": 31}, r"width=31: sines and cosines need an even width; write width=32"),
        ({"memory_length": -1}, r"memory_length=-1: expected 0 or more; write memory_length=16"),
        ({"memory_length": 0, "same_length": True}, r"memory_length=0: expected 1 or more, with same_length"),
        ({"target_length": 0}, r"target_length=0: expected a whole number above 0"),
        ({"clamp": 0}, r"clamp=0: expected a whole number above 0"),
        ({"attention_dropout": -0.1}, r"attention_dropout=-0.1: expected a fraction"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TransformerXL(60, **{**TINY, **options})


def test_cut_offs_beyond_the_vocabulary_are_left_out() -> None:
    model = TransformerXL(30, **{**TINY, "cutoffs": (20, 40)})
    assert model.embedding.bounds == (0, 20, 30)
