"""Dropout rates in the final compressed phase: lowered with what is left, brought back by detach()."""

import copy
import gc
import io
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc import methods
from acdc.core.sparsifier import attached_to
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
    def __init__(
        self,
        wrap: Callable[[nn.Module], Any] = lambda model: model,
        model: nn.Module | None = None,
        kind: Any = acdc.ACDC,
        **knobs: Any,
    ) -> None:
        self.model = new_model() if model is None else model
        self.called = wrap(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        method = kind(**({"sparsity": 0.75, "epochs": EPOCHS} | knobs))
        steps = None if knobs.get("schedule") else STEPS
        self.sparsifier = acdc.attach(self.called, self.optimizer, method, steps_per_epoch=steps, quiet=True)

    @property
    def rates(self) -> tuple[float, float]:
        first, second = (module.p for module in self.model.modules() if type(module) in (nn.Dropout, nn.AlphaDropout))
        return first, second  # pyright: ignore[reportReturnType]

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


@pytest.mark.parametrize("name", ["acdc", "gmp", "one_shot", "dpf"])
def test_methods_with_a_schedule_may_have_them_lowered(name: str) -> None:
    knobs: dict[str, Any] = {"epochs": None, "schedule": [("dense", "2st"), ("sparse", "8st")]}
    knobs["schedule"] = acdc.Schedule.from_phases(knobs["schedule"] if name != "dpf" else [("sparse", "10st")])
    knobs |= {"every": "1st"} if name in ("gmp", "dpf") else {}
    scaled = Loop(kind=partial(methods.build, name), dropout="scaled", **knobs).train(0, 3)
    assert scaled.rates == pytest.approx(lowered(scaled.model, 0.25))
    assert Loop(kind=partial(methods.build, name), **knobs).train(0, 3).rates == (0.4, 0.1)


@pytest.mark.parametrize("knobs", [{"dropout": "kept"}, {}], ids=["kept", "scaled"])
def test_rates_that_the_user_sets_are_the_user_s(knobs: dict[str, Any]) -> None:
    """A schedule of dropout goes on; what it has come to is what the final phase lowers."""
    loop = Loop(**knobs).train(0, 5)
    loop.model[2].p = 0.2  # pyright: ignore
    loop.train(5, FINAL)
    assert loop.rates[0] == 0.2
    loop.train(FINAL, FINAL + 1)
    assert loop.rates[0] == (0.2 if knobs else pytest.approx(0.5 * lowered(loop.model, 0.25)[0]))
    loop.model[4].p = 0.05  # pyright: ignore
    loop.sparsifier.detach()
    assert loop.rates == (0.2, 0.05)
    loop.model[2].p = 0.3  # pyright: ignore
    loop.sparsifier.detach()
    assert loop.rates == (0.3, 0.05)


def test_a_second_run_begins_with_the_model_s_own_rates() -> None:
    """After one that was not detached, in a copy of its model, and in a model read from a file."""
    first = Loop().train(0, FINAL + 1)
    low = first.rates
    stored = io.BytesIO()
    torch.save(first.model, stored)
    stored.seek(0)
    for model in (copy.deepcopy(first.model), torch.load(stored, weights_only=False)):
        again = Loop(model=model)
        assert again.rates == (0.4, 0.1)
        assert again.train(0, FINAL + 1).rates == low
    model = first.model
    del first
    gc.collect()
    again = Loop(model=model).train(0, FINAL + 1)
    assert again.rates == low
    again.sparsifier.detach()
    assert again.rates == (0.4, 0.1)
    assert not any("acdc" in name for module in model.modules() for name in vars(module))


class Elsewhere(nn.Dropout):
    def __init__(self) -> None:
        super().__init__()
        del self.p


class Computed(nn.Dropout):
    p = property(lambda self: 0.3, lambda self, value: None)  # pyright: ignore


class Learned(nn.Dropout):
    def __init__(self) -> None:
        super().__init__()
        del self.p
        self.p = nn.Parameter(torch.tensor(0.3))  # pyright: ignore


class Odd(nn.Module):
    """A net with another dropout layer beside its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.net, self.layer = new_model(), layer

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@pytest.mark.parametrize("layer", [Elsewhere, Computed, Learned])
def test_rates_that_are_no_plain_numbers_are_left_alone(layer: type[nn.Module]) -> None:
    loop = Loop(model=Odd(layer())).train(0, FINAL + 1)
    assert loop.rates == pytest.approx(lowered(loop.model, 0.25), rel=0.01)
    loop.sparsifier.detach()
    assert loop.rates == (0.4, 0.1)


def test_a_model_that_does_not_know_its_sizes_can_be_detached() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d())
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.5, epochs=10), steps_per_epoch=50, quiet=True)
    sparsifier.detach()
    assert attached_to(model) is None


def test_states_tell_the_knob_only_where_it_matters() -> None:
    loop = Loop()
    state = loop.sparsifier.state_dict()
    assert state["config"]["dropout"] == "scaled"
    older = {**state, "config": {knob: value for knob, value in state["config"].items() if knob != "dropout"}}
    with pytest.raises(ValueError, match=r"saved with dropout='kept', but the attached method has dropout='scaled'"):
        loop.sparsifier.load_state_dict(older)
    with pytest.raises(ValueError, match=r"saved with dropout='scaled', but the attached method has dropout='kept'"):
        Loop(dropout="kept").sparsifier.load_state_dict(state)
    torch.manual_seed(0)
    plain = Loop(model=nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 4)))
    assert "dropout" not in plain.sparsifier.state_dict()["config"]


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
    assert what.endswith("; nn.Dropout lowered in the last phase, to suit what the target leaves.")
    assert "Dropout" not in Loop(dropout="kept").sparsifier.choices[0]
    method = acdc.ACDC(sparsity=0.75, epochs=EPOCHS).for_steps(STEPS)
    for layer in (nn.ReLU(), nn.Dropout(0.0)):
        assert "Dropout" not in method.choices_made(nn.Sequential(nn.Linear(4, 4), layer))[0]


def test_other_words_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"dropout=0.1: expected one of 'kept', 'scaled'"):
        acdc.ACDC(sparsity=0.9, epochs=10, dropout=0.1)  # pyright: ignore
