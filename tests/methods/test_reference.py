"""Algorithm 1 of the paper in plain PyTorch, and AC/DC's paper mode beside it: the same bits, step by step."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer

import acdc
from acdc.models.resnet_cifar import ResNet
from acdc.sparsity.topk import share_ties
from tests.warned import SMALL_NETS

WARM_UP, PHASE, PHASES, SPARSITY = 3, 2, 4, 0.9  # dense, then compressed and decompressed in turns: three transitions
STEPS = WARM_UP + PHASE * PHASES

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD, Nesterov, weight decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2),
}


# The algorithm


@torch.no_grad()
def hard_threshold(weights: list[Tensor], k: int) -> list[Tensor]:
    """T_k: 1 for the k largest magnitudes of all weights together, 0 for the rest."""
    magnitudes = [weight.abs().flatten() for weight in weights]
    threshold = torch.cat(magnitudes).sort(descending=True).values[k - 1]
    ties = [int((m == threshold).sum()) for m in magnitudes]
    above = [int((m > threshold).sum()) for m in magnitudes]
    shares = share_ties(ties, above, k - sum(above))  # of the ties at the threshold, layer by layer
    masks = []
    for weight, m, tied, share in zip(weights, magnitudes, ties, shares, strict=True):
        keep = m > threshold
        for seen, place in enumerate((m == threshold).nonzero().flatten().tolist()):  # spread evenly over positions
            keep[place] = (seen + 1) * share // tied > seen * share // tied
        masks.append(keep.view_as(weight).to(weight.dtype))
    return masks


def algorithm_1(
    model: nn.Module, optimizer: Optimizer, batches: list[tuple[Tensor, Tensor]]
) -> list[dict[str, Tensor]]:
    """Train, and return the model's state after every step. Biases and normalisation are not pruned."""
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    k = round((1 - SPARSITY) * sum(weight.numel() for weight in weights))
    masks: list[Tensor] | None = None
    states = []
    for step, (images, labels) in enumerate(batches):
        if step >= WARM_UP and (step - WARM_UP) % PHASE == 0:
            if masks is None:  # compress: θ ← T_k(θ), and what the optimizer remembers of pruned weights goes as well
                masks = hard_threshold(weights, k)
                with torch.no_grad():
                    for weight, mask in zip(weights, masks, strict=True):
                        weight.mul_(mask)
                        for kept in optimizer.state[weight].values():
                            if isinstance(kept, Tensor) and kept.shape == weight.shape:
                                kept.mul_(mask)
            else:  # decompress: pruned weights go on from 0, and momentum is reset
                masks = None
                for state in optimizer.state.values():
                    for moment in ("momentum_buffer", "exp_avg"):
                        if moment in state:
                            state[moment].zero_()
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        if masks is not None:
            for weight, mask in zip(weights, masks, strict=True):
                assert weight.grad is not None
                weight.grad = weight.grad * mask
        optimizer.step()
        states.append(copy.deepcopy(model.state_dict()))
    return states


# The library


def paper_mode(model: nn.Module, optimizer: Optimizer, batches: list[tuple[Tensor, Tensor]]) -> list[dict[str, Tensor]]:
    kinds = ["dense", *(("sparse", "dense") * (PHASES // 2))]
    lengths = [WARM_UP, *[PHASE] * PHASES]
    phases = [(kind, f"{length}st") for kind, length in zip(kinds, lengths, strict=True)]
    phases += [("sparse", "1st")]  # a schedule ends compressed; this run stops before
    method = acdc.ACDC.paper(SPARSITY, schedule=acdc.Schedule.from_phases(phases))
    sparsifier = acdc.attach(model, optimizer, method)
    states = []
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        states.append(copy.deepcopy(model.state_dict()))
    assert [event["kind"] for event in sparsifier.history] == kinds
    return states


def network() -> ResNet:
    return ResNet(blocks=(1, 1, 1), widths=(4, 8, 8), classes=10, seed=0)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 3, 8, 8, generator=generator), torch.randint(10, (8,), generator=generator))
        for _ in range(STEPS)
    ]


@SMALL_NETS
@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("tied", [False, True], ids=["as drawn", "with ties at the threshold"])
def test_paper_mode_is_algorithm_1_bit_by_bit(name: str, tied: bool) -> None:
    """Zeros of pruned weights are compared as numbers: the reference multiplies, which leaves −0 where acdc has +0."""
    ours, reference = network(), network()
    if tied:
        with torch.no_grad():  # a grid so coarse that many weights share a magnitude; a rate of 0 leaves them there
            for model in (ours, reference):
                for param in model.parameters():
                    param.mul_(4).round_().div_(4)
    build = OPTIMIZERS[name]
    optimizers = [build(model.parameters()) for model in (ours, reference)]
    if tied:
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = 0.0
    expected, found = algorithm_1(reference, optimizers[1], batches()), paper_mode(ours, optimizers[0], batches())
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        different = [key for key in other if not torch.equal(one[key], other[key])]
        assert not different, f"step {step}: {different}"
    zeros = sum(int((weight == 0).sum()) for key, weight in found[WARM_UP].items() if weight.ndim in (2, 4))
    assert zeros >= round(SPARSITY * sum(w.numel() for w in found[0].values() if w.ndim in (2, 4))), "it was compressed"
