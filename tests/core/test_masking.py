"""The three states of prunable weights, and the ways between them, without a schedule."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from acdc.core.bundle import Bundle
from acdc.core.latent import Shadow
from acdc.core.masking import Pruning
from acdc.sparsity.masks import from_bool
from acdc.sparsity.prunable import find_prunable

KEEP = torch.tensor([[True, False, True], [False, True, False]])


class Run:
    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2, bias=False)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)  # type: ignore[call-arg]
        weights = find_prunable(self.model).weights
        shadow = partial(Shadow, weights, self.optimizer, view=_halve, pull_back=None, settle=lambda *_: None)
        self.pruning = Pruning(
            {w.name: w for w in weights}, self.optimizer, on_gradient=lambda: None, new_shadow=shadow
        )

    @property
    def weight(self) -> Tensor:
        return self.model.weight.detach().clone()

    def prune(self) -> None:
        masks = self.pruning.masks or self.pruning.new_masks()
        masks["weight"].copy_(from_bool(KEEP))
        self.pruning.prune_by(masks)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 3)).sum().backward()
        self.pruning.before_step()
        self.optimizer.step()
        self.pruning.after_step((self.optimizer,), {})


def _halve(bundle: Bundle, dense: Tensor, out: Tensor) -> None:
    out.copy_(dense / 2)


def test_dense_weights_are_left_alone():
    run = Run()
    before = run.weight
    run.step()
    assert torch.equal(run.weight, before - 0.1)
    assert run.pruning.kept() == {}
    assert not run.model.weight._post_accumulate_grad_hooks


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adamax])  # the latter is not known to keep zeros
def test_masked_weights_stay_zero_until_masks_are_lifted(optimizer):
    run = Run(optimizer)
    before = run.weight
    run.prune()
    assert torch.equal(run.weight, torch.where(KEEP, before, 0))
    run.step()
    assert run.pruning.masked
    assert torch.equal(run.model.weight == 0, ~KEEP)
    assert torch.equal(run.pruning.kept()["weight"], KEEP)
    mask = run.pruning.masks["weight"]
    run.pruning.lift()
    run.step()
    assert (run.model.weight != 0).all(), "they go on from 0"
    run.prune()
    assert run.pruning.masks["weight"] is mask, "what a CUDA graph reads stays where it is"


@pytest.mark.parametrize("to", ["dense", "view"])
def test_dense_weights_behind_a_view(to):
    run = Run()
    before = run.weight
    run.pruning.train_behind()
    run.step()
    dense = run.pruning.trained()["weight"]
    assert torch.equal(dense, before - 0.1), "all of them take a gradient taken at the view"
    assert torch.equal(run.weight, dense / 2)
    run.pruning.lift(to=to)
    assert torch.equal(run.weight, dense if to == "dense" else dense / 2)
    assert not run.pruning.sparse


@pytest.mark.parametrize("begin", ["masked", "shadowed"])
@pytest.mark.parametrize("then", ["step", "catch up"])
def test_late_is_after_backward(begin, then):
    """A forward pass has read the weights: they change after the step, or as the next one begins."""
    run = Run()
    before = run.weight
    run.pruning.late = True
    (run.prune if begin == "masked" else run.pruning.train_behind)()
    assert torch.equal(run.weight, before)
    (run.step if then == "step" else run.pruning.catch_up)()
    moved = before - 0.1 if then == "step" else before
    assert torch.equal(run.weight, torch.where(KEEP, moved, 0) if begin == "masked" else moved / 2)
    assert not run.pruning.late
