"""LAMB against a step written out in float64 numpy, and the contract that zeros stay zero."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

import acdc
from acdc.recipes import schema
from acdc.train.optim import Lamb, build
from tests.conformance.harness import DEVICE


def lamb_by_hand(weights, gradients, *, lr, betas, eps, weight_decay, bias_correction, max_weight_norm):
    """You et al. 2020, Algorithm 2, for one layer over several steps."""
    m, v = np.zeros_like(weights), np.zeros_like(weights)
    for t, gradient in enumerate(gradients, start=1):
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        m_hat = m / (1 - betas[0] ** t) if bias_correction else m
        v_hat = v / (1 - betas[1] ** t) if bias_correction else v
        r = m_hat / (np.sqrt(v_hat) + eps) + weight_decay * weights
        weight_norm, r_norm = np.linalg.norm(weights), np.linalg.norm(r)
        ratio = 1.0
        if weight_norm > 0 and r_norm > 0:
            ratio = min(weight_norm, max_weight_norm or np.inf) / (r_norm + eps)
        weights = weights - lr * ratio * r
    return weights, m, v


def param(values) -> nn.Parameter:
    return nn.Parameter(torch.tensor(values, dtype=torch.float64))


OPTIONS = {
    "published": {},
    "nvidia": {"bias_correction": False, "weight_decay": 0.0},
    "no limit": {"max_weight_norm": None},
    "no decay": {"weight_decay": 0.0},
    "other betas": {"betas": (0.5, 0.9), "eps": 1e-3},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("scale", [0.1, 100.0])  # norms below and above the limit of 10
def test_steps_are_the_published_ones(options: dict, scale: float) -> None:
    full = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-6, "weight_decay": 0.01}
    full |= {"bias_correction": True, "max_weight_norm": 10.0} | options
    random = np.random.default_rng(0)
    start, gradients = scale * random.normal(size=(4, 3)), random.normal(size=(5, 4, 3))
    weight = param(start)
    optimizer = Lamb([weight], **full)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    expected, m, v = lamb_by_hand(start, gradients, **full)
    state = optimizer.state[weight]
    np.testing.assert_allclose(weight.detach().numpy(), expected, rtol=1e-12)
    np.testing.assert_allclose(state["exp_avg"].numpy(), m, rtol=1e-12)
    np.testing.assert_allclose(state["exp_avg_sq"].numpy(), v, rtol=1e-12)
    assert set(state) == {"step", "exp_avg", "exp_avg_sq"}
    assert int(state["step"]) == 5


def test_a_recipe_s_step_is_the_one_that_trains_transformer_xl() -> None:
    """Without bias corrections, at betas of .9 and .999, ε of 1e-6 and norms limited to 10: by hand, two steps."""
    settings = schema.Optimizer(name="lamb", lr=0.01, bias_correction=False)
    model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    optimizer = build(settings, model, torch.device("cpu"), "fp32")
    nn.init.constant_(model.weight, 100.0)  # a norm of 141.4
    model.weight.grad = torch.tensor([[3.0, -1.0]], dtype=torch.float64)
    optimizer.step()
    # m = .1 g, v = .001 g²: r = .1 / √.001 = 3.1623 in size, and its norm 4.4721; the step is lr · 10 / 4.4721 · r
    r = torch.tensor([[0.3 / (0.001**0.5 * 3 + 1e-6), -0.1 / (0.001**0.5 + 1e-6)]], dtype=torch.float64)
    expected = 100 - 0.01 * 10 / (r.norm() + 1e-6) * r
    torch.testing.assert_close(model.weight.detach(), expected, rtol=1e-14, atol=0)
    assert (100 - model.weight).abs().flatten().tolist() == pytest.approx([0.0707107] * 2, rel=1e-4)
    model.weight.grad = torch.zeros_like(model.weight)
    optimizer.step()
    # m = .09 g, v = .000999 g²: the signs remain, and the norm is still above 10
    again = 0.9 * torch.tensor([[0.3, -0.1]], dtype=torch.float64)
    r = again / (torch.tensor([[9.0, 1.0]], dtype=torch.float64).mul(0.000999).sqrt() + 1e-6)
    torch.testing.assert_close(model.weight.detach(), expected - 0.01 * 10 / (r.norm() + 1e-6) * r, rtol=1e-14, atol=0)


@pytest.mark.parametrize("more", [{}, {"weight_decay": 0.1}, {"bias_correction": False, "max_weight_norm": None}])
def test_parameters_together_take_the_steps_they_take_alone(more: dict) -> None:
    """Bit by bit on a CPU: of two types, one all zeros, and one without a gradient in the first step."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 4), (5,), (2, 2, 2), (4,), (6,)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    start[1].zero_()
    start[4] = start[4].double()
    gradients = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(3)]
    after = []
    for foreach in (False, True):
        params = [nn.Parameter(values.clone()) for values in start]
        optimizer = Lamb(params, lr=0.1, foreach=foreach, **more)
        for number, step in enumerate(gradients):
            for param, gradient in zip(params, step, strict=True):
                param.grad = gradient.to(param.dtype)
            if number == 0:
                params[3].grad = None
            optimizer.step()
        after.append([*params, *(optimizer.state[param]["exp_avg_sq"] for param in params)])
    for alone, together in zip(*after, strict=True):
        assert torch.equal(alone, together)
    assert not torch.equal(after[0][1], start[1])


def test_the_defaults() -> None:
    assert Lamb([param([1.0])]).defaults == {
        "lr": 1e-3,
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "weight_decay": 0.0,
        "bias_correction": True,
        "max_weight_norm": 10.0,
        "foreach": None,
    }


def test_a_layer_of_zeros_takes_adam_s_step() -> None:
    bias = param([0.0, 0.0])
    bias.grad = torch.tensor([1.0, -2.0], dtype=torch.float64)
    Lamb([bias], lr=0.1).step()
    torch.testing.assert_close(bias.detach(), torch.tensor([-0.1, 0.1], dtype=torch.float64), rtol=1e-5, atol=0)


def test_each_layer_has_its_own_ratio() -> None:
    small, large = param([0.01, 0.02]), param([1.0, 2.0])
    before = small.detach().clone(), large.detach().clone()
    for weight in (small, large):
        weight.grad = torch.ones(2, dtype=torch.float64)
    Lamb([small, large], lr=0.1).step()
    moved = [(weight.detach() - old).norm() for weight, old in zip((small, large), before, strict=True)]
    assert moved[1] / moved[0] == pytest.approx(100, rel=1e-3)  # as large as the ratio of their norms


def test_zero_weight_gradient_and_state_stay_zero() -> None:
    assert Lamb.keeps_zeros is True
    weight = param([0.0, 1.0, 0.0, -2.0])
    optimizer = Lamb([weight], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        weight.grad = torch.tensor([0.0, 0.5, 0.0, 1.0], dtype=torch.float64)
        optimizer.step()
    for values in (weight.detach(), optimizer.state[weight]["exp_avg"], optimizer.state[weight]["exp_avg_sq"]):
        assert values[[0, 2]].tolist() == [0.0, 0.0]
        assert (values[[1, 3]] != 0).all()


def test_half_precision_norms_do_not_overflow() -> None:
    weight = nn.Parameter(torch.full((300,), 6e4, dtype=torch.float16))  # of norm 1,039,230; float16 ends at 65,504
    weight.grad = torch.ones(300, dtype=torch.float16)
    Lamb([weight], lr=0.1, max_weight_norm=None).step()
    assert torch.isfinite(weight).all()
    torch.testing.assert_close(weight.detach().float(), torch.full((300,), 5.4e4), rtol=2e-2, atol=0)


def test_a_closure_runs_with_gradients_and_its_loss_comes_back() -> None:
    weight = param([3.0])
    optimizer = Lamb([weight], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = (weight**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert weight.item() < 3.0


def test_parameters_without_a_gradient_are_left_alone() -> None:
    weight = param([3.0])
    optimizer = Lamb([weight])
    assert optimizer.step() is None
    assert weight.item() == 3.0
    assert weight not in optimizer.state


def test_state_goes_through_a_state_dict() -> None:
    def after(steps_before_reload: int) -> torch.Tensor:
        weight = param([3.0, -1.0])
        optimizer = Lamb([weight], lr=0.1)
        for step in range(4):
            if step == steps_before_reload:
                saved, optimizer = optimizer.state_dict(), Lamb([weight], lr=0.5)
                optimizer.load_state_dict(saved)
            weight.grad = weight.detach() + step
            optimizer.step()
        return weight.detach()

    assert torch.equal(after(2), after(-1))


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match=r"build the embedding with nn.Embedding\(..., sparse=False\)"):
        Lamb(embedding.parameters()).step()


@pytest.mark.parametrize(
    ("name", "value"),
    [("lr", -1.0), ("betas", (0.9, 1.0)), ("eps", 0.0), ("weight_decay", -0.1), ("max_weight_norm", 0.0)],
)
def test_bad_settings_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name}=.*expected"):
        Lamb([param([1.0])], **{name: value})  # pyright: ignore[reportArgumentType]


def test_pruned_weights_stay_zero_without_a_pass_after_each_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = Lamb(model.parameters(), lr=0.01, weight_decay=0.1)
    method = acdc.ACDC(sparsity=0.75, schedule=acdc.Schedule.from_phases([("dense", "3st"), ("sparse", "4st")]))
    sparsifier = acdc.attach(model, optimizer, method)
    for _ in range(7):
        model(torch.randn(4, 8)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sparsifier.finish().sparsity == 0.75
    for name, mask in sparsifier.masks.items():
        weight = model.get_parameter(name)
        state = optimizer.state[weight]
        for values in (weight, state["exp_avg"], state["exp_avg_sq"]):
            assert not values[~mask].any()


# Under fp16


def after_an_overflow(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> list[float]:
    """Weights after a first step that overflows and a second that does not. Memory nobody wrote holds NaN here."""
    scaler = torch.amp.GradScaler(weight.device.type, init_scale=2.0)
    for slope in (float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale((slope * weight).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return weight.tolist()


@pytest.fixture
def poisoned_memory() -> Iterator[None]:
    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # which fills what torch.empty returns with NaN
    yield
    torch.use_deterministic_algorithms(was)


@pytest.mark.usefixtures("poisoned_memory")
def test_a_first_step_that_overflows_leaves_no_momentum_behind() -> None:
    """What `build` keeps away from: should torch's fused SGD ever give [0.9] here, it can be used under fp16, too."""
    weight = nn.Parameter(torch.ones(1))
    fused = after_an_overflow(torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True), weight)
    assert not np.isfinite(fused).all()
    model = nn.Linear(1, 1, bias=False, device=DEVICE)
    nn.init.ones_(model.weight)
    optimizer = build(schema.Optimizer(lr=0.1, momentum=0.9, weight_decay=0.0), model, torch.device(DEVICE), "fp16")
    assert after_an_overflow(optimizer, model.weight) == [[pytest.approx(0.9)]]


def test_sgd_is_fused_on_a_gpu_unless_losses_are_scaled() -> None:
    model, said = nn.Linear(1, 1), schema.Optimizer()
    chosen = {p: build(said, model, torch.device("cuda"), p).defaults["fused"] for p in ("fp32", "bf16", "fp16")}
    assert chosen == {"fp32": True, "bf16": True, "fp16": None}
