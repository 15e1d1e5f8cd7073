import copy
from typing import Any

import pytest
import torch
from torch import nn

from acdc import models
from acdc.errors import ArgumentError
from acdc.models.norm import SplitBatchNorm2d, _Normalise, split_batch_norms

PATHS = pytest.mark.parametrize("at_once", [False, True], ids=["part-by-part", "at-once"])


def run(split: SplitBatchNorm2d, x: torch.Tensor, at_once: bool) -> torch.Tensor:
    """As eager training does, or as compiled training does, uncompiled."""
    return split._at_once(x) if at_once else split(x)


def pair(splits: int, **knobs: Any) -> tuple[SplitBatchNorm2d, list[nn.BatchNorm2d]]:
    """The split one, and one plain batch norm for each part; all with the same weights."""
    torch.manual_seed(0)
    split = SplitBatchNorm2d(3, splits=splits, **knobs)
    with torch.no_grad():
        split.weight.uniform_(0.5, 1.5)
        split.bias.uniform_(-1, 1)
    plain = nn.BatchNorm2d(3, **knobs)
    plain.load_state_dict(split.state_dict())
    return split, [copy.deepcopy(plain) for _ in range(splits)]


@PATHS
@pytest.mark.parametrize("splits", [2, 4])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_it_is_a_batch_norm_for_each_part(splits: int, memory_format: torch.memory_format, at_once: bool) -> None:
    split, parts = pair(splits, momentum=0.3)
    x = torch.randn(8, 3, 5, 4).contiguous(memory_format=memory_format).requires_grad_()
    mine = run(split, x, at_once)
    theirs = torch.cat([norm(part) for norm, part in zip(parts, x.tensor_split(splits), strict=True)])
    torch.testing.assert_close(mine, theirs)
    weight = torch.randn_like(mine)
    (got,) = torch.autograd.grad((mine * weight).sum(), x, retain_graph=True)
    (wanted,) = torch.autograd.grad((theirs * weight).sum(), x, retain_graph=True)
    torch.testing.assert_close(got, wanted)
    for name in ("weight", "bias"):
        (got,) = torch.autograd.grad((mine * weight).sum(), getattr(split, name), retain_graph=True)
        each = torch.autograd.grad((theirs * weight).sum(), [getattr(n, name) for n in parts], retain_graph=True)
        torch.testing.assert_close(got, sum(each[1:], each[0]))
    torch.testing.assert_close(split.running_mean, parts[0].running_mean)  # the first device's are kept
    torch.testing.assert_close(split.running_var, parts[0].running_var)
    assert split.num_batches_tracked == 1


def test_gradients_by_differences() -> None:
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64, requires_grad=True)
    weight, bias = (torch.rand(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda *inputs: _Normalise.apply(*inputs, 2, 1e-5)[0], (x, weight, bias))


def test_a_batch_that_does_not_divide_goes_part_by_part() -> None:
    split, parts = pair(2)
    x = torch.randn(5, 3, 2, 2)
    theirs = torch.cat([norm(part) for norm, part in zip(parts, x.tensor_split(2), strict=True)])
    torch.testing.assert_close(split(x), theirs)


def test_evaluation_is_batch_norms_own() -> None:
    split, (plain, _) = pair(2)
    x = torch.randn(5, 3, 2, 2)
    torch.testing.assert_close(split.eval()(x), plain.eval()(x))


@PATHS
def test_half_precision_in_and_out_with_statistics_in_full(at_once: bool) -> None:
    split, _ = pair(2)
    x = 100 + torch.randn(8, 3, 4, 4)
    out = run(split, x.bfloat16(), at_once)
    assert out.dtype == torch.bfloat16
    assert split.state_dict()["running_mean"].dtype == torch.float32
    torch.testing.assert_close(out.float(), run(split, x.bfloat16().float(), at_once), rtol=0.02, atol=0.02)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_compiled_it_computes_the_same() -> None:
    split, _ = pair(2)
    other = copy.deepcopy(split)
    x = torch.randn(4, 3, 4, 4)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(split, fullgraph=True, backend="aot_eager")(mine).square().sum().backward()
    other(theirs).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)
    torch.testing.assert_close(split.weight.grad, other.weight.grad)
    torch.testing.assert_close(split.running_var, other.running_var)


def test_a_gradient_of_the_gradient_is_refused_rather_than_wrong() -> None:
    split, _ = pair(2)
    x = torch.randn(4, 3, 2, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(split._at_once(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


@PATHS
def test_a_model_in_half_precision_keeps_its_statistics_so_as_batch_norm_does(at_once: bool) -> None:
    split, (plain, _) = pair(2)
    x = torch.randn(4, 3, 4, 4, dtype=torch.bfloat16)
    run(split.bfloat16(), x, at_once)
    plain.bfloat16()(x[:2])
    torch.testing.assert_close(split.running_mean, plain.running_mean)
    torch.testing.assert_close(split.running_var, plain.running_var, rtol=0.02, atol=0.02)


def test_a_short_batch_makes_fewer_parts_rather_than_parts_of_one_value() -> None:
    """As the last of an epoch may be; one image alone has no variance, here as in batch norm."""
    split, (plain, _) = pair(2)
    x = torch.randn(3, 3, 1, 1)
    torch.testing.assert_close(split(x), plain(x))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        split(torch.randn(1, 3, 1, 1))


@PATHS
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_what_follows_may_change_it_in_place(memory_format: torch.memory_format, at_once: bool) -> None:
    """As the models' ReLUs do."""
    split, _ = pair(2)
    x = torch.randn(4, 3, 5, 4).contiguous(memory_format=memory_format)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out = torch.relu_(run(split, mine, at_once))
    assert out.is_contiguous(memory_format=memory_format)
    out.square().sum().backward()
    torch.relu(run(split, theirs, at_once)).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad)


# In whole models


def norms(model: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}


@pytest.mark.parametrize("name", ["resnet20", "resnet50", "mobilenet_v1", "wrn28_10", "digits_net"])
def test_every_batch_norm_of_every_model_is_split(name: str) -> None:
    with torch.device("meta"):
        plain, split = (models.build(name, classes=10, bn_splits=splits) for splits in (1, 4))
    assert {type(norm) for norm in norms(plain).values()} == {nn.BatchNorm2d}, "at 1 it is exactly the plain model"
    assert norms(plain).keys() == norms(split).keys()
    assert all(isinstance(norm, SplitBatchNorm2d) and norm.splits == 4 for norm in norms(split).values())
    before, after = norms(plain).values(), norms(split).values()
    assert [(norm.momentum, norm.eps) for norm in before] == [(norm.momentum, norm.eps) for norm in after]
    assert plain.state_dict().keys() == split.state_dict().keys()


def test_the_same_weights_with_other_statistics() -> None:
    plain, split = (models.build("digits_net", classes=10, in_channels=1, seed=3, bn_splits=n) for n in (1, 2))
    assert all(torch.equal(one, two) for one, two in zip(plain.parameters(), split.parameters(), strict=True))
    x = torch.randn(8, 1, 8, 8)
    torch.testing.assert_close(plain.eval()(x), split.eval()(x), rtol=0, atol=0)
    assert not torch.equal(plain.train()(x), split.train()(x))
    first, again = (models.build("digits_net", classes=10, in_channels=1, seed=3) for _ in range(2))
    out = torch.cat([again(x[:4]), first(x[4:])])
    fresh = models.build("digits_net", classes=10, in_channels=1, seed=3, bn_splits=2)
    torch.testing.assert_close(fresh(x), out)
    kept = dict(again.named_buffers())
    for name, buffer in fresh.named_buffers():
        torch.testing.assert_close(buffer, kept[name], msg=name)


def test_a_norm_that_occurs_twice_or_has_options_of_its_own_stays_itself() -> None:
    norm = nn.BatchNorm2d(3, eps=1e-3, momentum=None, affine=False)
    model = nn.Sequential(norm, nn.ReLU(), nn.Sequential(norm)).eval()
    split_batch_norms(model, 2)
    first, inner = model[0], model.get_submodule("2.0")
    assert isinstance(first, SplitBatchNorm2d)
    assert first is inner
    assert (first.eps, first.momentum, first.affine, first.training) == (1e-3, None, False, False)
    model.train()
    x = torch.randn(4, 3, 2, 2)
    plain = nn.BatchNorm2d(3, eps=1e-3, momentum=None, affine=False)
    once = torch.cat([plain(x[:2]), nn.BatchNorm2d(3, eps=1e-3, affine=False)(x[2:])])
    torch.testing.assert_close(first(x), once)
    torch.testing.assert_close(first.running_var, plain.running_var)


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (nn.Sequential(nn.Linear(2, 2)), "Sequential has none inside"),
        (nn.Sequential(nn.BatchNorm2d(2), nn.BatchNorm1d(2)), "1 is a BatchNorm1d"),
        (nn.Sequential(nn.SyncBatchNorm(2)), "0 is a SyncBatchNorm"),
    ],
)
def test_a_model_without_such_norms_or_with_others_is_refused(model: nn.Module, why: str) -> None:
    with pytest.raises(ArgumentError, match=rf"bn_splits=2: it splits .*{why}; write bn_splits=1 or leave it out"):
        split_batch_norms(model, 2)
