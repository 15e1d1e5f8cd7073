"""Parameters that the model or the optimizer has lost are noticed, and no dense model passes for a sparse one."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import acdc
from tests.conformance.harness import OPTIMIZERS, STEPS_PER_EPOCH, TOTAL, Run, batch
from tests.warned import LATE_STARTS

SGD = OPTIMIZERS["SGD momentum, Nesterov, weight decay"]


def assign_a_state_dict(run: Run) -> None:
    run.model.load_state_dict(copy.deepcopy(run.model.state_dict()), assign=True)


def swap_a_layer(run: Run) -> None:
    run.model.fc = nn.Linear(32, 16)


def parametrize_a_layer(run: Run) -> None:
    nn.utils.parametrizations.spectral_norm(run.model.fc)


def point_the_optimizer_elsewhere(run: Run) -> None:
    run.optimizer.param_groups[0]["params"] = [nn.Parameter(p.detach().clone()) for p in run.model.parameters()]


CHANGES = [assign_a_state_dict, swap_a_layer, parametrize_a_layer, point_the_optimizer_elsewhere]

USES: dict[str, Callable[[Run], object]] = {
    "finish()": lambda run: run.sparsifier.finish(),
    "state_dict()": lambda run: run.sparsifier.state_dict(),
    "load_state_dict()": lambda run: run.sparsifier.load_state_dict({}),
    "optimizer.step()": lambda run: [run.optimizer.step() for _ in run.weights],  # one weight is looked for at a time
}


def trained(steps: int) -> Run:
    run = Run.make(SGD)
    for step in range(steps):
        run.train_step(step)
    return run


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("use", USES)
def test_weights_that_were_lost_are_named_with_what_to_do(use: str, change: Callable[[Run], None]) -> None:
    run = trained(TOTAL)
    change(run)
    with pytest.raises(RuntimeError, match=r"no longer.*sparsifier\.detach\(\).*attach again") as error:
        USES[use](run)
    message = str(error.value)
    assert message.startswith(f"{use}: ")
    assert "fc.weight" in message
    assert ("optimizer no longer holds" in message) == (change is point_the_optimizer_elsewhere)


@pytest.mark.parametrize("name", ["sparsity", "layer_sparsity"])
@pytest.mark.parametrize("change", CHANGES[:3])
def test_sparsity_is_that_of_the_model_and_not_of_what_it_held(name: str, change: Callable[[Run], None]) -> None:
    run = trained(TOTAL)
    change(run)
    with pytest.raises(RuntimeError, match=rf"^{name}: the model no longer holds .*fc\.weight"):
        getattr(run.sparsifier, name)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("steps", [1, STEPS_PER_EPOCH + 1])
def test_training_stops_within_as_many_steps_as_there_are_weights(steps: int, change: Callable[[Run], None]) -> None:
    run = trained(steps)
    change(run)
    later = range(steps, steps + len(run.weights))
    with pytest.raises(RuntimeError, match="no longer"):
        [run.train_step(step) for step in later]
    everything = change in (assign_a_state_dict, point_the_optimizer_elsewhere)
    assert run.sparsifier.step == steps if everything else run.sparsifier.step in later


def test_parameters_that_moved_within_the_optimizer_are_not_lost() -> None:
    run = trained(1)
    params = run.optimizer.param_groups[0]["params"]
    run.optimizer.param_groups[0]["params"] = params[:2]
    run.optimizer.add_param_group({"params": params[:1:-1]})
    for step in run.steps(1):
        run.train_step(step)
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def test_a_phase_does_not_begin_on_weights_that_were_lost() -> None:
    run = trained(STEPS_PER_EPOCH)
    assign_a_state_dict(run)
    with pytest.raises(RuntimeError, match=r"step 4: the model no longer holds conv1\.weight"):
        run.sparsifier.begin_step()
    assert run.sparsifier.masks == {}


def test_a_block_of_layers_that_was_replaced_is_noticed() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC.paper(sparsity=0.5, epochs=4), steps_per_epoch=1)
    model[0] = copy.deepcopy(model[0])  # the layers inside it, and what they hold, are still whole
    with pytest.raises(RuntimeError, match=r"model no longer holds 0\.0\.weight, 0\.1\.weight"):
        sparsifier.state_dict()


@LATE_STARTS
def test_what_keeps_the_parameters_is_no_replacement() -> None:
    """Loading in place, a layer around the same parameters, another group, the optimizer's own loading."""
    run = trained(STEPS_PER_EPOCH)
    run.model.load_state_dict(copy.deepcopy(run.model.state_dict()))
    linear = nn.Linear(32, 16)
    linear.weight, linear.bias = run.model.fc.weight, run.model.fc.bias
    run.model.fc = linear
    run.model.to(torch.float32).cpu()
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    for step in run.steps(STEPS_PER_EPOCH):
        run.train_step(step)
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def test_tied_weights_are_looked_for_under_the_name_they_are_pruned_by() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC.paper(sparsity=0.5, epochs=4), steps_per_epoch=1)
    for step in range(4):
        optimizer.zero_grad()
        model(batch(step)[0].flatten(1)[:, :4]).square().sum().backward()
        optimizer.step()
    assert sparsifier.finish().sparsity == 0.5
    model[0].weight = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(RuntimeError, match=r"model no longer holds 0\.weight"):
        sparsifier.finish()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x).relu()).relu())


def test_a_tied_weight_is_looked_for_under_all_its_names() -> None:
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC.paper(sparsity=0.8, epochs=4), steps_per_epoch=1)
    model.b.weight = nn.Parameter(model.b.weight.detach().clone())
    optimizer.add_param_group({"params": [model.b.weight]})
    with pytest.raises(RuntimeError, match=r"state_dict\(\): the model no longer holds b.weight, to which"):
        sparsifier.state_dict()
