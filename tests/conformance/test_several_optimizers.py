"""Several optimizers on one model: the bits of one optimizer that holds all weights, and the same contracts."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer

import acdc
from acdc.errors import ArgumentError, ArgumentTypeError
from tests.conformance.harness import (
    DEVICE,
    EPOCHS,
    SPARSITY,
    STEPS_PER_EPOCH,
    TOTAL,
    MovesZeros,
    Net,
    assert_same_bits,
    batch,
)
from tests.warned import ENFORCED, SMALL_NETS

pytestmark = [SMALL_NETS, ENFORCED]

METHOD = acdc.ACDC.paper(sparsity=SPARSITY, epochs=EPOCHS)
KINDS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=1e-1),
    "one that moves zeros": MovesZeros,
}


def halves(model: Net) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters of the first layers, and of the others; both hold prunable weights."""
    first = [*model.conv1.parameters(), *model.norm.parameters()]
    return first, [*model.conv2.parameters(), *model.fc.parameters()]


class Loop:
    """A model with its optimizers, all of which step after one backward pass."""

    def __init__(self, *kinds: Callable[[Any], Optimizer], method: acdc.Method = METHOD, one: bool = False) -> None:
        torch.manual_seed(0)
        self.model = Net().to(DEVICE)
        parts = halves(self.model)
        self.parts = [kinds[0]([*parts[0], *parts[1]])] if one else [k(p) for k, p in zip(kinds, parts, strict=True)]
        self.sparsifier = acdc.attach(
            self.model, self.parts[0] if one else self.parts, method, steps_per_epoch=STEPS_PER_EPOCH, quiet=True
        )

    def backward(self, step: int) -> None:
        for part in self.parts:
            part.zero_grad()
        x, y = batch(step)
        F.cross_entropy(self.model(x), y).backward()

    def train(self, first: int = 0, last: int = TOTAL) -> "Loop":
        for step in range(first, last):
            self.backward(step)
            for part in self.parts:
                part.step()
            assert self.sparsifier.step == step + 1
            self.check()
        return self

    def check(self) -> None:
        for name, mask in self.sparsifier.masks.items():
            param = self.model.get_parameter(name)
            state = [v for part in self.parts for v in part.state.get(param, {}).values() if isinstance(v, Tensor)]
            for tensor in (param, *(value for value in state if value.shape == param.shape)):
                assert not tensor[~mask].any()

    def bits(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def checkpoint(self) -> Any:
        states = [part.state_dict() for part in self.parts]
        return copy.deepcopy((self.model.state_dict(), states, self.sparsifier.state_dict()))

    def resume(self, checkpoint: Any) -> "Loop":
        model, states, sparsifier = checkpoint
        self.model.load_state_dict(model)
        for part, state in zip(self.parts, states, strict=True):
            part.load_state_dict(state)
        self.sparsifier.load_state_dict(sparsifier)
        return self


@pytest.mark.parametrize("kind", KINDS)
def test_two_halves_have_the_bits_of_a_whole(kind: str) -> None:
    one, two = Loop(KINDS[kind], one=True).train(), Loop(KINDS[kind], KINDS[kind]).train()
    assert_same_bits(one.bits(), two.bits())
    assert one.sparsifier.history == two.sparsifier.history
    for mine, theirs in zip(
        one.sparsifier.finish().masks.values(), two.sparsifier.finish().masks.values(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_ramps_shorten_the_steps_of_both() -> None:
    method = acdc.ACDC(sparsity=SPARSITY, ramp=0.5, schedule=METHOD.schedule)
    one, two = (Loop(KINDS["SGD"], KINDS["SGD"], method=method, one=one).train() for one in (True, False))
    assert_same_bits(one.bits(), two.bits())


def test_optimizers_of_two_kinds() -> None:
    loop = Loop(KINDS["one that moves zeros"], KINDS["AdamW"]).train()
    assert loop.sparsifier.finish().sparsity == pytest.approx(SPARSITY, abs=1e-3)


@pytest.mark.parametrize("stop", [2, 6, 8, 14])
def test_resume_gives_the_same_bits(stop: int) -> None:
    whole = Loop(KINDS["SGD"], KINDS["AdamW"]).train()
    half = Loop(KINDS["SGD"], KINDS["AdamW"]).train(last=stop)
    resumed = Loop(KINDS["SGD"], KINDS["AdamW"]).resume(half.checkpoint()).train(first=stop)
    assert_same_bits(whole.bits(), resumed.bits())


def test_the_twin_goes_back_into_both() -> None:
    loop = Loop(KINDS["SGD"], KINDS["AdamW"]).train()
    result = loop.sparsifier.finish()
    loop.sparsifier.detach()
    before = copy.deepcopy(loop.parts[1].state_dict())
    assert len(acdc.finetune_dense(result, loop.model, loop.parts)) == TOTAL - (result.dense_step or 0)
    assert result.twin is not None
    steps = [entry["step"].item() for entry in loop.parts[1].state_dict()["state"].values()]
    assert steps == [result.dense_step] * len(before["state"])
    buffers = [entry["momentum_buffer"] for entry in loop.parts[0].state_dict()["state"].values()]
    kept = [result.twin.optimizer["state"][number]["momentum_buffer"] for number in range(len(buffers))]
    assert all(torch.equal(mine.cpu(), theirs) for mine, theirs in zip(buffers, kept, strict=True))


def test_gradients_clipped_between_two_steps() -> None:
    """The second optimizer's gradients are changed after the first has stepped, and are masked again."""
    loop = Loop(KINDS["SGD"], KINDS["SGD"])
    for step in range(TOTAL):
        loop.backward(step)
        loop.parts[0].step()
        for param in loop.parts[1].param_groups[0]["params"]:
            param.grad.add_(0.01)
        loop.parts[1].step()
        loop.check()


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_scaler_skips_one_of_them(skipped: int) -> None:
    """GradScaler skips only the optimizer whose gradients overflowed. Without the last one the step is not counted."""
    loop = Loop(KINDS["one that moves zeros"], KINDS["one that moves zeros"])
    counted = 0
    for step in range(TOTAL):
        loop.backward(step)
        for index, part in enumerate(loop.parts):
            if step not in (3, 9) or index != skipped:
                part.step()
        counted += step not in (3, 9) or skipped == 0
        assert loop.sparsifier.step == counted
        loop.check()


def test_compiled_model() -> None:
    one, two = Loop(KINDS["SGD"], one=True), Loop(KINDS["SGD"], KINDS["SGD"])
    for loop in (one, two):
        loop.model.compile(backend="eager", fullgraph=True)
    assert_same_bits(one.train().bits(), two.train().bits())


def test_keep_masks() -> None:
    sparse = Loop(KINDS["SGD"], one=True).train().sparsifier.finish()
    torch.manual_seed(0)
    model = Net().to(DEVICE)
    model.load_state_dict(sparse.sparse)
    parts = [KINDS["AdamW"](params) for params in halves(model)]
    acdc.keep_masks(model, parts)
    for step in range(3):
        x, y = batch(step)
        F.cross_entropy(model(x), y).backward()
        for part in parts:
            part.step()
    for name, mask in sparse.masks.items():
        assert torch.equal(model.get_parameter(name).cpu() != 0, mask)


def test_detach_leaves_them_free() -> None:
    loop = Loop(KINDS["SGD"], KINDS["AdamW"]).train(last=6)
    with pytest.raises(RuntimeError, match=r"this AdamW already has a sparsifier"):
        acdc.attach(Net().to(DEVICE), loop.parts[1], METHOD, steps_per_epoch=STEPS_PER_EPOCH)
    loop.sparsifier.detach()
    loop.backward(6)
    for part in loop.parts:
        part.step()
    assert loop.sparsifier.step == 6
    acdc.attach(loop.model, loop.parts, METHOD, steps_per_epoch=STEPS_PER_EPOCH, quiet=True)


def test_wrong_order_is_named() -> None:
    loop = Loop(KINDS["SGD"], KINDS["AdamW"])
    loop.backward(0)
    loop.parts[1].step()
    with pytest.raises(RuntimeError, match=r"SGD \(number 1\) stepped after AdamW \(number 2\), which is the last"):
        loop.parts[0].step()


def test_closures_are_refused() -> None:
    loop = Loop(KINDS["SGD"], KINDS["SGD"])
    with pytest.raises(RuntimeError, match=r"with several optimizers each closure would compute gradients after"):
        loop.parts[0].step(lambda: 0.0)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (acdc.methods.build("rigl", sparsity=0.5, epochs=6), "looks at gradients before the step"),
        (acdc.methods.build("dpf", sparsity=0.5, epochs=6), "trains latent weights"),
        (acdc.ACDC(sparsity=0.5, epochs=6, criterion="saliency"), "looks at gradients before the step"),
    ],
    ids=["rigl", "dpf", "saliency"],
)
def test_methods_that_need_one_optimizer_are_refused(method: acdc.Method, words: str) -> None:
    with pytest.raises(ArgumentError, match=rf"optimizer=\[SGD, SGD\]: .* {words}, so one optimizer must hold all"):
        Loop(KINDS["SGD"], KINDS["SGD"], method=method)


def test_bad_lists() -> None:
    model = Net().to(DEVICE)
    sgd = KINDS["SGD"](model.parameters())
    attach: Any = acdc.attach
    with pytest.raises(ArgumentError, match=r"optimizer=\[\]: expected at least one optimizer"):
        attach(model, [], METHOD, steps_per_epoch=4)
    with pytest.raises(ArgumentTypeError, match=r"optimizer\[1\]: expected torch.optim.Optimizers .* received int"):
        attach(model, [sgd, 3], METHOD, steps_per_epoch=4)
    with pytest.raises(ArgumentError, match=r"optimizer\[1\]: it holds a parameter of shape .* that SGD \(number 1\)"):
        attach(model, [sgd, KINDS["AdamW"](model.fc.parameters())], METHOD, steps_per_epoch=4)
    with pytest.raises(ArgumentError, match=r"optimizer: it does not hold fc.weight"):
        attach(
            model, [KINDS["SGD"](part.parameters()) for part in (model.conv1, model.conv2)], METHOD, steps_per_epoch=4
        )
    acdc.attach(model, [sgd], METHOD, steps_per_epoch=4, quiet=True)  # one is as good as alone
