"""The three states of prunable weights, and the ways between them, without a schedule."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from acdc.core.latent import Bundle, LatentWeights
from acdc.core.masking import Masking
from acdc.core.state import State, Weights
from acdc.sparsity.masks import from_bool
from acdc.sparsity.prunable import find_prunable

KEEP = torch.tensor([[True, False, True], [False, True, False]])


class Run:
    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2, bias=False)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        weights = find_prunable(self.model).weights
        self.state = State()
        new_latent = partial(
            LatentWeights,
            weights,
            self.optimizer,
            self.state,
            effective_weights=_halve,
            latent_gradient=None,
            after_step=lambda *_: None,
        )
        self.masking = Masking(
            {w.name: w for w in weights},
            self.optimizer,
            self.state,
            on_backward=self.state.enter_backward,
            new_latent=new_latent,
        )

    @property
    def weight(self) -> Tensor:
        return self.model.weight.detach().clone()

    def prune(self) -> None:
        masks = self.masking.masks or self.masking.new_masks()
        masks["weight"].copy_(from_bool(KEEP))
        self.masking.prune_by(masks)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(1, 3)).sum().backward()
        self.masking.before_step()
        self.optimizer.step()
        self.masking.after_step((self.optimizer,), {})


def _halve(bundle: Bundle, latent: Tensor, out: Tensor) -> None:
    out.copy_(latent / 2)


def test_dense_weights_are_left_alone():
    run = Run()
    before = run.weight
    run.step()
    assert torch.equal(run.weight, before - 0.1)
    assert run.masking.kept() == {}
    assert not run.model.weight._post_accumulate_grad_hooks


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adamax])  # the latter is not known to keep zeros
def test_masked_weights_stay_zero_until_masks_are_lifted(optimizer):
    run = Run(optimizer)
    before = run.weight
    run.prune()
    assert torch.equal(run.weight, torch.where(KEEP, before, 0))
    run.step()
    assert run.state.masked
    assert torch.equal(run.model.weight == 0, ~KEEP)
    assert torch.equal(run.masking.kept()["weight"], KEEP)
    mask = run.masking.masks["weight"]
    run.masking.lift()
    run.step()
    assert (run.model.weight != 0).all(), "they continue from 0"
    run.prune()
    assert run.masking.masks["weight"] is mask, "what a CUDA graph reads stays where it is"


@pytest.mark.parametrize("keep", ["latent", "effective"])
def test_latent_weights_behind_the_models(keep):
    run = Run()
    before = run.weight
    run.masking.use_latent()
    run.step()
    latent = run.masking.trained()["weight"]
    assert torch.equal(latent, before - 0.1), "all of them take a gradient at the effective weights"
    assert torch.equal(run.weight, latent / 2)
    run.masking.lift(keep=keep)
    assert torch.equal(run.weight, latent if keep == "latent" else latent / 2)
    assert run.state.weights is Weights.DENSE


@pytest.mark.parametrize("begin", ["masked", "latent"])
@pytest.mark.parametrize("then", ["step", "catch up"])
def test_weights_that_a_forward_pass_has_read_stay_until_the_step_ends(begin, then):
    """A forward pass has read the weights: they change after the step, or as the next one begins."""
    run = Run()
    before = run.weight
    run.state.forward_already_ran = True
    (run.prune if begin == "masked" else run.masking.use_latent)()
    assert torch.equal(run.weight, before)
    (run.step if then == "step" else run.masking.catch_up)()
    moved = before - 0.1 if then == "step" else before
    assert torch.equal(run.weight, torch.where(KEEP, moved, 0) if begin == "masked" else moved / 2)
    assert not run.state.forward_already_ran
