"""What the sparsifier promises beyond the optimizer matrix: its surface, its trigger, its twin, its refusals."""

import copy
import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc import methods
from acdc.core.sparsifier import attached_to
from tests.conformance.harness import OPTIMIZERS, STEPS_PER_EPOCH, TOTAL, Net, Run, assert_same_bits, batch
from tests.warned import LATE_STARTS, SMALL_NETS, warned

SGD = OPTIMIZERS["SGD momentum, Nesterov, weight decay"]

pytestmark = SMALL_NETS


def train(run: Run, first: int = 0, last: int = TOTAL) -> Run:
    for step in run.steps(first, last):
        run.train_step(step)
    return run


def small(**knobs) -> tuple[Net, torch.optim.Optimizer, acdc.Sparsifier]:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = acdc.ACDC.paper(**{"sparsity": 0.9, "epochs": 4, **knobs})
    return model, optimizer, acdc.attach(model, optimizer, method, steps_per_epoch=2)


# The surface


def test_surface_through_a_run():
    model, optimizer, s = small()
    size = 8 * 2 * 9 + 8 * 8 * 9 + 32 * 16
    for step in range(8):
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        assert s.step == step + 1
        assert s.phase.kind == ("sparse" if step // 2 in (1, 3) else "dense")
        if s.phase.kind == "sparse":
            assert set(s.masks) == {"conv1.weight", "conv2.weight", "fc.weight"}
            assert all(mask.dtype == torch.bool for mask in s.masks.values())
            assert s.sparsity == pytest.approx(1 - (size - round(0.9 * size)) / size)
            assert s.layer_sparsity["fc.weight"] == (model.fc.weight == 0).double().mean()
        else:
            assert s.masks == {}
            assert s.sparsity < 0.89  # units that pruning left dead keep some zeros
    result = s.finish()
    assert result.dense_step == 6
    for name, state in (("sparse", result.sparse), ("dense", result.dense)):
        plain = Net()
        assert state is not None
        plain.load_state_dict(state)
        zeros = sum(int((p == 0).sum()) for p in plain.parameters() if p.ndim > 1)
        assert (zeros == round(0.9 * size)) == (name == "sparse")
    assert all(type(v) is torch.Tensor for v in result.sparse.values())
    s.detach()


def test_summary_counts_layers_phases_and_flops():
    run = train(Run.make(SGD, exclude=["conv1"]), last=6)
    summary = run.sparsifier.summary(batch(0)[0])
    assert [row.name for row in summary.layers] == ["conv2.weight", "fc.weight"]
    assert summary.sparsity == pytest.approx(run.sparsifier.sparsity)
    assert summary.dense_flops == 2 * (8 * 2 * 9 * 16 + 8 * 8 * 9 * 4 + 32 * 16)
    kept = {name: int(mask.sum()) for name, mask in run.sparsifier.masks.items()}
    assert summary.flops == 2 * (8 * 2 * 9 * 16 + kept["conv2.weight"] * 4 + kept["fc.weight"])
    text = str(summary)
    assert "conv1.weight: excluded" in text
    assert "step        4: compressed" in text
    assert run.sparsifier.summary().flops is None


def test_summary_names_what_flops_leave_out():
    class Fourier(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.mix = nn.Linear(4, 4), nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return torch.fft.fft(self.fc(x) @ self.mix).real

    model = Fourier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparsifier = acdc.attach(model, optimizer, acdc.ACDC.paper(sparsity=0.5, epochs=4), steps_per_epoch=2)
    said = str(sparsifier.summary(torch.zeros(1, 4)))
    assert "FLOPs per sample: at least 32 of 32 dense (1.00x)" in said
    assert "lower bound; of unknown layer type, counted as 0: mix (Fourier), fft_fft in Fourier" in said
    sparsifier.detach()


def test_two_runs_with_one_seed_give_the_same_bits():
    assert_same_bits(train(Run.make(SGD)).bits(), train(Run.make(SGD)).bits())


@pytest.mark.parametrize(
    "knobs",
    [
        {"pattern": acdc.NM(2, 4), "sparsity": None},
        {"pattern": acdc.Block(4, 4), "sparsity": 0.75},
        {"pattern": acdc.Channel(), "sparsity": 0.5},
        {"distribution": "uniform"},
        {"distribution": "erk"},
        {"distribution": {"conv*": 0.5}},
        {"first_and_last_dense": True},
    ],
    ids=str,
)
def test_patterns_and_distributions_train(knobs):
    model, optimizer, s = small(**knobs)
    for step in range(8):
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        optimizer.step()
        optimizer.zero_grad()
        for name, mask in s.masks.items():
            assert not model.get_parameter(name)[~mask].any()
    result = s.finish()
    expected = {"NM(n=2, m=4)": 0.5, "Block(rows=4, cols=4)": 0.75}.get(str(s.method.pattern))
    if expected:
        assert result.sparsity == pytest.approx(expected, abs=0.01)
    if "uniform" in knobs.values():
        assert all(abs(v - 0.9) < 0.01 for v in s.layer_sparsity.values())
    if "first_and_last_dense" in knobs:
        assert list(result.masks) == ["conv2.weight"]


# When a phase begins


def test_evaluation_never_begins_a_phase():
    run = train(Run.make(SGD), last=STEPS_PER_EPOCH)
    dense = run.bits()
    x = batch(0)[0]
    run.model.eval()
    run.model(x)  # gradients on, as careless evaluation does
    with torch.no_grad():
        run.model(x)
        run.model.train()
        run.model.norm.momentum = 0.0  # batch-norm recalibration runs in training mode
        run.model(x)
        run.model.norm.momentum = 0.1
    assert run.sparsifier.phase.kind == "dense"
    assert_same_bits({k: v for k, v in dense.items() if "num_batches" not in k},
                     {k: v for k, v in run.bits().items() if "num_batches" not in k})  # fmt: skip
    run.train_step(STEPS_PER_EPOCH)
    assert run.sparsifier.phase.kind == "sparse"


def test_layers_called_without_the_model_begin_a_phase():
    class Outer(nn.Module):  # as a Lightning module: the loop calls training_step, never forward
        def __init__(self):
            super().__init__()
            self.net = Net()

        def training_step(self, data):
            return F.cross_entropy(self.net(data[0]), data[1])

    outer = Outer()
    optimizer = SGD(outer.parameters())
    s = acdc.attach(outer, optimizer, acdc.ACDC.paper(sparsity=0.8, epochs=4), steps_per_epoch=2)
    for step in range(8):
        optimizer.zero_grad()
        loss = outer.training_step(batch(step))
        if step == 2:
            assert s.phase.kind == "sparse", "noticed before the forward pass reads a weight"
        loss.backward()
        optimizer.step()
    assert s.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def functional_loss(model: nn.Module, data) -> torch.Tensor:
    """A forward pass that calls no module."""
    p = dict(model.named_parameters())
    x = F.relu(F.conv2d(data[0], p["conv1.weight"], p["conv1.bias"]))
    x = F.relu(F.conv2d(x, p["conv2.weight"], p["conv2.bias"]))
    return F.cross_entropy(F.linear(x.flatten(1), p["fc.weight"], p["fc.bias"]), data[1])


@pytest.mark.parametrize("told", [False, True])
def test_a_loop_that_calls_no_module(told):
    """Masks are exact all the same; unless told, only the first gradient of a phase is taken at the dense weights."""
    run = Run.make(SGD)
    with warned() as messages:
        for step in run.steps():
            if told:
                run.sparsifier.begin_step()
            run.optimizer.zero_grad()
            functional_loss(run.model, batch(step)).backward()
            run.optimizer.step()
    assert len(messages) == (0 if told else 1)
    assert told or "begin_step()" in messages[0]


@LATE_STARTS
def test_training_in_eval_mode():
    run = Run.make(SGD)
    run.model.eval()
    train(run)
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def test_gradients_written_by_hand():
    run = Run.make(SGD)
    for step in run.steps():
        run.sparsifier.begin_step()
        grads = torch.autograd.grad(run.loss(batch(step)), list(run.model.parameters()))
        for p, g in zip(run.model.parameters(), grads, strict=True):
            p.grad = g
        run.optimizer.step()
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def test_infinite_gradients_of_pruned_weights_do_no_harm():
    run = train(Run.make(SGD), last=STEPS_PER_EPOCH + 1)
    mask = run.sparsifier.masks["fc.weight"]
    hook = run.model.fc.weight.register_hook(lambda g: torch.where(mask, g, float("nan")))
    run.train_step(STEPS_PER_EPOCH + 1)
    hook.remove()
    run.check()
    assert run.model.fc.weight.isfinite().all()


def test_inductor_agrees_with_eager():
    torch._dynamo.reset()
    eager = Run.make(SGD)
    compiled = Run.make(SGD, wrap=lambda m: torch.compile(m, fullgraph=True))
    losses = [(eager.train_step(s).item(), compiled.train_step(s).item()) for s in range(2 * STEPS_PER_EPOCH + 2)]
    assert [a for a, _ in losses] == pytest.approx([b for _, b in losses], rel=1e-3)
    compiled.check()
    assert compiled.sparsifier.phase.name == "decompressed"


def test_attach_to_the_compiled_model_and_names_stay_plain():
    torch._dynamo.reset()
    model = Net()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert isinstance(compiled, nn.Module)
    optimizer = SGD(compiled.parameters())
    s = acdc.attach(compiled, optimizer, acdc.ACDC.paper(sparsity=0.8, epochs=4), steps_per_epoch=2)
    for step in range(8):
        optimizer.zero_grad()
        F.cross_entropy(compiled(batch(step)[0]), batch(step)[1]).backward()
        optimizer.step()
    assert s.finish().sparse.keys() == Net().state_dict().keys()


def test_the_users_own_stance_survives():
    torch._dynamo.reset()
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.randn(1, 2))
    from torch._dynamo import eval_frame

    before = eval_frame._stance
    run = train(Run.make(SGD), last=STEPS_PER_EPOCH)
    assert eval_frame._stance.stance == "force_eager", "while a compression is due"
    run.train_step(STEPS_PER_EPOCH)
    assert eval_frame._stance == before
    one, two = train(Run.make(SGD), last=STEPS_PER_EPOCH), train(Run.make(SGD), last=STEPS_PER_EPOCH)
    one.train_step(STEPS_PER_EPOCH)
    assert eval_frame._stance.stance == "force_eager", "while the other's compression is due"
    two.sparsifier.detach()
    assert eval_frame._stance == before


def test_momentum_reset_needs_no_gradients():
    """The published code skips parameters whose gradient is None, so on today's torch its reset does nothing."""
    run = train(Run.make(SGD), last=2 * STEPS_PER_EPOCH)
    run.optimizer.zero_grad(set_to_none=True)
    assert any(s["momentum_buffer"].any() for s in run.optimizer.state.values())
    run.sparsifier.begin_step()
    assert run.sparsifier.phase.name == "decompressed"
    assert not any(s["momentum_buffer"].any() for s in run.optimizer.state.values())


@pytest.mark.parametrize("reset", ["all", "nothing"])
def test_other_resets(reset):
    run = Run.make(OPTIMIZERS["Adam"], reset=reset)
    train(run, last=2 * STEPS_PER_EPOCH)
    before = run.bits()
    run.sparsifier.begin_step()
    if reset == "all":
        assert not run.optimizer.state
    else:
        assert_same_bits(before, run.bits())
    train(run, first=2 * STEPS_PER_EPOCH)


def test_set_step_moves_the_schedule():
    run = Run.make(SGD)
    run.sparsifier.set_step(5 * STEPS_PER_EPOCH)
    run.train_step(0)
    assert run.sparsifier.phase.final
    assert run.sparsifier.step == 5 * STEPS_PER_EPOCH + 1
    run.check()


def test_nan_weights_stop_the_compression_and_change_nothing():
    run = train(Run.make(SGD), last=STEPS_PER_EPOCH)
    with torch.no_grad():
        run.model.conv2.weight[0, 0, 0, 0] = float("nan")
    before = run.bits()
    with pytest.raises(ValueError, match=r"conv2\.weight \(1 of 576\)"):
        run.sparsifier.begin_step()
    after = run.bits()
    assert all(torch.equal(before[k].nan_to_num(), after[k].nan_to_num()) for k in before)
    assert run.sparsifier.masks == {}


def test_gradients_changed_after_backward_are_masked_again():
    """Noise, centralisation or a lossy communication hook may write to pruned entries."""
    run = Run.make(SGD)
    for step in run.steps():
        run.optimizer.zero_grad()
        run.loss(batch(step)).backward()
        for p in run.model.parameters():
            assert p.grad is not None
            p.grad.add_(0.1 * torch.randn_like(p))
        run.optimizer.step()
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def test_gradients_changed_inside_a_closure():
    run = Run.make(SGD)
    for step in run.steps():

        def closure(step=step) -> Any:  # the loss: torch says a float
            run.optimizer.zero_grad()
            loss = run.loss(batch(step))
            loss.backward()
            for p in run.model.parameters():
                assert p.grad is not None
                p.grad.add_(0.1)
            return loss

        run.optimizer.step(closure)
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def test_a_refused_compression_is_still_due():
    run = train(Run.make(SGD), last=5 * STEPS_PER_EPOCH)
    good = run.model.fc.weight.detach().clone()
    with torch.no_grad():
        run.model.fc.weight[0, 0] = float("inf")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"fc\.weight"):
            run.train_step(5 * STEPS_PER_EPOCH)
    assert run.sparsifier.context.twin is None, "a model that was refused is not kept"
    with torch.no_grad():
        run.model.fc.weight.copy_(good)
    train(run, first=5 * STEPS_PER_EPOCH)
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


@LATE_STARTS
def test_backward_during_evaluation_and_a_checkpoint_there():
    """Backward reveals a training step, so the masks are taken; the weights follow when training goes on."""
    run = train(Run.make(SGD), last=5 * STEPS_PER_EPOCH)
    run.model.eval()
    run.loss(batch(0)).backward()
    run.model.train()
    saved = run.checkpoint()

    resumed = Run.make(SGD)
    resumed.model.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.sparsifier.load_state_dict(saved["sparsifier"])
    train(run, first=5 * STEPS_PER_EPOCH)
    train(resumed, first=5 * STEPS_PER_EPOCH)
    assert_same_bits(run.bits(), resumed.bits())


def test_a_schedule_that_starts_compressed():
    schedule = acdc.Schedule.from_phases([("sparse", "4st"), ("dense", "4st"), ("sparse", "4st")])
    run = Run.make(SGD, schedule=schedule, epochs=None)
    assert run.sparsifier.phase.name == "untrained"
    assert run.sparsifier.sparsity == 0, "attaching changes nothing"
    before = run.checkpoint()
    for step in range(12):
        run.train_step(step)
    resumed = Run.make(SGD, schedule=schedule, epochs=None)
    resumed.sparsifier.load_state_dict(before["sparsifier"])
    for step in range(12):
        resumed.train_step(step)
    assert_same_bits(run.bits(), resumed.bits())
    assert run.sparsifier.finish().dense_step == 8


# The twin


def test_twin_is_the_end_of_the_last_dense_phase():
    run = train(Run.make(SGD), last=5 * STEPS_PER_EPOCH)
    dense = copy.deepcopy(run.model.state_dict())
    train(run, first=5 * STEPS_PER_EPOCH)
    assert_same_bits(run.sparsifier.finish().dense, dense)


def test_without_a_twin_the_sparse_model_is_the_same():
    with_twin, without = (train(Run.make(SGD, twin=twin)).sparsifier for twin in ("last", "none"))
    kept, alone = with_twin.finish(), without.finish()
    assert_same_bits(alone.sparse, kept.sparse)
    assert (alone.dense, alone.dense_step, without.context.twin, without.state_dict()["twin"]) == (None,) * 4
    with pytest.raises(ValueError, match=r'no dense twin to fine-tune: .* it has no dense phase, or twin="none"'):
        acdc.finetune_dense(alone, nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))


def test_best_twin_by_reported_metric_ignores_sparse_phases():
    run = Run.make(SGD, twin="best")
    metrics = {0: 0.1, 1: 0.9, 2: 0.7, 3: 0.95, 4: 0.3, 5: 0.99}  # epochs 1, 3, 5 are compressed
    kept = {}
    for step in run.steps():
        run.train_step(step)
        epoch, last = divmod(step, STEPS_PER_EPOCH)
        if last == STEPS_PER_EPOCH - 1:
            run.sparsifier.report_metric(metrics[epoch])
            kept[epoch] = copy.deepcopy(run.model.state_dict())
    result = run.sparsifier.finish()
    assert result.dense_step == 3 * STEPS_PER_EPOCH
    assert_same_bits(result.dense, kept[2])


def test_best_twin_without_reports_falls_back_to_the_last_and_says_so():
    """As the final phase begins, which is when the twin is chosen: reports of compressed models do not count."""
    run = train(Run.make(SGD, twin="best"), last=4 * STEPS_PER_EPOCH)
    run.sparsifier.report_metric(0.5)
    train(run, first=4 * STEPS_PER_EPOCH, last=5 * STEPS_PER_EPOCH)
    with warned() as messages:
        train(run, first=5 * STEPS_PER_EPOCH)
    assert run.sparsifier.finish().dense_step == 5 * STEPS_PER_EPOCH
    assert messages == [
        'twin="best": no metric was reported in a dense phase, so the twin is the last dense model, from step '
        f"{5 * STEPS_PER_EPOCH}; call sparsifier.report_metric(accuracy) after each epoch of a dense phase, or set "
        'twin="last"'
    ]
    run = train(Run.make(SGD, twin="best"), last=STEPS_PER_EPOCH)
    run.sparsifier.report_metric(0.5)
    train(run, first=STEPS_PER_EPOCH)  # without a warning, which would be an error


def test_a_jump_over_the_last_dense_phase_keeps_no_pruned_twin():
    run = train(Run.make(SGD), last=STEPS_PER_EPOCH + 1)
    run.sparsifier.set_step(5 * STEPS_PER_EPOCH)
    run.train_step(0)
    assert run.sparsifier.phase.final
    assert run.sparsifier.context.twin is None


def test_finetune_dense_continues_the_twin():
    """Same bits as a run that trained on densely from the twin's step: weights, momentum, learning rate."""
    run = Run.make(SGD)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, TOTAL)
    run.sparsifier.context.scheduler = scheduler

    def step_once(step: int) -> None:
        run.train_step(step)
        scheduler.step()

    for step in range(5 * STEPS_PER_EPOCH):
        step_once(step)
    twin = copy.deepcopy((run.model, run.optimizer.state_dict(), scheduler.state_dict()))
    for step in range(5 * STEPS_PER_EPOCH, TOTAL):
        step_once(step)
    result = run.sparsifier.finish()

    with pytest.raises(RuntimeError, match=r"detach\(\) first"):
        acdc.finetune_dense(result, run.model, run.optimizer, scheduler)
    run.sparsifier.detach()
    steps = acdc.finetune_dense(result, run.model, run.optimizer, scheduler)
    assert steps == range(5 * STEPS_PER_EPOCH, TOTAL)
    for step in steps:
        step_once(step)

    model = twin[0]
    optimizer = SGD(model.parameters())
    other = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, TOTAL)
    optimizer.load_state_dict(twin[1])
    other.load_state_dict(twin[2])
    for step in steps:
        optimizer.zero_grad()
        F.cross_entropy(model(batch(step)[0]), batch(step)[1]).backward()
        optimizer.step()
        other.step()
    assert_same_bits(model.state_dict(), run.model.state_dict())
    assert other.get_last_lr() == scheduler.get_last_lr()


def test_finetune_dense_refuses_a_scheduler_it_did_not_keep():
    run = train(Run.make(SGD))
    result = run.sparsifier.finish()
    run.sparsifier.detach()
    scheduler = torch.optim.lr_scheduler.StepLR(run.optimizer, 1)
    with pytest.raises(ValueError, match=r"attach\(\.\.\., scheduler=scheduler\)"):
        acdc.finetune_dense(result, run.model, run.optimizer, scheduler)


# Refusals


@pytest.mark.parametrize("stop", [0, 2, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 2, 5 * STEPS_PER_EPOCH, TOTAL - 1])
def test_finish_before_the_end(stop):
    run = train(Run.make(SGD), last=stop)
    with pytest.raises(RuntimeError, match=rf"finish\(\) at step {stop} of {TOTAL}"):
        run.sparsifier.finish()


def test_finish_early_on_request():
    run = train(Run.make(SGD), last=TOTAL - 2)
    assert run.sparsifier.finish(early=True).sparsity == pytest.approx(0.8, abs=1e-3)


def test_finish_forgives_a_few_skipped_steps_of_a_long_run():
    schedule = acdc.Schedule.from_phases([("dense", "4st"), ("sparse", "196st")])
    run = Run.make(SGD, schedule=schedule, epochs=None)
    for step in range(198):
        run.train_step(step)
    with pytest.warns(acdc.SparsityWarning, match="2 steps are missing"):
        run.sparsifier.finish()


@pytest.mark.parametrize("verb", ["finish", "begin_step", "state_dict", "set_step", "load_state_dict"])
def test_detached_is_done(verb):
    run = train(Run.make(SGD))
    run.sparsifier.detach()
    arguments = {"set_step": (2,), "load_state_dict": ({},)}.get(verb, ())
    with pytest.raises(RuntimeError, match=rf"{verb}\(\) after detach\(\)"):
        getattr(run.sparsifier, verb)(*arguments)


def test_a_sparsifier_is_not_copied():
    _, _, s = small()
    with pytest.raises(TypeError, match=r"state_dict\(\) instead"):
        copy.deepcopy(s)


def test_step_is_read_only():
    _, _, s = small()
    with pytest.raises(AttributeError):
        s.step = 3  # pyright: ignore[reportAttributeAccessIssue]


def test_what_is_dropped_is_freed():
    import gc
    import weakref

    from torch._dynamo import eval_frame

    run = train(Run.make(SGD), last=STEPS_PER_EPOCH)  # a compression is due: compiled code is held back
    model, sparsifier = weakref.ref(run.model), weakref.ref(run.sparsifier)
    assert eval_frame._stance.stance == "force_eager"
    del run
    gc.collect()
    assert model() is None
    assert sparsifier() is None
    assert eval_frame._stance.stance == "default"


def test_stepping_back_leaves_no_hooks_in_a_dense_phase():
    run = train(Run.make(SGD), last=STEPS_PER_EPOCH)
    run.sparsifier.set_step(1)
    assert not any(p._post_accumulate_grad_hooks for p in run.model.parameters())
    assert not any(m._forward_pre_hooks for m in run.model.modules())


def test_methods_can_be_replaced_like_any_dataclass():
    import dataclasses

    method = dataclasses.replace(acdc.ACDC(sparsity=0.9, epochs=10), sparsity=0.8)
    assert method == acdc.ACDC(sparsity=0.8, epochs=10)


def test_small_layers_keep_a_weight():
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 1))
    for distribution in ("uniform", "erk", {"*": 0.99}):
        method = acdc.ACDC(sparsity=0.99, epochs=4, distribution=distribution)
        assert min(budget.keep for budget in method.budgets(method.layers(model))) >= 1


@pytest.mark.parametrize("again", ["model", "optimizer"])
def test_attaching_twice(again):
    model, optimizer, s = small()
    other = Net()
    other_optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    pair = (model, torch.optim.SGD(model.parameters(), lr=0.1)) if again == "model" else (model, optimizer)
    with pytest.raises(RuntimeError, match=r"already has a sparsifier; call \.detach\(\)"):
        acdc.attach(*pair, acdc.ACDC(sparsity=0.9, epochs=4), steps_per_epoch=2)
    s.detach()
    assert attached_to(model) is None
    acdc.attach(*pair, acdc.ACDC(sparsity=0.9, epochs=4), steps_per_epoch=2)
    acdc.attach(other, other_optimizer, acdc.ACDC(sparsity=0.9, epochs=4), steps_per_epoch=2)


def test_a_refused_attach_leaves_no_trace():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"steps_per_epoch=None.*write steps_per_epoch=len\(loader\)"):
        acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, epochs=4))
    assert attached_to(model) is None
    assert not optimizer._optimizer_step_post_hooks


def test_optimizer_of_another_model():
    with pytest.raises(ValueError, match=r"holds none of the model's 3 prunable weights; build it from the same model"):
        acdc.attach(
            Net(), torch.optim.SGD(Net().parameters(), lr=0.1), acdc.ACDC(sparsity=0.9, epochs=4), steps_per_epoch=2
        )


def test_optimizer_that_misses_a_layer():
    model = Net()
    optimizer = torch.optim.SGD([p for n, p in model.named_parameters() if "fc" not in n], lr=0.1)
    with pytest.raises(ValueError, match=r"does not hold fc\.weight.*exclude=\['fc\.weight'"):
        acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, epochs=4), steps_per_epoch=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, None), "expected a torch.nn.Module"),
        ((Net(), None, None), "expected a torch.optim.Optimizer"),
        ((Net(), torch.optim.SGD(Net().parameters(), lr=0.1), acdc.ACDC), r"expected a method such as acdc.ACDC\("),
        (
            (Net(), torch.optim.SGD(Net().parameters(), lr=0.1), 0.9),
            r"method: expected a method such as .*, received float",
        ),
    ],
)
def test_wrong_types(arguments, message):
    with pytest.raises(TypeError, match=message):
        acdc.attach(*arguments, steps_per_epoch=2)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"sparsity": 90}, r"sparsity=90: .* for 90 % write sparsity=0\.9"),
        ({"sparsity": 1.0}, "at least 0 and below 1"),
        ({"sparsity": -0.1}, "at least 0 and below 1"),
        ({"sparsity": None}, r"sparsity=None: expected the fraction of zeros; write ACDC\(sparsity=0\.9, epochs=100\)"),
        ({"epochs": 0}, "epochs=0: expected a whole number, 1 or more"),
        ({"epochs": None}, "epochs=None: ACDC needs either epochs or a schedule, but received neither"),
        ({"schedule": acdc.Schedule.for_epochs(5)}, "but received both; write"),
        ({"pattern": acdc.NM(2, 4)}, r"NM\(n=2, m=4\) fixes it at 0\.5; omit sparsity"),
        ({"pattern": acdc.NM(2, 4), "sparsity": None, "distribution": "erk"}, "omit distribution"),
        ({"distribution": "layerwise"}, "expected one of 'global', 'uniform', 'erk'"),
        ({"reset": "yes"}, "reset='yes': expected one of"),
        ({"twin": "first"}, "twin='first': expected one of"),
        ({"cycles": -1}, "cycles=-1: expected a whole number, 0 or more"),
    ],
)
def test_bad_methods(knobs, message):
    with pytest.raises(ValueError, match=message):
        acdc.ACDC(**{"sparsity": 0.9, "epochs": 4, **knobs})


def test_pattern_by_a_name():
    with pytest.raises(TypeError, match=r"pattern='2:4': expected .*acdc\.NM\(2, 4\)"):
        acdc.ACDC(pattern="2:4", epochs=4)  # pyright: ignore[reportArgumentType]


def test_a_layer_pruned_whole_is_named():
    run = train(Run.make(SGD), last=STEPS_PER_EPOCH)
    with torch.no_grad():
        run.model.fc.weight.mul_(1e-6)
    with pytest.warns(acdc.SparsityWarning, match=r"all weights of fc\.weight are pruned"):
        run.train_step(STEPS_PER_EPOCH)


def test_reporting_to_a_method_that_does_not_listen():
    run = Run.make(SGD)
    with pytest.warns(acdc.SparsityWarning, match='set twin="best"'):
        run.sparsifier.report_metric(0.5)
    assert run.sparsifier.context.twin is None


def test_errors_do_not_print_the_data():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = [torch.randn(8, 8)] * 9
    with pytest.raises(TypeError, match=r"steps_per_epoch=<list>: .*len\(loader\)"):
        acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, epochs=4), steps_per_epoch=loader)


def test_pattern_that_fits_no_layer():
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3))
    with pytest.raises(ValueError, match=r"fits none of the model's 2 prunable layers .*3 input channels"):
        acdc.attach(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            acdc.ACDC(pattern=acdc.NM(2, 4), epochs=4),
            steps_per_epoch=2,
        )


def test_report_and_set_step_refuse_nonsense():
    _, _, s = small()
    with pytest.raises(ValueError, match="negate a loss"):
        s.report_metric(float("nan"))
    with pytest.raises(ValueError, match="0 or more"):
        s.set_step(-1)


class Wider(Net):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(32, 17)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda sd: {}, "not a sparsifier's state dict"),
        (lambda sd: {**sd, "version": 7}, "version 7"),
        (lambda sd: {**sd, "method": "rigl"}, "belongs to method 'rigl', but 'acdc' is attached"),
        (
            lambda sd: {**sd, "layers": {**sd["layers"], "fc.weight": [17, 32]}},
            r"another model: 1 prunable layers differ, first 'fc\.weight': shape \[17, 32\] there, \[16, 32\] here",
        ),
        (lambda sd: {**sd, "steps_per_epoch": 5}, "steps_per_epoch=5, but the attached method has steps_per_epoch=4"),
        (lambda sd: {**sd, "config": {**sd["config"], "sparsity": 0.5}}, "saved with sparsity=0.5"),
        (
            lambda sd: {**sd, "config": {**sd["config"], "schedule": acdc.Schedule.for_epochs(9).to_dict()}},
            r"schedule=<\d+ phases, 9ep>, but the attached method has schedule=<6 phases, 6ep>",
        ),
    ],
)
def test_state_dicts_of_something_else(change, message):
    run = train(Run.make(SGD), last=6)
    before = run.sparsifier.state_dict()
    with pytest.raises(ValueError, match=message):
        run.sparsifier.load_state_dict(change(run.sparsifier.state_dict()))
    after = run.sparsifier.state_dict()
    assert before["step"] == after["step"]
    assert_same_bits(before["masks"], after["masks"])
    train(run, first=6)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("config", 3, "sparsifier.config = 3: expected a table"),
        ("config", {"sparsity": torch.ones(2)}, "(float32): expected plain data"),
        ("step", "x", 'sparsifier.step = "x": expected a whole number'),
        ("step", -1, "sparsifier.step: expected 0 or more, received -1"),
        ("phase", 99, "sparsifier.phase: expected -1 to 3, received 99"),
        ("masks", {"conv1.weight": torch.zeros(18, dtype=torch.uint8)}, "sparsifier.masks.conv2.weight is missing"),
        ("masks", {"other": torch.zeros(1)}, "sparsifier.masks.conv1.weight is missing"),
        ("masks", [], "sparsifier.masks = […]: expected a table"),
        ("history", [{"step": 1}], "sparsifier.history[0].phase is missing"),
        ("twin", {"step": 1}, "sparsifier.twin.model is missing"),
        ("twin", {"step": 1, "model": {}, "optimizer": {}, "scheduler": None}, "sparsifier.twin.model."),
        ("memory", 5, "sparsifier.memory = 5: expected a table"),
        ("shadow", {"fc.weight": torch.ones(3)}, "sparsifier.shadow."),
        ("kept_sparse", [{}], "sparsifier.kept_sparse: expected weights and masks"),
    ],
)
def test_garbage_inside_a_state_dict_is_refused_by_its_part(key, value, message):
    _, _, s = small()
    state = {**s.state_dict(), key: value}
    with pytest.raises(ValueError, match=re.escape(message)):
        s.load_state_dict(state)
    s.load_state_dict(s.state_dict())


@pytest.mark.parametrize("wrong", [torch.ones(2), torch.ones(32, 16, dtype=torch.int64), "x"])
@pytest.mark.parametrize(("method", "key"), [("rigl", "gradients"), ("snfs", "momentum")])
def test_garbage_in_what_a_method_remembers_is_refused(method, key, wrong):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    s = acdc.attach(model, optimizer, methods.build(method, sparsity=0.9, epochs=4, every="1st"), steps_per_epoch=2)
    with pytest.raises(ValueError, match=rf"sparsifier\.memory\.{key}\.fc\.weight = .*: expected"):
        s.load_state_dict({**s.state_dict(), "memory": {key: {"fc.weight": wrong}}})


def test_a_state_dict_without_a_knob_is_refused():
    _, _, s = small()
    state = s.state_dict()
    del state["config"]["revive"]
    with pytest.raises(ValueError, match=r"sparsifier\.config: revive is missing"):
        s.load_state_dict(state)


def test_apply_masks_to_another_kind_of_model():
    run = train(Run.make(SGD), last=6)
    with pytest.raises(ValueError, match=r"has no conv1\.weight"):
        run.sparsifier.apply_masks(nn.Linear(2, 2))


def test_a_gradient_in_the_place_of_one_that_was_freed_is_masked():
    """Python gives the next object a freed one's id: being masked is a matter of the object itself."""
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 20, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", "40st")])
    s = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.8, schedule=schedule))
    for step in range(41):
        s.begin_step()
        model.weight.grad = None
        gradient = torch.randn(20, 20)
        if step % 2:
            gradient.mul_(1.0)
        model.weight.grad = gradient
        del gradient
        optimizer.step()
        for mask in s.masks.values():
            assert not model.weight[~mask].any()


def test_masks_of_some_layers_come_after_masks_of_all():
    model, _, s = small()
    some = {"fc.weight": torch.ones_like(model.fc.weight, dtype=torch.bool)}
    for _ in range(2):
        with pytest.raises(ValueError, match=r"no mask for conv1\.weight, conv2\.weight; the first call"):
            s.context.set_masks(some)
    with torch.no_grad():
        model.conv1.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"conv1\.weight"):
        s.context.compress()
    with pytest.raises(ValueError, match="no mask for"):  # a refused compression took none
        s.context.set_masks(some)
    s.context.set_masks({w.name: torch.zeros_like(w.param, dtype=torch.bool) for w in s.layers.weights})
    s.context.set_masks(some)
    assert s.layer_sparsity == {"conv1.weight": 1.0, "conv2.weight": 1.0, "fc.weight": 1.0}
    assert s.masks["fc.weight"].all()


@pytest.mark.parametrize(
    ("method", "key"), [("sparse_vd", "log_variance"), ("sparse_vd", "first"), ("top_kast", "share")]
)
def test_a_state_dict_without_what_weights_are_computed_from_is_refused(method, key):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    built = methods.build(method, epochs=4, **({"samples": 100} if method == "sparse_vd" else {"sparsity": 0.9}))
    s = acdc.attach(model, optimizer, built, steps_per_epoch=2)
    s.begin_step()
    state = s.state_dict()
    del state["memory"][key]
    with pytest.raises(ValueError, match=rf"sparsifier\.memory\.{key}\.conv1\.weight is missing"):
        s.load_state_dict(state)
