"""A whole checkpoint with other contents is refused by the part that is wrong, before anything of it is used."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from acdc.runs import checkpoint
from acdc.runs.checkpoint import MismatchError, check_contents
from acdc.train import optim
from tests.train.problems import outcome, recipe, stage

State = dict[str, Any]
EXTRA = {"recipe": {}, "outcomes": [], "seconds": 1.0, "world": 1}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> State:
    """In the last phase, with a twin, momentum and an average."""
    folder = tmp_path_factory.mktemp("run")
    trained = stage(folder, "train.ema=0.9")
    trained.extra = lambda: EXTRA
    list(trained.run())
    return checkpoint.newest(folder / "checkpoints").state


def first(tensors: dict[Any, Any]) -> Any:
    return next(iter(tensors))


WRONG: dict[str, Callable[[State], Any]] = {
    "state.epoch is missing": lambda state: state.pop("epoch"),
    "state.batch = true: expected a whole number": lambda state: state.update(batch=True),
    "state.model = […]: expected a table": lambda state: state.update(model=[]),
    "state.model.conv.weight = 3: expected a tensor": lambda state: state["model"].update({"conv.weight": 3}),
    "state.rng: expected 1 ranks, received 2": lambda state: state["rng"].append(state["rng"][0]),
    "state.totals[0]: expected 5 numbers, received 4": lambda state: state["totals"][0].pop(),
    "state.curves: expected 1 ranks, received 0": lambda state: state["curves"].clear(),
    "state.curves: expected 2 x 5 numbers for each rank": lambda state: state["curves"][0][1].pop(),
    "state.rng[0].python = […]: expected 3 items, not 2": lambda state: state["rng"][0].update(python=(3, (1,))),
    "state.extra.world is missing": lambda state: state["extra"].pop("world"),
    "state.extra.recipe.lr = a tensor of shape [2] (float32): expected plain data": lambda state: state["extra"][
        "recipe"
    ].update(lr=torch.ones(2)),
    "state.extra.outcomes[0].model is missing": (lambda state: state["extra"]["outcomes"].append({})),
    'state.sparsifier.history[0].step = "x": expected a whole number': lambda state: state["sparsifier"]["history"][
        0
    ].update(step="x"),
    "state.best = 1: expected a table": lambda state: state.update(best=1),
    "state.seconds = NaN: expected a number, 0 or more": lambda state: state.update(seconds=float("nan")),
}
UNFIT: dict[str, Callable[[State], Any]] = {
    "epoch = 5: expected 0 to 4": lambda state: state.update(epoch=5),
    "batch = -1: expected 0 to 5": lambda state: state.update(batch=-1),
    "sparsifier.step = 20: expected 15, from epoch and batch": lambda state: state.update(epoch=3),
    "model.fc.bias: expected finite numbers": lambda state: state["model"]["fc.bias"].fill_(float("nan")),
    "optimizer.param_groups[0].momentum = 0.1: expected 0.9": (
        lambda state: state["optimizer"]["param_groups"][0].update(momentum=0.1)
    ),
    "optimizer.param_groups[0].nesterov = nothing: expected True": (
        lambda state: state["optimizer"]["param_groups"][0].pop("nesterov")
    ),
    "optimizer.state: expected the state of": lambda state: state["optimizer"]["state"].pop(0),
    "sparsifier: expected one in this stage": lambda state: state.update(sparsifier=None),
    "ema: expected one in this stage": lambda state: state.update(ema=None),
    "model.fc.bias is missing": lambda state: state["model"].pop("fc.bias"),
    "model.more = a tensor of shape [1] (float32): expected no entry": lambda state: state["model"].update(
        more=torch.ones(1)
    ),
    "model.fc.bias = a tensor of shape [3] (float32): expected shape [4]": lambda state: state["model"].update(
        {"fc.bias": torch.ones(3)}
    ),
    "model.fc.bias = int64: expected float32": (
        lambda state: state["model"].update({"fc.bias": torch.ones(4, dtype=torch.int64)})
    ),
    "ema.module.fc.bias is missing": lambda state: state["ema"].pop("module.fc.bias"),
    "optimizer.param_groups: expected the model's parameters": (
        lambda state: state["optimizer"]["param_groups"][0]["params"].pop()
    ),
    "optimizer.param_groups[0].momentum = nothing: expected 0.9": (
        lambda state: state["optimizer"]["param_groups"][0].pop("momentum")
    ),
    "optimizer.state[99]: expected the index of a parameter": lambda state: state["optimizer"]["state"].update(
        {99: {}}
    ),
    "optimizer.state[0] = exp_avg: expected momentum_buffer": (
        lambda state: state["optimizer"]["state"].update({0: {"exp_avg": torch.ones(1)}})
    ),
    "sparsifier.twin.optimizer.state[0].momentum_buffer = a tensor of shape [1]": (
        lambda state: state["sparsifier"]["twin"]["optimizer"]["state"].update({0: {"momentum_buffer": torch.ones(1)}})
    ),
    "dynamics.last.": lambda state: state["dynamics"]["last"].pop(first(state["dynamics"]["last"])),
    "sparsifier.phase: expected -1 to ": lambda state: state["sparsifier"].update(phase=77),
    "rng: expected the state of a random generator": lambda state: state["rng"][0].update(torch=torch.ones(3)),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_structure_that_is_not_a_checkpoint_s_is_refused_by_its_part(saved: State, message: str) -> None:
    state, path = copy.deepcopy(saved), Path("0-acdc-00000001.pt")
    check_contents(path, state)
    WRONG[message](state)
    with pytest.raises(MismatchError) as refused:
        check_contents(path, state)
    assert f"{path}: not a checkpoint of this version of acdc ({message}" in str(refused.value)


@pytest.mark.parametrize("message", UNFIT)
def test_contents_that_do_not_fit_the_stage_are_refused_by_their_part(
    saved: State, message: str, tmp_path: Path
) -> None:
    state, begun = copy.deepcopy(saved), stage(tmp_path, "train.ema=0.9")
    UNFIT[message](state)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        begun.load_state_dict(state)


def test_what_fits_goes_on(saved: State, tmp_path: Path) -> None:
    begun = stage(tmp_path, "train.ema=0.9")
    begun.load_state_dict(copy.deepcopy(saved))
    assert outcome(list(begun.run())) == []
    assert torch.equal(begun.model.state_dict()["fc.bias"], saved["model"]["fc.bias"])


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "lamb"])
def test_what_an_optimizer_keeps_is_known_without_random_numbers(name: str) -> None:
    before = torch.get_rng_state()
    plain = () if name == "sgd" else ("optimizer.momentum=0", "optimizer.nesterov=false")
    said = recipe(f"optimizer.name={name}", *plain).optimizer
    kept = optim.state_of_a_parameter(said, torch.device("cpu"), "fp32")
    assert ("momentum_buffer" if name == "sgd" else "exp_avg") in kept
    assert torch.equal(torch.get_rng_state(), before)
