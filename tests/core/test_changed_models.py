"""Models that change under a sparsifier, or are not ready for one: cast, frozen, tied, lazy and meta parameters."""

import pytest
import torch
from torch import nn

import acdc
from acdc.errors import ArgumentError
from tests.warned import SMALL_NETS

pytestmark = SMALL_NETS
STEPS = 24


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def attach(model: nn.Module, method: acdc.Method | None = None) -> tuple[torch.optim.Optimizer, acdc.Sparsifier]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    method = method or acdc.ACDC.paper(sparsity=0.75, epochs=6)
    return optimizer, acdc.attach(model, optimizer, method, steps_per_epoch=4, quiet=True)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    model(x.to(next(model.parameters()).dtype)).square().mean().backward()
    optimizer.step()


@pytest.mark.parametrize("name", ["acdc", "gmp", "rigl", "set"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("when", [1, 6, 10])
def test_a_model_cast_in_the_middle(name: str, dtype: torch.dtype, when: int) -> None:
    """Parameters stay the same objects, and masks are bytes: zeros hold in the new type."""
    method = acdc.methods.build(name, sparsity=0.5, epochs=6)
    model = net()
    optimizer, sparsifier = attach(model, method)
    for step in range(STEPS):
        if step == when:
            model.to(dtype)
            for state in optimizer.state.values():
                state["momentum_buffer"] = state["momentum_buffer"].to(dtype)
        train_step(model, optimizer, step)
        for layer, mask in sparsifier.masks.items():
            assert not model.get_parameter(layer)[~mask].any(), (name, step)
    result = sparsifier.finish()
    assert result.sparse["0.weight"].dtype is dtype
    assert result.sparsity == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", ["top_kast", "dpf", "str"])
def test_a_cast_away_from_latent_weights_is_refused_and_can_be_undone(name: str) -> None:
    model = net()
    options = {} if name == "str" else {"sparsity": 0.5}
    optimizer, sparsifier = attach(model, acdc.methods.build(name, epochs=6, **options))
    for step in range(10):
        train_step(model, optimizer, step)
    model.double()
    with pytest.raises(RuntimeError, match=r"are torch.float64 on cpu now, .* latent weights .* torch.float32 .* back"):
        train_step(model, optimizer, 10)
    model.float()
    for step in range(10, STEPS):
        train_step(model, optimizer, step)
    assert sparsifier.finish().total_steps == STEPS


def test_meta_parameters_are_refused() -> None:
    with torch.device("meta"):
        model = net()
    with pytest.raises(
        ArgumentError,
        match=r"on the meta device weights have .* no values, .* 0.weight, 2.weight.*to_empty.*and attach",
    ):
        attach(model)
    model.to_empty(device="cpu").apply(lambda m: m.reset_parameters() if isinstance(m, nn.Linear) else None)
    optimizer, sparsifier = attach(model)
    for step in range(STEPS):
        train_step(model, optimizer, step)
    assert sparsifier.finish().sparsity == 0.75


def test_lazy_parameters_are_refused() -> None:
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 4))
    with pytest.raises(ArgumentError, match=r"0.weight: it belongs to a lazy layer .* run one forward pass before"):
        attach(model)
    model(torch.ones(1, 8))
    attach(model)


def test_a_layer_frozen_in_the_middle_keeps_its_zeros() -> None:
    model = net()
    optimizer, sparsifier = attach(model)
    for step in range(STEPS):
        if step == 6:
            model[0].requires_grad_(False)
        train_step(model, optimizer, step)
        assert all(not model.get_parameter(name)[~mask].any() for name, mask in sparsifier.masks.items())
    assert sparsifier.finish().sparsity == 0.75


def test_weights_tied_afterwards_are_noticed() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer, _ = attach(model)
    model[1].weight = model[0].weight
    with pytest.raises(RuntimeError, match=r"the model no longer holds 1.weight, to which the sparsifier was attached"):
        train_step(model, optimizer, 0)


def test_a_conversion_that_replaces_parameters_is_noticed() -> None:
    model = net()
    optimizer, _ = attach(model)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    with pytest.raises(RuntimeError, match=r"the model no longer holds 0.weight, 2.weight"):
        train_step(model, optimizer, 0)
