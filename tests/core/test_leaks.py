"""Pruned weights that move are noticed after the first step that moves them, with the reason and what to do."""

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from acdc.core.guards import LeakCheck, leaks
from acdc.sparsity.masks import from_bool
from acdc.sparsity.prunable import find_prunable
from tests.conformance.harness import OPTIMIZERS, STEPS_PER_EPOCH, TOTAL, Run, batch
from tests.warned import SMALL_NETS

SGD = OPTIMIZERS["SGD momentum, Nesterov, weight decay"]

pytestmark = SMALL_NETS
FIRST = STEPS_PER_EPOCH  # the first step of the first compressed phase


def train(run: Run, first: int, last: int) -> Run:
    for step in range(first, last):
        run.train_step(step)
    return run


# Gradients


def through_data(grad: Tensor) -> None:
    grad.data.add_(0.01)


def through_numpy(grad: Tensor) -> None:
    array = grad.numpy()
    array += 0.01


def step_with_changed_gradients(run: Run, step: int, change: Callable[[Tensor], None], *, told: bool = False) -> None:
    run.optimizer.zero_grad()
    run.loss(batch(step)).backward()
    for param in run.model.parameters():
        assert param.grad is not None
        change(param.grad)
    if told:
        run.sparsifier.mask_gradients()
    run.optimizer.step()


@pytest.mark.parametrize("optimizer", ["SGD", "SGD momentum, Nesterov, weight decay", "AdamW", "Adam fused"])
@pytest.mark.parametrize("change", [through_data, through_numpy])
def test_gradients_changed_unseen_stop_the_first_compressed_step(change: Callable, optimizer: str) -> None:
    run = Run.make(OPTIMIZERS[optimizer])
    for step in range(FIRST):
        step_with_changed_gradients(run, step, change)
    with pytest.raises(RuntimeError, match=rf"^step {FIRST}: pruned weights of conv1\.weight.* moved\.") as error:
        step_with_changed_gradients(run, FIRST, change)
    assert "Their gradients are not 0" in str(error.value)
    assert "sparsifier.mask_gradients() after the change" in str(error.value)


@pytest.mark.parametrize("change", [through_data, through_numpy])
def test_gradients_masked_after_an_unseen_change_are_zeros(change: Callable) -> None:
    run = Run.make(SGD)
    for step in run.steps():
        step_with_changed_gradients(run, step, change, told=True)
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


def test_gradients_that_diverge_are_not_reported_as_changed() -> None:
    """On a GPU the product of an infinite gradient and a factor 0 is NaN; the weights that get it are NaN as well."""
    run = train(Run.make(SGD), 0, FIRST)

    def make_nan(grad: Tensor) -> None:
        grad.data.fill_(float("nan"))

    step_with_changed_gradients(run, FIRST, make_nan)
    assert run.model.fc.weight.isnan().all()


# Optimizer state


@pytest.mark.parametrize("optimizer", ["SGD foreach", "Adam", "AdamW fused", "RMSprop"])
def test_momentum_of_a_dense_phase_is_noticed_after_the_step_that_it_moved(optimizer: str) -> None:
    run = train(Run.make(OPTIMIZERS[optimizer]), 0, FIRST)
    dense = copy.deepcopy(run.optimizer.state_dict())
    train(run, FIRST, FIRST + 2)
    run.optimizer.load_state_dict(dense)
    with pytest.raises(RuntimeError, match=rf"^step {FIRST + 2}: .* moved\. Their optimizer state is not 0"):
        run.train_step(FIRST + 2)


def test_all_of_a_dense_checkpoint_with_the_sparsifier_of_a_compressed_phase() -> None:
    run = train(Run.make(SGD), 0, FIRST)
    dense = run.checkpoint()
    train(run, FIRST, FIRST + 2)
    compressed = run.checkpoint()
    again = Run.make(SGD)
    again.model.load_state_dict(dense["model"])
    again.optimizer.load_state_dict(dense["optimizer"])
    again.sparsifier.load_state_dict(compressed["sparsifier"])
    with pytest.raises(RuntimeError, match="Load model, optimizer and sparsifier from one checkpoint"):
        again.train_step(FIRST + 2)


# Weights


@pytest.mark.parametrize(
    ("optimizer", "cause"),
    [
        ("SGD", r"100% of all pruned weights are not 0\. Most likely the model holds a checkpoint from a dense phase"),
        ("SGD foreach", r"Their optimizer state .* or the model's weights were"),  # weight decay goes into momentum
    ],
)
def test_a_dense_model_loaded_in_a_compressed_phase_is_noticed(optimizer: str, cause: str) -> None:
    run = train(Run.make(OPTIMIZERS[optimizer]), 0, FIRST)
    dense = copy.deepcopy(run.model.state_dict())
    run.sparsifier.begin_step()
    run.model.load_state_dict(dense)
    with pytest.raises(RuntimeError, match=rf"moved\. {cause}"):
        run.train_step(FIRST)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("sparsity", [0.5, 0.9])
@pytest.mark.parametrize("epoch", [0, 2, 4])
def test_finish_recognises_a_dense_checkpoint(epoch: int, sparsity: float, optimizer: str) -> None:
    """As Hugging Face's load_best_model_at_end loads it. Pruning it by the masks gives a worse model that passes."""
    run = train(Run.make(OPTIMIZERS[optimizer], sparsity=sparsity), 0, (epoch + 1) * STEPS_PER_EPOCH)
    assert run.sparsifier.phase.kind == "dense"
    best = copy.deepcopy(run.model.state_dict())
    train(run, (epoch + 1) * STEPS_PER_EPOCH, TOTAL)
    run.model.load_state_dict(best)
    with pytest.raises(RuntimeError, match="the model holds a checkpoint from a dense phase") as error:
        run.sparsifier.finish()
    assert "load_best_model_at_end=False" in str(error.value)
    assert "Only if it is an average, call sparsifier.apply_masks(model)" in str(error.value)


@pytest.mark.parametrize("layers", [["conv2"], ["fc", "conv2"]])
def test_finish_advises_masks_where_some_weights_were_written(layers: list[str]) -> None:
    run = train(Run.make(SGD), 0, TOTAL)
    with torch.no_grad():
        for layer in layers:
            run.model.get_parameter(f"{layer}.weight").view(-1)[:200].add_(0.1)
    with pytest.raises(RuntimeError, match=r"an average of its weights .*apply_masks\(model\) first") as error:
        run.sparsifier.finish()
    assert "dense phase" not in str(error.value)
    run.sparsifier.apply_masks(run.model)
    assert run.sparsifier.finish().sparsity == pytest.approx(0.8, abs=1e-3)


# When and how it looks


def linear() -> tuple[nn.Module, LeakCheck, dict[str, Tensor]]:
    model = nn.Linear(3, 2)
    weights = {weight.name: weight for weight in find_prunable(model).weights}
    masks = {"weight": from_bool(torch.tensor([[True, False, True], [False, True, False]]))}
    return model, LeakCheck(weights, torch.optim.SGD(model.parameters(), lr=0.1)), masks


def test_it_looks_after_the_first_step_and_then_ever_more_rarely() -> None:
    _, check, masks = linear()
    looks = []
    for step in range(1, 3100):
        try:
            check.after_step(masks, step, last=False)
        except RuntimeError:
            looks.append(step)
    assert looks == [1, 8, 64, *range(512, 3100, 512)]
    check.restart()
    with pytest.raises(RuntimeError):
        check.after_step(masks, 3101, last=False)


def test_a_capture_of_a_cuda_graph_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look reads its outcome on the host, which a capture forbids; replays run no hooks."""
    _, check, _ = linear()
    on_gpu: Any = {"weight": SimpleNamespace(is_cuda=True)}  # nothing else of it may be asked for
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    check.after_step(on_gpu, 0, last=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    check.restart()
    with pytest.raises(TypeError, match="SimpleNamespace"):
        check.after_step(on_gpu, 1, last=False)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_only_what_is_pruned_and_not_zero_leaks(dtype: torch.dtype, layout: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, 2, 2, generator=generator).to(dtype).to(memory_format=layout)
    mask = from_bool(torch.rand(weight.shape, generator=generator) < 0.3)
    zeroed = torch.where(mask == 0, -0.0, weight)
    one = zeroed.clone()
    one[(mask == 0).nonzero()[-1].unbind()] = torch.finfo(dtype).tiny
    empty = torch.zeros(0, 3, dtype=dtype)
    masks = dict.fromkeys(("whole", "zeroed", "one"), mask) | {"empty": from_bool(torch.ones(0, 3) > 0)}
    assert leaks({"zeroed": zeroed, "whole": weight, "empty": empty, "one": one}, masks) == ["whole", "one"]
    assert leaks({"empty": empty}, masks) == []
    assert leaks({}, masks) == []


def test_a_leak_within_a_phase_is_noticed_at_its_last_step() -> None:
    run = train(Run.make(SGD), 0, FIRST + 1)
    last = 2 * STEPS_PER_EPOCH - 1
    for step in range(FIRST + 1, last):
        step_with_changed_gradients(run, step, through_data)
    with pytest.raises(RuntimeError, match=rf"^step {last}: pruned weights of .* moved\. Their gradients are not 0"):
        step_with_changed_gradients(run, last, through_data)


def test_finish_tells_gradients_from_a_dense_checkpoint() -> None:
    run = train(Run.make(SGD), 0, TOTAL - 1)
    step_with_changed_gradients(run, TOTAL - 1, through_data)
    with pytest.raises(RuntimeError, match=r"^finish\(\): pruned weights of .* are not 0\. Their gradients are not 0"):
        run.sparsifier.finish()
