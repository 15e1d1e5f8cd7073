"""FSDP2 as loops use it (mixed precision, accumulation, checkpointing, offloading), HSDP and tensor parallelism.

All ranks see one batch, so that averaging gradients rounds nothing, and each loop must give the bits of a plain one.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.sparsity.layers import local_part
from tests.distributed.ranks import call_on_ranks
from tests.distributed.test_fsdp import ALTERNATING, STEPS, Net, assert_part, batch, parts, sgd, start
from tests.warned import SMALL_NETS

pytestmark = SMALL_NETS
Backward = Callable[[nn.Module, Tensor, Tensor], None]
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Bare(Net):
    """The net without the activation checkpointing that test_fsdp.py has in all its runs."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.block(F.relu(self.conv(x)).flatten(1))))


def loss_of(logits: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), y)


def at_once(model: nn.Module, x: Tensor, y: Tensor) -> None:
    loss_of(model(x), y).backward()


def in_bf16(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """What MixedPrecisionPolicy computes: a forward pass of rounded parameters, whose gradients become float32."""
    rounded = {name: param.bfloat16() for name, param in model.named_parameters()}
    loss_of(functional_call(model, rounded, (x.bfloat16(),)), y).backward()


def in_halves(model: Any, x: Tensor, y: Tensor) -> None:
    """Accumulate over two parts of a batch; gradients are exchanged after the second."""
    for part in range(2):
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(part == 1)
        (loss_of(model(x[part::2]), y[part::2]) / 2).backward()


def train(model: nn.Module, backward: Backward = at_once, *, exclude: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train, and return this process's parts of all masks and of the final weights."""
    optimizer = sgd(model)
    s = acdc.attach(model, optimizer, acdc.ACDC(**ALTERNATING, exclude=exclude), steps_per_epoch=2, quiet=True)
    seen: dict[str, Any] = {"masks": [], "sparsity": []}
    for step in range(STEPS):
        s.begin_step()
        backward(model, *batch(step))
        optimizer.step()
        optimizer.zero_grad()
        seen["masks"].append(parts(s.masks))
        seen["sparsity"].append(s.sparsity)
        for name, mask in s.masks.items():
            weight = s.layers.weights[s.context.position(name)]
            assert not weight.local[~local_part(mask)].any(), name
    result = s.finish(gather="everywhere")
    assert result.masks.keys() <= result.sparse.keys()
    seen["sparse"], seen["dense"] = parts(result.sparse), parts(result.dense or {})
    s.detach()
    return seen


def sharded(**policy: Any) -> Bare:
    model = Bare()
    fully_shard(model.block, **policy)
    fully_shard(model, **policy)
    return model


def compare(seen: dict[str, Any], expected: dict[str, Any], rank: int, count: int, where: str) -> None:
    assert_part(seen["masks"], expected["masks"], rank, count, where)
    assert seen["sparsity"] == expected["sparsity"]
    for part in ("sparse", "dense"):
        assert_part(seen[part], expected[part], 0, 1, f"{where}, {part}")


def on_two(rank: int, count: int, folder: str) -> None:
    start(rank, count, folder)
    for where, model, backward, plain in (
        ("mixed precision", sharded(mp_policy=BF16), at_once, in_bf16),
        ("accumulation", sharded(), in_halves, in_halves),
        ("CPU offload", sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)), at_once, at_once),
    ):
        compare(train(model, backward), train(Bare(), plain), rank, count, where)

    wrapped = Bare()
    wrapped.block = checkpoint_wrapper(wrapped.block)  # pyright: ignore[reportAttributeAccessIssue]
    fully_shard(wrapped.block)
    fully_shard(wrapped)
    seen, expected = train(wrapped), train(Bare())
    compare(seen, expected, rank, count, "checkpoint_wrapper")

    mesh = init_device_mesh("cpu", (count,))
    columns = parallelize_module(mlp(), mesh, {name: ColwiseParallel(output_layouts=Replicate()) for name in "13"})
    seen, expected = train(columns), train(mlp())
    assert_part(seen["masks"], expected["masks"], rank, count, "columns")
    assert seen["sparsity"] == expected["sparsity"]
    for name, tensor in expected["sparse"].items():
        torch.testing.assert_close(seen["sparse"][name], tensor)
    rows = parallelize_module(mlp(), mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    with pytest.raises(ValueError, match=r"^model: 3\.weight has placements \(Shard\(dim=1\),\); expected one Shard"):
        train(rows)
    train(rows, exclude=("3",))
    dist.destroy_process_group()


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 3))


def on_four(rank: int, count: int, folder: str) -> None:
    start(rank, count, folder)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    compare(train(sharded(mesh=mesh)), train(Bare()), rank % 2, 2, "HSDP")
    both = parallelize_module(
        mlp(), mesh["shard"], {name: ColwiseParallel(output_layouts=Replicate()) for name in "13"}
    )
    fully_shard(both, mesh=mesh["replicate"])
    with pytest.raises(ValueError, match=r"^model: 1\.weight has placements .*expected one Shard\(dim=0\), others"):
        train(both)
    dist.destroy_process_group()


def test_mixed_precision_accumulation_offload_checkpointing_and_columns(tmp_path: Path):
    call_on_ranks(2, on_two, 2, str(tmp_path))


def test_hsdp_and_tensor_parallel_under_fsdp(tmp_path: Path):
    call_on_ranks(4, on_four, 4, str(tmp_path))
