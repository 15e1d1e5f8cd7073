"""acdc.recalibrate: batch norm's statistics over the data one gives it, in any loop."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import acdc
from acdc.errors import ArgumentError, ArgumentTypeError

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)) * 2 + 1
BATCHES = X.split(10)


def new_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3, momentum=0.9), nn.Linear(3, 2), nn.BatchNorm1d(2))


def states(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def count_zeros(model: nn.Module) -> int:
    return sum(int(torch.eq(param, 0).sum()) for param in model.parameters())


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = new_model()

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return self.inner(x * scale)


@pytest.mark.parametrize("pack", [lambda x: x, lambda x: (x, x.sum(1)), lambda x: [x, "a label"]])
def test_statistics_are_those_of_all_batches_without_dropout(pack):
    model = new_model()
    acdc.recalibrate(model, (pack(x) for x in BATCHES))
    first = model[1]
    torch.testing.assert_close(first.running_mean, X.mean(0))
    torch.testing.assert_close(first.running_var, torch.stack([x.var(0) for x in BATCHES]).mean(0))
    assert (first.momentum, model[3].num_batches_tracked) == (0.9, 4)


def test_mappings_are_arguments_and_forward_takes_what_else_there_is():
    plain, mapped, told = new_model(), Keywords(), new_model()
    acdc.recalibrate(plain, BATCHES)
    acdc.recalibrate(mapped, [{"x": x / 2, "scale": 2.0} for x in BATCHES])
    acdc.recalibrate(told, range(4), forward=lambda index: told(BATCHES[index]))
    for other in (mapped.inner, told):
        torch.testing.assert_close(states(other), states(plain), rtol=0, atol=0)


def test_modes_and_weights_stay_as_they_are():
    model = new_model()
    model[1].eval()
    weights = [param.clone() for param in model.parameters()]
    acdc.recalibrate(model, BATCHES)
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
    assert all(param.requires_grad and param.grad is None for param in model.parameters())


def test_statistics_in_half_precision_are_summed_in_single():
    model = nn.BatchNorm1d(3).bfloat16()
    x = (torch.randn(4000, 3, generator=torch.Generator().manual_seed(1)) * 2 + 3).bfloat16()
    acdc.recalibrate(model, x.split(10))
    torch.testing.assert_close(states(model)["running_mean"], x.float().mean(0).bfloat16(), rtol=0.02, atol=0)


def test_batches_count_by_their_samples():
    model = nn.BatchNorm1d(3)
    acdc.recalibrate(model, X.split(38))
    torch.testing.assert_close(states(model)["running_mean"], X.mean(0))


def test_frozen_norms_keep_their_statistics():
    def kept(model: nn.Sequential) -> list[bool]:
        acdc.recalibrate(model, BATCHES)
        return [not any(states(model[index])["running_mean"]) for index in (1, 3)]

    by_mode, by_weights = new_model(), new_model().eval()
    by_mode[1].eval()
    by_weights[3].requires_grad_(False)
    assert kept(by_mode) == [True, False]
    assert kept(by_weights) == [False, True]


def test_a_train_method_that_acts_is_undone():
    class Merges(nn.Linear):
        def train(self, mode: bool = True):
            if mode != self.training:
                self.weight.data.mul_(0.5 if mode else 2)
            return super().train(mode)

    merges = Merges(3, 3)
    before = merges.weight.clone()
    acdc.recalibrate(nn.Sequential(merges, nn.BatchNorm1d(3)), BATCHES)
    assert merges.training
    assert torch.equal(merges.weight, before)


def test_a_compiled_model_has_the_statistics_of_the_plain_one():
    plain, model = new_model(), new_model()
    compiled: Any = torch.compile(model, fullgraph=True, backend="eager")
    compiled(X)
    acdc.recalibrate(plain, BATCHES)
    for _ in range(2):
        acdc.recalibrate(compiled, BATCHES)
    torch.testing.assert_close(states(model), states(plain), rtol=0, atol=0)


def test_norms_without_a_size_are_named():
    with pytest.raises(ArgumentError, match="do not know their sizes yet; call it once with a batch"):
        acdc.recalibrate(nn.LazyBatchNorm1d(), BATCHES)


def test_a_forward_of_another_model_is_named():
    model, other = new_model(), new_model()
    before = states(model)
    with pytest.raises(ArgumentError, match="and a forward that calls this model"):
        acdc.recalibrate(model, BATCHES, forward=other)
    torch.testing.assert_close(states(model), before, rtol=0, atol=0)


def test_finish_copies_the_statistics():
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = acdc.ACDC(sparsity=0.5, schedule=acdc.Schedule.from_phases([("dense", "1ep"), ("sparse", "1ep")]))
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=2, quiet=True)
    for x in BATCHES:
        model(x).square().mean().backward()
        optimizer.step()
    acdc.recalibrate(model, BATCHES)
    assert sparsifier.finish().sparse["1.num_batches_tracked"] == 4
    torch.testing.assert_close(states(model)["1.running_mean"], X.mean(0))


def test_what_no_batch_reaches_keeps_its_statistics():
    model = nn.ModuleDict({"used": nn.BatchNorm1d(3), "unused": nn.BatchNorm1d(3)})
    model["unused"](X)
    before = states(model["unused"])
    acdc.recalibrate(model, BATCHES, forward=lambda x: model["used"](x))
    torch.testing.assert_close(states(model["unused"]), before, rtol=0, atol=0)
    assert model["used"].num_batches_tracked == 4


def test_nothing_is_lost_where_it_breaks_off():
    def failing() -> Iterator[Tensor]:
        yield BATCHES[0]
        raise KeyboardInterrupt

    model = new_model()
    model(X)
    before = states(model)
    with pytest.raises(KeyboardInterrupt):
        acdc.recalibrate(model, failing())
    torch.testing.assert_close(states(model), before, rtol=0, atol=0)
    assert model.training
    assert model[1].momentum == 0.9


def test_a_run_goes_on_as_if_nothing_had_been():
    """It is neither a step nor a compression, also between two phases."""

    def run(*, recalibrated: bool) -> tuple[int, dict[str, Tensor]]:
        model = new_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method = acdc.ACDC(sparsity=0.5, schedule=acdc.Schedule.from_phases([("dense", "1ep"), ("sparse", "1ep")]))
        sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=2, quiet=True)
        torch.manual_seed(1)
        for x in BATCHES:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            if recalibrated:
                acdc.recalibrate(model, BATCHES)
        zeros = count_zeros(model)
        sparsifier.finish()
        return zeros, dict(model.named_parameters())

    torch.testing.assert_close(run(recalibrated=True), run(recalibrated=False), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("model", "batches", "error", "said"),
    [
        (nn.Linear(3, 2), BATCHES, ArgumentError, "model='Linear': it has no batch norm that keeps running statistics"),
        (nn.BatchNorm1d(3, track_running_stats=False), BATCHES, ArgumentError, "leave the call out"),
        (new_model(), [], ArgumentError, r"batches=\[\]: no batch reached a batch norm of this model; give a loader"),
        (new_model(), None, ArgumentTypeError, "batches=None: expected a loader or another iterable of batches"),
        (new_model(), X, ArgumentTypeError, r"write batches=\[x\] for one"),
        (new_model(), [X, X * float("nan")], ArgumentError, "the statistics would be NaN or infinite"),
        (new_model(), iter(()), ArgumentError, "a generator that was read to its end gives nothing more"),
        (new_model(), ["text"], ArgumentTypeError, "batches='text': each batch is a tensor"),
        (new_model(), [{1, 2}], ArgumentTypeError, r"forward=lambda batch: model\(\.\.\.\)"),
        ("model", BATCHES, ArgumentTypeError, "model='model': expected a torch.nn.Module"),
    ],
)
def test_what_cannot_be_done_is_refused(model, batches, error, said):
    before = states(model) if isinstance(model, nn.Module) else {}
    with pytest.raises(error, match=said):
        acdc.recalibrate(model, batches)
    torch.testing.assert_close(states(model) if before else {}, before, rtol=0, atol=0)
