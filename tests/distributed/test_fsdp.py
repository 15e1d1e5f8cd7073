"""FSDP2: the masks, weights and counts of one process, on 1, 2, 4 and 8 of them, some of which hold no rows of a layer.

All ranks see one batch, and there are 1, 2 or 4 of them, so that averaging gradients rounds nothing: a run must give
the bits of a plain one. Eight round, and must give its masks. One run splits the batch as real ones do.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

import acdc
from acdc import methods
from acdc.core.gathered_state import gather_nested, split_optimizer, split_tensors
from acdc.sparsity.layers import is_sharded, local_part
from tests.distributed.ranks import call_on_ranks
from tests.warned import SMALL_NETS

pytestmark = SMALL_NETS

STEPS, SPE = 12, 2
PHASES = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", "3st"), ("dense", "3st"), ("sparse", "4st")])
SPARSE = acdc.Schedule.from_phases([("sparse", "12st")])


class Net(nn.Module):
    """Layers of 12, 8, 6 and 3 rows: of four ranks, the last holds none of the third or the fourth."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(4, 12, 3)
        self.block = nn.Sequential(nn.Linear(12 * 4, 8), nn.ReLU(), nn.Linear(8, 6))
        self.head = nn.Linear(6, 3)
        with torch.no_grad():
            for weight in (param for param in self.parameters() if param.ndim > 1):
                weight.mul_(16).round_().div_(64)  # ties, at the threshold as well

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv(x)).flatten(1)
        return self.head(F.relu(checkpoint(self.block, x, use_reentrant=False)))


SGD = (torch.optim.SGD, {"lr": 0.3, "momentum": 0.9, "weight_decay": 1e-3})
ADAM = (torch.optim.AdamW, {"lr": 5e-2})
ALTERNATING = {"sparsity": 0.7, "schedule": PHASES}
CASES: dict[str, tuple[Callable[[], acdc.Method], tuple]] = {
    "global": (lambda: acdc.ACDC(**ALTERNATING), SGD),
    "ramp": (lambda: acdc.ACDC(**ALTERNATING, ramp=0.9, rise=0.9, reset="nothing"), ADAM),
    "uniform": (lambda: acdc.ACDC(**ALTERNATING, distribution="uniform"), ADAM),
    "by layer": (lambda: acdc.ACDC(**ALTERNATING, distribution={"block.*": 0.5}, reset="all"), SGD),
    "groups": (lambda: acdc.ACDC(**ALTERNATING, distribution={"block.*": {"uniform": 0.5}}), SGD),
    "2:4": (lambda: acdc.ACDC(schedule=PHASES, pattern=acdc.NM(2, 4)), SGD),
    "channels": (lambda: acdc.ACDC(**ALTERNATING, pattern=acdc.Channel()), SGD),
    "blocks": (lambda: acdc.ACDC(**ALTERNATING, pattern=acdc.Block(1, 2), exclude=["conv"]), SGD),
    "saliency": (lambda: acdc.ACDC(**ALTERNATING, criterion="saliency"), SGD),
    "preconditioned": (lambda: acdc.ACDC(**ALTERNATING, criterion="preconditioned"), ADAM),
    "gmp": (lambda: methods.build("gmp", sparsity=0.8, epochs=6), ADAM),
    "dsd": (lambda: methods.build("dsd", sparsity=0.5, epochs=6), SGD),
    "static": (lambda: methods.build("static", sparsity=0.7, schedule=SPARSE), SGD),
    "set": (lambda: methods.build("set", sparsity=0.7, schedule=SPARSE, every="3st"), SGD),
    "rigl": (lambda: methods.build("rigl", sparsity=0.7, schedule=SPARSE, every="3st"), SGD),
}


def build(sharded: bool) -> Net:
    model = Net()
    if sharded:
        fully_shard(model.block)
        fully_shard(model)
    return model


def parts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: local_part(tensor.detach()).clone() for name, tensor in tensors.items()}


def batch(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 4, 4, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)


def train(case: str, *, sharded: bool, rows: slice = slice(None)) -> dict[str, Any]:
    """Train, look at everything after every step, and return what was seen."""
    make, (optimizer_type, settings) = CASES[case]
    model = build(sharded)
    optimizer = optimizer_type(model.parameters(), **settings)
    s = acdc.attach(model, optimizer, make(), steps_per_epoch=SPE, quiet=True)
    seen: dict[str, Any] = {"masks": [], "losses": [], "zeros": []}
    for step in range(STEPS):
        x, y = batch(step)
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        if not s.context.observing:
            nn.utils.clip_grad_value_(model.parameters(), 0.1)  # a norm would round differently
        optimizer.step()
        optimizer.zero_grad()
        if step in (1, 4):  # a phase ends
            model.eval()
            with torch.no_grad():
                model(x)  # leaves gathered weights in the root
            model.train()
            seen["zeros"].append(s.sparsity)
        seen["losses"].append(loss.item())
        seen["masks"].append(parts(s.masks))
        for name, mask in s.masks.items():
            param = s.context.layers.weights[s.context.position(name)].param
            for value in (param, *(v for v in optimizer.state[param].values() if v.ndim)):
                assert is_sharded(value) == is_sharded(mask) == sharded
                assert not local_part(value.detach())[~local_part(mask)].any()
    result = s.finish()
    seen["sparse"], seen["dense"] = parts(result.sparse), parts(result.dense or {})
    seen["layers"], seen["history"], seen["summary"] = s.layer_sparsity, s.history, str(s.summary())
    s.detach()
    return seen


def assert_part(seen: Any, expected: Any, rank: int, count: int, where: str) -> None:
    """Raise unless this is what a rank should hold of what one process has: rows as torch.chunk splits them."""
    if isinstance(expected, Tensor):
        rows = -(-len(expected) // count)
        assert torch.equal(seen, expected[rank * rows : (rank + 1) * rows]), where
    elif isinstance(expected, dict | list):
        keys = list(expected) if isinstance(expected, dict) else range(len(expected))
        assert len(seen) == len(expected), where
        for key in keys:
            assert_part(seen[key], expected[key], rank, count, f"{where}, {key}")
    else:
        assert seen == expected, where


def start(rank: int, count: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=count)


def run_cases(rank: int, count: int, folder: str, cases: list[str]) -> None:
    start(rank, count, folder)
    seen = {case: train(case, sharded=True) for case in cases}
    if count == 2:
        seen["split batch"] = train("global", sharded=True, rows=slice(4 * rank, 4 * rank + 4))
    torch.save(seen, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def plain() -> dict[str, dict[str, Any]]:
    with torch.random.fork_rng():
        return {case: train(case, sharded=False) for case in CASES}


@pytest.mark.parametrize(
    ("count", "cases"),
    [(1, ["global"]), (2, list(CASES)), (4, ["global", "ramp", "2:4", "rigl"]), (8, ["global"])],
    ids=["1", "2", "4", "8"],
)
def test_sharded_runs_give_the_bits_of_plain_ones(
    count: int, cases: list[str], plain: dict[str, dict[str, Any]], tmp_path: Path
):
    call_on_ranks(count, run_cases, count, str(tmp_path), cases)
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(count)]
    for case in cases:
        for rank, seen in enumerate(ranks):
            exact = seen[case] if count < 8 else {part: seen[case][part] for part in ("masks", "zeros", "history")}
            expected = {part: plain[case][part] for part in exact}
            assert_part(exact, expected, rank, count, f"{case} on rank {rank} of {count}")
    if count == 2:  # each rank has half of the batch, and gradients are averaged in another order than in one process
        one, two = (seen["split batch"] for seen in ranks)
        losses = (torch.tensor(one["losses"]) + torch.tensor(two["losses"])) / 2
        torch.testing.assert_close(losses, torch.tensor(plain["global"]["losses"]), rtol=1e-4, atol=1e-5)
        assert one["history"] == two["history"] == plain["global"]["history"]


def test_the_cases_prune_and_change_masks(plain: dict[str, dict[str, Any]]):
    for case, seen in plain.items():
        masks = [masks for masks in seen["masks"] if masks]
        assert not all(mask.all() for mask in masks[-1].values()), case
        changed = any(not torch.equal(masks[0][name], masks[-1][name]) for name in masks[0])
        assert changed or case in ("static", "dsd", "channels", "blocks"), case


# What is refused


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def attach(model: nn.Module, method: acdc.Method | None = None) -> acdc.Sparsifier:
    return acdc.attach(model, sgd(model), method or CASES["global"][0](), steps_per_epoch=SPE, quiet=True)


def step(model: nn.Module, s: acdc.Sparsifier, number: int = 0) -> None:
    s.context.optimizer.zero_grad()
    F.cross_entropy(model(batch(number)[0]), batch(number)[1]).backward()
    s.context.optimizer.step()


def refuse(rank: int, count: int, folder: str) -> None:
    start(rank, count, folder)
    for method, reason in (
        (methods.build("top_kast", sparsity=0.5, epochs=6), "Top-KAST needs whole weights in every process"),
        (methods.build("dpf", sparsity=0.5, epochs=6), "DPF needs whole weights"),
        (acdc.ACDC(**ALTERNATING, revive=True), "revive=True draws whole filters"),
        (acdc.ACDC(**ALTERNATING, criterion="movement"), "criterion='movement' needs whole weights"),
    ):
        with pytest.raises(ValueError, match=rf"^method=.*the model is sharded .*{reason}.*DistributedDataParallel"):
            attach(build(sharded=True), method)
    with pytest.raises(ValueError, match=r"block\.2\.weight of shape \(6, 8\) .*by 3, which divides tiles"):
        attach(build(sharded=True), acdc.ACDC(**ALTERNATING, pattern=acdc.Block(2, 2), exclude=["conv", "head"]))

    partly = Net()
    fully_shard(partly.block)
    with pytest.raises(ValueError, match=r"^model: conv\.weight is whole in every process, while block\.0.*exclude="):
        attach(partly)
    columns = nn.Linear(4, 4)
    fully_shard(columns, shard_placement_fn=lambda param: Shard(param.ndim - 1))
    with pytest.raises(ValueError, match=r"^model: weight has placements .*expected one Shard\(dim=0\)"):
        attach(columns)

    early = Net()
    s = attach(early)
    fully_shard(early)
    with pytest.raises(RuntimeError, match=r"^finish.*: fully_shard was called after attach, and replaced conv"):
        s.finish()
    late = Net()
    optimizer = sgd(late)
    fully_shard(late)
    with pytest.raises(ValueError, match=r"holds none of the model's 4 prunable weights; build it .*sharding it"):
        acdc.attach(late, optimizer, CASES["global"][0](), quiet=True)

    model = build(sharded=True)
    s = attach(model)
    with pytest.raises(ValueError, match=r"^example: FLOPs are counted on whole weights, and this model is sharded"):
        s.summary(batch(0)[0])
    step(model, s)
    step(model, s, 1)
    if rank:
        local_part(model.head.weight).fill_(torch.nan)
    with pytest.raises(ValueError, match="NaN or infinite scores in"):  # on both, or one would wait for ever
        step(model, s, 2)
    assert s.phase.kind == "dense"

    model = build(sharded=True)
    s = attach(model)
    for number in range(5):
        step(model, s, number)
        if number == 2 and rank:
            local_part(model.conv.weight).fill_(1.0)  # what one rank does to its own rows
        if number == 3:
            with pytest.raises(RuntimeError, match="something other than the optimizer wrote them"):
                s._stepper.leaks.check_finished(s._stepper.masking.masks)
            break
    Path(folder, f"refused-{rank}").touch()
    dist.destroy_process_group()


def test_what_cannot_be_sharded_is_refused_by_name_on_every_rank(tmp_path: Path):
    call_on_ranks(2, refuse, 2, str(tmp_path))
    assert {path.name for path in tmp_path.glob("refused-*")} == {"refused-0", "refused-1"}, "each came to the end"


# Checkpoints and results


def resumable(method: acdc.Method | None = None) -> tuple[Net, torch.optim.Optimizer, acdc.Sparsifier]:
    model = build(sharded=True)
    s = attach(model, method or acdc.ACDC(**ALTERNATING, ramp=0.9))
    return model, s.context.optimizer, s


def parts_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    state, moments = get_state_dict(model, optimizer)
    return {"model": state, "optimizer": moments}


def save_at(rank: int, count: int, folder: str) -> None:
    """Save in a compressed phase, in a ramp, and with the twin; then go on to the end."""
    start(rank, count, folder)
    model, optimizer, s = resumable()
    for number in range(STEPS):
        step(model, s, number)
        if s.step in (4, 6, 10):
            whole = {**parts_of(model, optimizer), "sparsifier": s.state_dict()}
            save(whole, checkpoint_id=f"{folder}/step-{s.step}")
            plain = [gather_nested(part.state_dict(), keep=True) for part in (model, optimizer)]
            gathered = s.state_dict(gather="rank0")
            if rank:
                assert not gathered
            else:
                torch.save([*plain, gathered], f"{folder}/step-{s.step}.pt")
    result = s.finish(gather="rank0")
    if rank:
        assert not result.sparse
        with pytest.raises(RuntimeError, match="this process holds no result"):
            _ = result.sparsity
    else:
        assert result.sparsity == pytest.approx(0.7, abs=1e-3)
        result.save(f"{folder}/result")
        Net().load_state_dict(result.sparse)
    dist.destroy_process_group()


def resume(rank: int, count: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/again-{count}", rank=rank, world_size=count)
    torch.set_num_threads(1)
    expected = acdc.Result.load(f"{folder}/result")
    for at in (4, 6, 10):
        model, optimizer, s = resumable()
        states = parts_of(model, optimizer)
        load(states, checkpoint_id=f"{folder}/step-{at}")
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        s.load_checkpoint(f"{folder}/step-{at}")
        assert s.step == at
        for number in range(at, STEPS):
            step(model, s, number)
        sharded = s.finish()
        assert sharded.sparsity == expected.sparsity
        with pytest.raises(RuntimeError, match="the result is sharded: call finish"):
            sharded.save(f"{folder}/never")
        result = s.finish(gather="everywhere")
        for part in ("masks", "sparse", "dense"):
            assert_part(getattr(result, part), getattr(expected, part), 0, 1, f"{part} from step {at} on {count}")
        model.load_state_dict(sharded.sparse)
    go_on_from_gathered(resumable(), folder, 6, expected)
    _, _, other = resumable(acdc.ACDC(**{**ALTERNATING, "sparsity": 0.5}, ramp=0.9))
    with pytest.raises(ValueError, match=r"saved with sparsity=0\.7, but the attached method has sparsity=0\.5"):
        other.load_checkpoint(f"{folder}/step-4")
    _, _, other = resumable(methods.build("gmp", sparsity=0.7, epochs=6))
    with pytest.raises(ValueError, match="belongs to method 'acdc', but 'gmp' is attached"):
        other.load_checkpoint(f"{folder}/step-4")
    with pytest.raises(ValueError, match="holds no sparsifier under 'nobody'"):
        other.load_checkpoint(f"{folder}/step-4", key="nobody")
    Path(folder, f"resumed-{count}-{rank}").touch()
    dist.destroy_process_group()


def go_on_from_gathered(
    parts: tuple[Net, torch.optim.Optimizer, acdc.Sparsifier], folder: str, at: int, expected: acdc.Result
) -> None:
    """Resume from the states of a model that is not sharded, on one that may be."""
    model, optimizer, s = parts
    weights, moments, state = torch.load(f"{folder}/step-{at}.pt", weights_only=True)
    model.load_state_dict(split_tensors(weights, model.state_dict()))
    optimizer.load_state_dict(split_optimizer(moments, optimizer))
    s.load_state_dict(state)
    for number in range(at, STEPS):
        step(model, s, number)
    result = s.finish(gather="everywhere")
    for part in ("masks", "sparse", "dense"):
        assert_part(getattr(result, part), getattr(expected, part), 0, 1, f"{part} from gathered step {at}")


def test_a_checkpoint_of_two_ranks_resumes_on_one_two_and_four(tmp_path: Path):
    call_on_ranks(2, save_at, 2, str(tmp_path))
    for at in (4, 6, 10):
        model = build(sharded=False)
        s = attach(model, acdc.ACDC(**ALTERNATING, ramp=0.9))
        expected = acdc.Result.load(tmp_path / "result")
        go_on_from_gathered((model, s.context.optimizer, s), str(tmp_path), at, expected)
    for count in (1, 2, 4):
        call_on_ranks(count, resume, count, str(tmp_path))
        assert len(list(tmp_path.glob(f"resumed-{count}-*"))) == count, "each came to the end"
