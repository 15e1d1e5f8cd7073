"""Every optimizer under every way of looping. `make matrix` writes the outcome to docs/compatibility.md."""

import copy
import io
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import acdc
from tests.conformance.harness import (
    DEVICE,
    OPTIMIZERS,
    STEPS_PER_EPOCH,
    TOTAL,
    MakeOptimizer,
    Run,
    assert_same_bits,
    batch,
)
from tests.warned import ENFORCED, SMALL_NETS

STOPS = (2, 4, 6, 8, 12, 14, 20, 22)  # inside dense and sparse phases and exactly between them
FIRST_MOMENTS = ("momentum_buffer", "exp_avg")

pytestmark = [pytest.mark.parametrize("optimizer", OPTIMIZERS), SMALL_NETS, ENFORCED]


def density(model: nn.Module) -> float:
    """Of the matrices; 0.2 if masked. Pruning leaves some units dead, so not all weights come back in a step."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    return sum(int(p.count_nonzero()) for p in matrices) / sum(p.numel() for p in matrices)


@dataclass(frozen=True)
class Whole:
    """How a run ended that nothing disturbed, and a checkpoint of each stop on its way."""

    bits: dict[str, Tensor]
    result: acdc.Result
    history: list
    checkpoints: dict[int, bytes]


@cache
def whole(optimizer: str) -> Whole:
    """Trained once in each process: to read, not to change."""
    run, checkpoints = Run.make(OPTIMIZERS[optimizer]), {}
    for step in run.steps():
        if step in STOPS:
            file = io.BytesIO()
            torch.save(run.checkpoint(), file)
            checkpoints[step] = file.getvalue()
        run.train_step(step)
    return Whole(run.bits(), run.sparsifier.finish(), run.sparsifier.history, checkpoints)


@pytest.mark.feature("plain loop")
def test_zeros_hold_after_every_step(optimizer):
    run = Run.make(OPTIMIZERS[optimizer])
    moved = [p.detach().clone() for p in run.weights.values()]
    for step in run.steps():
        run.train_step(step)
    assert any(not torch.equal(a, b) for a, b in zip(moved, run.weights.values(), strict=True))
    result = run.sparsifier.finish()
    assert result.sparsity == pytest.approx(0.8, abs=1e-3)
    assert result.dense_step == 20


@pytest.mark.feature("paper's transitions")
def test_transitions(optimizer):
    run = Run.make(OPTIMIZERS[optimizer])
    before: dict = {}
    previous = run.sparsifier.phase
    for step in run.steps():
        # What a user evaluates between two steps is the model of the phase that has just run.
        values = {name: p.detach().clone() for name, p in run.weights.items()}
        assert run.sparsifier.phase.index == previous.index
        with torch.no_grad():
            run.call.eval()(batch(step)[0])
        run.call.train()
        assert_same_bits(values, {name: p.detach() for name, p in run.weights.items()})

        run.optimizer.zero_grad()
        loss = run.loss(batch(step))
        loss.backward()
        phase = run.sparsifier.phase
        if phase.index != previous.index and phase.kind == "sparse":
            flat = torch.cat([v.abs().flatten() for v in values.values()])
            kept = torch.cat([m.flatten() for m in run.sparsifier.masks.values()])
            assert flat[kept].min() >= flat[~kept].max(), "the mask is the support of T_k at entry"
            assert set(run.sparsifier.masks) == set(values)
            for name, p in run.weights.items():
                mask = run.sparsifier.masks[name]
                assert torch.equal(p, values[name] * mask), "weights are T_k(θ) when the gradient is taken"
        elif phase.index != previous.index:
            assert run.sparsifier.masks == {}
            assert_same_bits(values, {name: p.detach() for name, p in run.weights.items()})
            for p in run.model.parameters():
                state = run.optimizer.state.get(p, {})
                for key, value in state.items():
                    if key in FIRST_MOMENTS and isinstance(value, torch.Tensor):
                        assert not value.any(), f"{key} is reset at decompression"
                    elif key in before.get(p, {}):
                        assert torch.equal(value, before[p][key]), f"{key} is kept"
            gradients = [p.grad[p == 0] for p in run.weights.values() if p.grad is not None]
            assert any(grad.any() for grad in gradients), "lifted weights get gradients again"
        run.optimizer.step()
        before = {p: {k: copy.deepcopy(v) for k, v in s.items()} for p, s in run.optimizer.state.items()}
        previous = phase
    assert [event["kind"] for event in run.sparsifier.history] == ["dense", "sparse"] * 3


@pytest.mark.feature("gradient clipping")
def test_clipping_sees_masked_gradients(optimizer):
    run = Run.make(OPTIMIZERS[optimizer])
    for step in run.steps():
        run.optimizer.zero_grad()
        run.loss(batch(step)).backward()
        masks = run.sparsifier.masks
        masked = [p.grad * masks.get(n, 1) for n, p in run.model.named_parameters() if p.grad is not None]
        expected = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in masked]))
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), 0.1)
        assert norm.item() == pytest.approx(expected.item(), rel=1e-6)
        run.optimizer.step()


@pytest.mark.feature("accumulation")
def test_accumulation(optimizer):
    run = Run.make(OPTIMIZERS[optimizer])
    for step in run.steps():
        run.optimizer.zero_grad()
        for part in range(2):
            (run.loss(batch(2 * step + part)) / 2).backward()
            for name, mask in run.sparsifier.masks.items():
                grad = run.weights[name].grad
                assert grad is not None
                assert not grad[~mask].any()
        run.optimizer.step()
    assert run.sparsifier.step == TOTAL


@pytest.mark.feature("closure")
def test_closure_gives_the_same_bits(optimizer):
    closed = Run.make(OPTIMIZERS[optimizer])
    for step in closed.steps():

        def closure(step=step) -> Any:  # the loss: torch says a float
            closed.optimizer.zero_grad()
            loss = closed.loss(batch(step))
            loss.backward()
            return loss

        closed.optimizer.step(closure)
    assert_same_bits(whole(optimizer).bits, closed.bits())


@pytest.mark.feature("AMP overflow")
def test_gradient_scaler_with_overflow(optimizer):
    """Steps the scaler skips are not counted, and change nothing: in dense and sparse phases and at their edges."""
    run = Run.make(OPTIMIZERS[optimizer])
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0, growth_interval=1000)
    overflow = {3, 4, 6, 8, 13, 20, TOTAL - 1}
    while run.sparsifier.step < TOTAL:
        step = run.sparsifier.step
        run.optimizer.zero_grad()
        scale = torch.tensor(float("inf")) if step in overflow else torch.tensor(1.0)
        before = run.bits() if step in overflow else {}
        scaler.scale(run.loss(batch(step)) * scale).backward()
        entered = {name: p.detach().clone() for name, p in run.weights.items()}
        scaler.step(run.optimizer)
        scaler.update()
        if step in overflow:
            overflow.discard(step)
            assert run.sparsifier.step == step, "a skipped step is not counted"
            assert_same_bits(entered, {name: p.detach() for name, p in run.weights.items()})
            assert before.keys() == run.bits().keys()
        else:
            assert run.sparsifier.step == step + 1
        if run.sparsifier.phase.kind == "sparse":
            for name, mask in run.sparsifier.masks.items():
                assert not run.weights[name][~mask].any()
    run.check()
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


@pytest.mark.feature("torch.compile(fullgraph=True)")
@pytest.mark.parametrize("compile_first", [True, False], ids=["compile, attach", "attach, compile"])
def test_compiled_gives_the_same_bits(optimizer, compile_first):
    torch._dynamo.reset()
    frames: list = []

    def backend(graph, inputs):
        frames.append(graph)
        return graph.forward

    compiled = Run.make(
        OPTIMIZERS[optimizer],
        wrap=lambda m: torch.compile(m, fullgraph=True, backend=backend),
        wrap_first=compile_first,
    )
    for step in compiled.steps():
        compiled.train_step(step)
    assert_same_bits(whole(optimizer).bits, compiled.bits())
    assert len(frames) == 1, "phases change without compiling again"


@pytest.mark.feature("resume, same bits")
@pytest.mark.parametrize("stop", STOPS)
def test_resume_gives_the_same_bits(optimizer, stop):
    """Stopped inside dense and sparse phases and exactly between them; saved through torch.save and weights_only."""
    straight = whole(optimizer)
    saved = torch.load(io.BytesIO(straight.checkpoints[stop]), weights_only=True)
    resumed = Run.make(OPTIMIZERS[optimizer])
    resumed.sparsifier.load_state_dict(saved["sparsifier"])
    resumed.model.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    assert resumed.sparsifier.step == stop
    for step in resumed.steps(first=stop):
        resumed.train_step(step)
    assert_same_bits(straight.bits, resumed.bits())
    one, two = straight.result, resumed.sparsifier.finish()
    assert_same_bits(one.masks, two.masks)
    assert_same_bits(one.dense, two.dense)
    assert one.dense_step == two.dense_step
    assert straight.history == resumed.sparsifier.history


@pytest.mark.feature("EMA of weights")
def test_ema(optimizer):
    """An average follows along and does not disturb; masks make it as sparse as the model."""
    followed = Run.make(OPTIMIZERS[optimizer])
    ema = AveragedModel(followed.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in followed.steps():
        followed.train_step(step)
        ema.update_parameters(followed.model)
        ema(batch(step)[0])  # in training mode: a copy must not trigger the original's phases
    assert_same_bits(whole(optimizer).bits, followed.bits())
    averaged = dict(ema.module.named_parameters())
    masks = followed.sparsifier.masks
    assert any(averaged[name][~mask].any() for name, mask in masks.items()), "dense phases linger in the average"
    followed.sparsifier.apply_masks(ema)
    for name, mask in masks.items():
        assert not averaged[name][~mask].any()
        assert averaged[name][mask].any()


@pytest.mark.feature("deepcopy, pickle")
def test_copies_are_plain(optimizer):
    """Copies taken at any moment carry no hook that acts: they train on freely and leave the original alone."""
    copied = Run.make(OPTIMIZERS[optimizer])
    for step in copied.steps():
        if step % 2 == 0:
            file = io.BytesIO()
            torch.save(copied.model, file)
            file.seek(0)
            for twin in (copy.deepcopy(copied.model), torch.load(file, weights_only=False)):
                optimizer_of_twin = torch.optim.SGD(twin.parameters(), lr=0.1)
                twin(batch(step)[0]).square().sum().backward()
                optimizer_of_twin.step()
                assert twin.state_dict().keys() == copied.model.state_dict().keys()
                assert density(twin) > 0.4, "nothing masks the copy"
        copied.train_step(step)
    assert_same_bits(whole(optimizer).bits, copied.bits())


@pytest.mark.feature("changing param groups")
def test_param_groups_may_change(optimizer):
    if not _torch_takes_new_groups(OPTIMIZERS[optimizer]):
        with pytest.raises(KeyError, match="sum"):  # Adagrad of torch 2.11 makes its state in __init__ only
            _change_groups(optimizer)
        return
    _change_groups(optimizer)


def _torch_takes_new_groups(make: MakeOptimizer) -> bool:
    """Whether this torch's optimizer, without acdc, trains parameters that are added to it later."""
    early, late = (nn.Parameter(torch.ones(3, device=DEVICE)) for _ in range(2))
    optimizer = make([early])
    optimizer.add_param_group({"params": [late]})
    (early + late).sum().backward()
    try:
        optimizer.step()
    except KeyError:
        return False
    return True


def _change_groups(optimizer):
    torch.manual_seed(0)
    run = Run.make(lambda params: OPTIMIZERS[optimizer](_two_groups(params)))
    extra = nn.Parameter(torch.randn(8, 16, device=DEVICE))
    for step in run.steps():
        if step == STEPS_PER_EPOCH + 1:  # inside a sparse phase
            run.optimizer.add_param_group({"params": [extra], "lr": 1e-3})
        if step == STEPS_PER_EPOCH + 2:
            run.model.conv2.weight.requires_grad_(False)
        if step == 3 * STEPS_PER_EPOCH + 1:
            run.model.conv2.weight.requires_grad_(True)
        for group in run.optimizer.param_groups:
            group["lr"] *= 0.99
        run.optimizer.zero_grad()
        (run.loss(batch(step)) + extra.square().mean()).backward()
        run.optimizer.step()
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def _two_groups(params):
    params = list(params)
    return [{"params": params[:3]}, {"params": params[3:], "lr": 5e-3}]


@pytest.mark.feature("detach")
def test_detach_leaves_no_trace(optimizer):
    for stop in (2, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 2, 2 * STEPS_PER_EPOCH):
        run = Run.make(OPTIMIZERS[optimizer])
        for step in run.steps(last=stop):
            run.train_step(step)
        values = run.bits()
        run.sparsifier.detach()
        assert_same_bits(values, run.bits())
        assert not run.optimizer._optimizer_step_post_hooks
        assert not run.optimizer._optimizer_step_pre_hooks
        assert not any(m._forward_pre_hooks for m in run.model.modules())
        assert not any(p._post_accumulate_grad_hooks for p in run.model.parameters())
        assert run.sparsifier.masks == {}
        for step in range(stop, stop + 2):
            run.train_step(step)
        assert density(run.model) > 0.4, "nothing masks the model any more"
