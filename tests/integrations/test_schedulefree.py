"""Schedule-free optimizers: pruned weights are 0 in train and eval mode, and results hold the weights of eval mode."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import schedulefree  # pyright: ignore[reportMissingImports]
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.errors import ArgumentTypeError

pytestmark = pytest.mark.filterwarnings(
    "ignore:.* is not known to keep zero weights:acdc.SparsityWarning",
    "ignore:.* has no first-moment state:acdc.SparsityWarning",
)
STEPS = 24
KINDS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: schedulefree.SGDScheduleFree(p, lr=0.1, weight_decay=1e-2),
    "adamw": lambda p: schedulefree.AdamWScheduleFree(p, lr=1e-2, weight_decay=1e-1, warmup_steps=3),
    "radam": lambda p: schedulefree.RAdamScheduleFree(p, lr=1e-2, foreach=False),
    "sgd closure": lambda p: schedulefree.SGDScheduleFreeClosure(p, lr=0.1),
    "adamw closure": lambda p: schedulefree.AdamWScheduleFreeClosure(p, lr=1e-2),
}


class Loop:
    def __init__(self, kind: str) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = KINDS[kind](self.model.parameters())
        self.takes_closure = kind.endswith("closure")
        method = acdc.ACDC.paper(sparsity=0.75, epochs=6)
        self.sparsifier = acdc.attach(self.model, self.optimizer, method, steps_per_epoch=4)

    def train(self, first: int = 0, last: int = STEPS) -> "Loop":
        for step in range(first, last):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
            self.mode("train")

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(x), x[:, :4].argmax(1))
                loss.backward()
                return loss

            if self.takes_closure:
                self.optimizer.step(closure)
            else:
                closure()
                self.optimizer.step()
            self.check()
            self.mode("eval")
            self.check()
        return self

    def mode(self, name: str) -> None:
        getattr(self.optimizer, name, lambda: None)()

    def check(self) -> None:
        for name, mask in self.sparsifier.masks.items():
            assert not self.model.get_parameter(name)[~mask].any()


@pytest.mark.parametrize("kind", KINDS)
def test_zeros_in_both_modes(kind: str) -> None:
    loop = Loop(kind).train()
    evaluated = copy.deepcopy(loop.model.state_dict())  # the loop left the optimizer in eval mode
    loop.mode("train")
    training = copy.deepcopy(loop.model.state_dict())
    result = loop.sparsifier.finish()
    assert result.sparsity == 0.75
    for name, tensor in result.sparse.items():
        torch.testing.assert_close(tensor, evaluated[name])
        assert torch.equal(loop.model.state_dict()[name], training[name])  # back in train mode, bit by bit
    assert all(not result.sparse[name][~mask].any() for name, mask in result.masks.items())


def test_the_twin_holds_the_weights_of_eval_mode() -> None:
    loop = Loop("sgd")
    before = {}
    for step in range(STEPS):
        before[step] = copy.deepcopy(loop.model.state_dict())
        loop.train(step, step + 1)
    result = loop.sparsifier.finish()
    assert result.dense is not None
    assert result.dense_step is not None
    for name, tensor in result.dense.items():
        torch.testing.assert_close(tensor, before[result.dense_step][name])


@pytest.mark.parametrize("stop", [6, 10, 14])
def test_resume(stop: int) -> None:
    """Checkpoints are saved in eval mode, as schedulefree asks for."""
    whole, half = Loop("adamw").train(), Loop("adamw").train(last=stop)
    states = copy.deepcopy([part.state_dict() for part in (half.model, half.optimizer, half.sparsifier)])
    resumed = Loop("adamw")
    for part, state in zip((resumed.model, resumed.optimizer, resumed.sparsifier), states, strict=True):
        part.load_state_dict(state)
    resumed.train(first=stop)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, resumed.model.state_dict()[name])


def test_the_wrapper_is_refused() -> None:
    model = nn.Linear(8, 4)
    wrapper: Any = schedulefree.ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ArgumentTypeError, match=r"ScheduleFreeWrapper is no torch.optim.Optimizer.*SGDScheduleFree"):
        acdc.attach(model, wrapper, acdc.ACDC(sparsity=0.5, epochs=2), steps_per_epoch=4)
