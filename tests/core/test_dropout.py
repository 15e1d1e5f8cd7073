"""Dropout rates in the final compressed phase: lowered with what is left, brought back by detach()."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.errors import ArgumentError
from tests.warned import SMALL_NETS

pytestmark = SMALL_NETS
STEPS, EPOCHS, TOTAL = 50, 10, 500
FINAL = 200  # the step that the final phase begins with: after 40 % of the run


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 20), nn.ReLU(), nn.Dropout(0.4), nn.Linear(20, 20), nn.AlphaDropout(0.1), nn.Linear(20, 4)
    )


class Loop:
    def __init__(self, wrap: Callable[[nn.Module], Any] = lambda model: model, **knobs: Any) -> None:
        self.model = new_model()
        self.called = wrap(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        method = acdc.ACDC(**({"sparsity": 0.75, "epochs": EPOCHS} | knobs))
        steps = None if knobs.get("schedule") else STEPS
        self.sparsifier = acdc.attach(self.called, self.optimizer, method, steps_per_epoch=steps, quiet=True)

    @property
    def rates(self) -> tuple[float, float]:
        return self.model[2].p, self.model[4].p  # pyright: ignore

    def train(self, first: int, last: int) -> "Loop":
        for step in range(first, last):
            torch.manual_seed(step)
            inputs = torch.randn(8, 6)
            self.optimizer.zero_grad()
            F.cross_entropy(self.called(inputs), inputs[:, :4].argmax(1)).backward()
            self.optimizer.step()
        return self

    def states(self) -> tuple[dict, ...]:
        return copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict(), self.sparsifier.state_dict()))


def lowered(model: nn.Module, kept: float) -> tuple[float, float]:
    """Return the rates by the formula: weights are pruned, biases are not."""
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    biases = sum(p.numel() for p in model.parameters() if p.ndim == 1)
    share = (round(kept * weights) + biases) / (weights + biases)
    return 0.4 * math.sqrt(share), 0.1 * math.sqrt(share)


def test_rates_are_lowered_in_the_final_phase_alone() -> None:
    loop = Loop()
    assert [phase.kind for phase in loop.sparsifier.method.schedule.phases][-1] == "sparse"
    seen = {}
    for step in range(TOTAL):
        loop.train(step, step + 1)
        seen[step] = loop.rates
    assert {rates for step, rates in seen.items() if step < FINAL} == {(0.4, 0.1)}
    assert any(phase["kind"] == "sparse" and phase["step"] < FINAL for phase in loop.sparsifier.history)
    (final,) = {rates for step, rates in seen.items() if step >= FINAL}
    assert final == pytest.approx(lowered(loop.model, 0.25))
    loop.sparsifier.finish()
    loop.sparsifier.detach()
    assert loop.rates == (0.4, 0.1)


def test_the_first_step_of_the_phase_has_the_new_rate() -> None:
    """The dropout layer sees it in the forward pass that begins the phase."""
    loop, drawn = Loop(), []
    loop.model[2].register_forward_hook(lambda module, _, out: drawn.append(module.p))  # pyright: ignore
    loop.train(0, FINAL + 1)
    assert drawn[FINAL - 1 :] == [0.4, pytest.approx(lowered(loop.model, 0.25)[0])]


@pytest.mark.parametrize(
    "knobs",
    [
        {"dropout": "kept"},
        {"epochs": None, "schedule": acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "8st")])},
    ],
    ids=["kept", "a schedule"],
)
def test_rates_are_kept(knobs: dict[str, Any]) -> None:
    loop = Loop(**knobs).train(0, 10 if knobs.get("schedule") else TOTAL)
    assert loop.sparsifier.phase.final
    assert loop.rates == (0.4, 0.1)
    assert "dropout" not in loop.sparsifier.method.config()


def test_a_schedule_may_have_them_lowered() -> None:
    schedule = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "8st")])
    loop = Loop(epochs=None, schedule=schedule, dropout="scaled").train(0, 3)
    assert loop.rates == pytest.approx(lowered(loop.model, 0.25))


def test_what_is_left_dense_counts_as_left() -> None:
    loop = Loop(exclude=["3", "5"]).train(0, FINAL + 1)
    parameters = sum(p.numel() for p in loop.model.parameters())
    assert loop.rates[0] == pytest.approx(0.4 * math.sqrt((parameters - 120 + 30) / parameters))


@pytest.mark.parametrize("at", [FINAL - 1, FINAL, FINAL + 7])
def test_a_resumed_run_has_the_same_bits(at: int) -> None:
    whole = Loop().train(0, FINAL + 20)
    states, resumed = Loop().train(0, at).states(), Loop()
    for part, state in zip((resumed.model, resumed.optimizer, resumed.sparsifier), states, strict=True):
        part.load_state_dict(state)
    resumed.train(at, FINAL + 20)
    assert resumed.rates == whole.rates != (0.4, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(resumed.model.parameters(), whole.model.parameters(), strict=True))


def test_an_earlier_state_brings_the_rates_back() -> None:
    early = Loop().train(0, 5).states()
    loop = Loop().train(0, FINAL + 1)
    loop.sparsifier.load_state_dict(early[2])
    assert loop.rates == (0.4, 0.1)


def test_compiled_models_draw_with_the_new_rate() -> None:
    torch._dynamo.reset()
    eager = Loop().train(0, FINAL + 10)
    compiled = Loop(wrap=lambda model: torch.compile(model, fullgraph=True, backend="eager")).train(0, FINAL + 10)
    assert all(torch.equal(a, b) for a, b in zip(eager.model.parameters(), compiled.model.parameters(), strict=True))
    assert compiled.rates == eager.rates != (0.4, 0.1)


def test_it_is_said_of_models_that_have_dropout() -> None:
    what, _ = Loop().sparsifier.choices
    assert what.endswith("; dropout lowered with the weights that are left in the last phase.")
    assert "dropout" not in Loop(dropout="kept").sparsifier.choices[0]
    method = acdc.ACDC(sparsity=0.75, epochs=EPOCHS).for_steps(STEPS)
    assert "dropout" not in method.choices_made(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)))[0]


def test_other_words_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"dropout=0.1: expected one of 'kept', 'scaled'"):
        acdc.ACDC(sparsity=0.9, epochs=10, dropout=0.1)  # pyright: ignore
