import copy
from typing import Any

import pytest
import torch
from torch import nn

from acdc.models.norm import SplitBatchNorm2d, _Normalise

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


def test_parts_of_one_value_are_refused_as_batch_norm_refuses_them() -> None:
    split, _ = pair(2)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        split(torch.randn(2, 3, 1, 1))


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
