"""FLOPs of language models by hand: tied outputs, adaptive softmax, memory, and products between activations."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from acdc import find_prunable
from acdc.flops.counting import inference_flops, weight_flops
from acdc.flops.uses import forward_uses, used_weights
from acdc.measure.dynamics import Dynamics, count_model, other_flops
from acdc.models.gpt import GPT
from acdc.models.transformer_xl import TransformerXL

V, W, T = 50, 32, 16  # vocabulary, width, tokens


def gpt(**options: Any) -> GPT:
    return GPT(V, **{"layers": 2, "width": W, "heads": 4, "context": T, "feedforward": 24, "seed": 0, **options})


def tokens(batch: int = 3) -> Tensor:
    return torch.randint(0, V, (batch, T), generator=torch.Generator().manual_seed(0))


BLOCKS = 2 * (4 * W * W + 3 * W * 24)


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_by_hand(tied: bool) -> None:
    """Two for each weight of the blocks and of the output at each token; look-ups are free, whatever is tied."""
    flops = inference_flops(gpt(tied=tied), tokens())
    assert flops.dense == flops.actual == 2 * T * (BLOCKS + V * W)
    assert flops.attention == 2 * 2 * (2 * T * T * W), "QK and AV of two layers"
    assert not flops.lower_bound


def test_zeros_of_a_tied_weight_save_its_product() -> None:
    model = gpt()
    with torch.no_grad():
        model.embedding.weight[::2] = 0
        model.blocks[0].attention.out.weight[:8] = 0  # pyright: ignore
    flops = inference_flops(model, tokens())
    assert flops.dense - flops.actual == 2 * T * (V * W // 2 + 8 * W)
    counts = count_model(model, forward_uses(model, tokens()))
    assert (counts.flops, counts.dense_flops) == (flops.actual, flops.dense)
    assert (counts.size, counts.zeros) == (BLOCKS, 8 * W), "sparsity is that of what is pruned by default"
    counts = count_model(model, forward_uses(model, tokens()), embeddings=True)
    assert (counts.size, counts.zeros) == (BLOCKS + V * W, 8 * W + V * W // 2)


def test_the_output_counts_in_a_run_although_it_is_not_pruned() -> None:
    model = gpt()
    uses, layers = forward_uses(model, tokens()), find_prunable(model)
    assert next(weight.name for weight in used_weights(model, uses)) == "embedding.weight"
    other = other_flops(model, layers, uses)
    assert other == 2 * T * V * W
    end = Dynamics(layers, layers, uses, other).phase_end(run="", index=0, phase="dense", kind="dense", epoch=0)
    assert end.flops == inference_flops(model, tokens()).actual
    assert other_flops(model, find_prunable(model, embeddings=True), uses) == 0
    assert other_flops(gpt(tied=False), find_prunable(gpt(tied=False)), forward_uses(gpt(tied=False), tokens())) == 0


# Transformer-XL: clusters of 20, 20 and 10 words, of widths 32, 16 and 8

SHARED: dict[str, Any] = {"layers": 2, "width": W, "heads": 4, "head_width": 6, "feedforward": 48, "seed": 0}
LENGTHS: dict[str, Any] = {"target_length": T, "memory_length": T}


def xl(**options: Any) -> TransformerXL:
    return TransformerXL(V, **{**SHARED, **LENGTHS, "cutoffs": (20, 40), "div_val": 2, **options})


def by_hand(targets: Tensor, memory: int) -> float:
    """FLOPs of one sample, by weights x tokens; the positions' projection is made once for the whole batch."""
    batch = len(targets)
    keys = T + memory
    inner = 4 * 6
    attention = T * W * inner + keys * W * 2 * inner + keys * W * inner / batch + T * inner * W
    layers = 2 * (attention + T * 2 * W * 48)
    embedding = T * W * (32 + 16 + 8)
    rare = [int(((targets >= low) & (targets < high)).sum()) / batch for low, high in ((20, 40), (40, 50))]
    softmax = T * (W * 32 + 32 * 20 + 32 * 2) + rare[0] * (W * 16 + 16 * 20) + rare[1] * (W * 8 + 8 * 10)
    return 2 * (layers + embedding + softmax)


@pytest.mark.parametrize("memory", [0, T])
@pytest.mark.parametrize("tied", [True, False])
def test_transformer_xl_by_hand(memory: int, tied: bool) -> None:
    model, words = xl(tied=tied).eval(), tokens()
    targets = words.flip(1)
    remembered = model(words, targets)[1] if memory else model.start_memory(3)
    flops = inference_flops(model, (words, targets, remembered))
    assert flops.dense == flops.actual == round(by_hand(targets, memory))
    assert not flops.lower_bound, flops.doubt
    keys = T + memory
    relative = T * 24 * keys
    assert flops.attention == 2 * 2 * (relative + 2 * T * keys * 24)


def test_on_the_meta_device_every_word_is_a_frequent_one() -> None:
    with torch.device("meta"):
        model = xl()
    words = torch.zeros(3, T, dtype=torch.int64, device="meta")
    assert inference_flops(model, (words, words)).dense == round(by_hand(torch.zeros(3, T), 0))


# Weights used outside their layers


class Tied(nn.Module):
    """An output that is the embedding's, written in one of the ways people write it."""

    def __init__(self, way: Any) -> None:
        super().__init__()
        self.embedding, self.way = nn.Embedding(7, 4), way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.embedding(x), self.embedding.weight)


@pytest.mark.parametrize(
    "way",
    [
        lambda x, w: F.linear(x, w),
        lambda x, w: x @ w.T,
        lambda x, w: torch.matmul(x, w.t()),
        lambda x, w: F.linear(x, w.detach()),
        lambda x, w: (w @ x.transpose(1, 2)).transpose(1, 2),
        lambda x, w: torch.mm(x.flatten(0, 1), w.transpose(0, 1)),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_products_with_a_transposed_weight_are_counted(way: Any, device: str) -> None:
    with torch.device(device):
        model, words = Tied(way), torch.zeros(2, 5, dtype=torch.int64)
    flops = inference_flops(model, words)
    assert flops.dense == 2 * 5 * 7 * 4
    assert flops.attention == 0
    assert not flops.lower_bound
    assert weight_flops({"embedding.weight": 28}, forward_uses(model, words)) == flops.dense


def test_a_parameter_in_another_precision_is_followed() -> None:
    """Added, it enters no product; multiplied by, it is one of an unknown layer, whatever its type."""

    class Biased(nn.Module):
        def __init__(self, multiplied: bool) -> None:
            super().__init__()
            self.multiplied, self.fc, self.own = multiplied, nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            own = self.own.to(torch.float64).to(x.dtype)
            return self.fc(x @ own if self.multiplied else x + own)

    assert not inference_flops(Biased(False), torch.randn(4, 4)).lower_bound
    assert inference_flops(Biased(True), torch.randn(4, 4)).uncounted == ("own (Biased)",)
