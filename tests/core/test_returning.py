"""Weights that come back at a decompression: how their steps are shortened, and that nothing else changes."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from tests.warned import SMALL_NETS

pytestmark = SMALL_NETS
SPARSE, DENSE = 3, 6
PHASES = acdc.Schedule.from_phases([("sparse", f"{SPARSE}st"), ("dense", f"{DENSE}st"), ("sparse", "3st")])
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2),
    "lamb": lambda params: acdc.Lamb(params, lr=1e-2),
}


class Loop:
    """A small net with batch norm, trained by a schedule with one decompression."""

    def __init__(self, optimizer: str, **knobs: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        method = acdc.ACDC(sparsity=0.75, schedule=PHASES, distribution="uniform", **knobs)
        self.sparsifier = acdc.attach(self.model, self.optimizer, method)

    def train(self, first: int, last: int) -> "Loop":
        for step in range(first, last):
            generator = torch.Generator().manual_seed(step)
            images = torch.randn(8, 6, generator=generator)
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(images), images[:, :4].argmax(1)).backward()
            self.optimizer.step()
        return self

    def weights(self) -> dict[str, Tensor]:
        return {weight.name: weight.param.detach().clone() for weight in self.sparsifier.layers.weights}

    def states(self) -> tuple[dict, dict, dict]:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.sparsifier.state_dict()))


def first_steps(optimizer: str, **knobs: Any) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Return the masks before the decompression, the weights at it, and the weights one step later."""
    loop = Loop(optimizer, **knobs).train(0, SPARSE)
    masks, before = loop.sparsifier.masks, loop.weights()
    return masks, before, loop.train(SPARSE, SPARSE + 1).weights()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_first_step_of_returning_weights_is_shortened_and_that_of_survivors_is_not(optimizer: str) -> None:
    masks, before, plain = first_steps(optimizer)
    _, _, ramped = first_steps(optimizer, ramp=1.0)
    for name, mask in masks.items():
        assert torch.equal(plain[name][mask], ramped[name][mask]), "bit for bit"
        assert (before[name][~mask] == 0).all()
        moved = plain[name][~mask]
        assert moved.abs().max() > 0
        assert torch.allclose(ramped[name][~mask], moved / DENSE, rtol=1e-6)


def test_a_ramp_ends_with_its_share_of_the_phase() -> None:
    sparsifier = Loop("sgd", ramp=0.5).train(0, SPARSE + 1).sparsifier
    factors = [sparsifier.method.returning_step(sparsifier.context, SPARSE + step) for step in range(DENSE)]
    assert factors == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("at", [SPARSE, SPARSE + 2, SPARSE + DENSE, SPARSE + DENSE + 1])
def test_a_run_resumes_inside_a_ramp_with_the_same_bits(optimizer: str, at: int) -> None:
    knobs = {"ramp": 1.0, "reset": "nothing", "own_timesteps": optimizer != "sgd"}
    whole = Loop(optimizer, **knobs).train(0, SPARSE + DENSE + 3)
    saved = Loop(optimizer, **knobs).train(0, at).states()
    resumed = Loop(optimizer, **knobs)
    for part, state in zip((resumed.model, resumed.optimizer, resumed.sparsifier), saved, strict=True):
        part.load_state_dict(state)
    resumed.train(at, SPARSE + DENSE + 3)
    for name, weight in whole.weights().items():
        assert torch.equal(weight, resumed.weights()[name]), name
    assert resumed.sparsifier.finish().sparsity == whole.sparsifier.finish().sparsity


def test_what_is_remembered_goes_with_the_next_compression_and_is_checked() -> None:
    loop = Loop("sgd", ramp=1.0).train(0, SPARSE + 2)
    state = loop.sparsifier.state_dict()
    assert set(state["memory"]) == {"survivors"}
    state["memory"]["survivors"]["0.weight"] = torch.zeros(3, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"sparsifier\.memory\.survivors\.0\.weight"):
        loop.sparsifier.load_state_dict(state)
    assert not loop.train(SPARSE + 2, SPARSE + DENSE + 1).sparsifier.context.memory
    assert not Loop("sgd").train(0, SPARSE + 2).sparsifier.context.memory, "nothing is remembered without a ramp"


def test_own_timesteps_are_those_of_an_adam_that_begins_at_the_decompression() -> None:
    """Beside Adam with its own count for each weight, written out; eps is small enough not to matter."""
    loop = Loop("adamw", own_timesteps=True)
    loop.optimizer.param_groups[0].update(eps=1e-16, weight_decay=0.0)
    loop.train(0, SPARSE)
    masks, (first, second), lr = loop.sparsifier.masks, (0.9, 0.999), 1e-2
    expected = {name: weight.double() for name, weight in loop.weights().items()}
    moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in expected.items()}
    for own in range(1, DENSE + 1):
        loop.train(SPARSE + own - 1, SPARSE + own)
        for name, param in loop.model.named_parameters():
            if name not in masks:
                continue
            m, v = moments[name]
            assert param.grad is not None
            grad = param.grad.double()
            m.mul_(first).add_(grad, alpha=1 - first)
            v.mul_(second).addcmul_(grad, grad, value=1 - second)
            expected[name] -= lr * (m / (1 - first**own)) / ((v / (1 - second**own)).sqrt() + 1e-16)
            gone = ~masks[name] & (grad != 0)
            assert torch.allclose(param.detach().double()[gone], expected[name][gone], rtol=1e-4, atol=1e-6), (
                own,
                name,
            )


@pytest.mark.parametrize("corrected", [True, False])
def test_lamb_gets_them_whether_or_not_it_corrects_the_others(corrected: bool) -> None:
    """One step of its own makes √(1 − β₂) / (1 − β₁) = .316; four steps of all .184, and no correction 1."""
    theirs = (1 - 0.999 ** (SPARSE + 1)) ** 0.5 / (1 - 0.9 ** (SPARSE + 1)) if corrected else 1.0
    context = Loop("lamb", own_timesteps=True).train(0, SPARSE + 1).sparsifier.context
    context.optimizer.param_groups[0]["bias_correction"] = corrected
    method = acdc.ACDC(sparsity=0.75, schedule=PHASES, own_timesteps=True)
    assert method.returning_step(context, SPARSE) == pytest.approx(0.001**0.5 / 0.1 / theirs)
