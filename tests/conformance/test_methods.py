"""What every method promises, whichever it is: the contracts of the design, held by one suite."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

import acdc
from acdc import methods
from tests.conformance.harness import (
    DEVICE,
    EPOCHS,
    OPTIMIZERS,
    SPARSITY,
    STEPS_PER_EPOCH,
    TOTAL,
    Net,
    assert_same_bits,
    batch,
)
from tests.distributed.ranks import call_on_two_ranks

# The knobs each method is tried with: six epochs of four steps at 80 %, unless it needs others.
COMMON: dict[str, Any] = {"sparsity": SPARSITY, "epochs": EPOCHS}
KNOBS: dict[str, dict[str, Any]] = {
    "jin": {**COMMON, "cycles": 2},
    "lottery": {**COMMON, "rounds": 3, "rewind": "2st"},
    "rigl": {**COMMON, "every": "3st"},
    "deepr": {**COMMON, "l1": 1e-2, "temperature": 1e-5},
    "top_kast": {**COMMON, "every": "3st"},
    "str": {"epochs": EPOCHS, "start": -3.0},
    "dpf": {**COMMON, "every": "3st"},
    "sr_ste": {"pattern": acdc.NM(2, 4), "epochs": EPOCHS},
    "sparse_vd": {"epochs": EPOCHS, "samples": 100, "rate": 0.5},
    "quantised": {"epochs": EPOCHS, "bits": 2},
}
REPORTED = ("str", "sparse_vd", "quantised")  # their sparsity is what training makes of it

STOPS = (5, 10, 12, 21)  # steps to stop before: inside phases, and one where an update or a phase is due
PARTS = ("Idea", "Step", "Knobs", "FLOPs", "Costs", "Reference")

both_optimizers = pytest.mark.parametrize("optimizer", ["SGD momentum, Nesterov, weight decay", "AdamW"])
every_method = pytest.mark.parametrize("name", methods.names())


@dataclass
class Run:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    sparsifier: acdc.Sparsifier

    @classmethod
    def make(cls, name: str, optimizer: str, seed: int = 0) -> "Run":
        torch.manual_seed(seed)
        model = Net().to(DEVICE)
        made = OPTIMIZERS[optimizer](model.parameters())
        method = methods.build(name, **KNOBS.get(name, COMMON))
        return cls(model, made, acdc.attach(model, made, method, steps_per_epoch=STEPS_PER_EPOCH))

    def train(self, first: int = 0, last: int = TOTAL) -> "Run":
        for step in range(first, last):
            self.optimizer.zero_grad()
            x, y = batch(step)
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
        return self

    def bits(self) -> dict[str, Tensor]:
        """All that training depends on, flat."""
        return _tensors({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()["state"]}) | (
            _tensors(self.sparsifier.state_dict())
        )


def _tensors(value: Any, name: str = "") -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {name: value.detach().cpu().clone()}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    return {key: tensor for k, item in items for key, tensor in _tensors(item, f"{name}.{k}").items()}


def test_the_table_names_only_methods_there_are():
    assert {*KNOBS, *REPORTED} <= {*methods.names()}


@every_method
@both_optimizers
def test_exact_sparsity_at_the_end(name, optimizer):
    run = Run.make(name, optimizer).train()
    result, layers = run.sparsifier.finish(), run.sparsifier.layers
    kept = {n: int(mask.sum()) for n, mask in result.masks.items()}
    sizes = {weight.name: weight.param.numel() for weight in layers.weights}
    assert kept.keys() == sizes.keys()
    method = run.sparsifier.method
    if name in REPORTED:
        assert 0 < result.sparsity < 1
    elif method.pattern.sparsity is not None:
        assert all(kept[n] == sizes[n] - round(method.pattern.sparsity * sizes[n]) for n in sizes)
    else:
        assert sum(kept.values()) == layers.size - round(SPARSITY * layers.size)
    assert min(kept.values()) >= 1
    for n, mask in result.masks.items():
        assert not result.sparse[n][~mask].any()
    assert all(value.isfinite().all() for value in result.sparse.values())
    if result.dense is not None:
        assert result.dense.keys() == result.sparse.keys()


@every_method
@both_optimizers
def test_zeros_stay_zero(name, optimizer):
    """After every step, as whoever evaluates or saves the model then sees it; and the optimizer's state with them."""
    run = Run.make(name, optimizer)
    for step in range(TOTAL):
        run.train(step, step + 1)
        sparsifier = run.sparsifier
        assert sparsifier.step == step + 1
        phase = sparsifier.method.schedule.phase_at(step, STEPS_PER_EPOCH)
        assert sparsifier.phase == phase, "the phase of the step just taken"
        assert bool(sparsifier.masks) == (phase.kind == "sparse")
        for n, mask in sparsifier.masks.items():
            param = run.model.get_parameter(n)
            assert not param[~mask].any(), f"step {step}: {n}: a pruned weight moved"
            if sparsifier.state_dict()["shadow"] is not None:
                continue  # dense weights are trained behind the model's
            for key, value in run.optimizer.state[param].items():
                if isinstance(value, Tensor) and value.shape == param.shape:
                    assert not value[~mask].any(), f"step {step}: {n}: {key} of a pruned weight moved"


@every_method
@both_optimizers
def test_resuming_gives_the_same_bits(name, optimizer):
    whole, files = Run.make(name, optimizer), {}
    for first, last in zip((0, *STOPS), (*STOPS, TOTAL), strict=True):
        whole.train(first, last)
        files[last] = io.BytesIO()
        parts = (whole.model.state_dict(), whole.optimizer.state_dict(), whole.sparsifier.state_dict())
        torch.save(parts, files[last])
    expected, expected_result = whole.bits(), whole.sparsifier.finish()
    for stop in STOPS:
        files[stop].seek(0)
        model, made, state = torch.load(files[stop], weights_only=True)
        run = Run.make(name, optimizer, seed=1)
        run.model.load_state_dict(model)
        run.optimizer.load_state_dict(made)
        run.sparsifier.load_state_dict(state)
        run.train(stop)
        assert_same_bits(expected, run.bits())
        result = run.sparsifier.finish()
        for part in ("sparse", "dense", "masks"):
            assert_same_bits(getattr(expected_result, part) or {}, getattr(result, part) or {})


@every_method
def test_two_copies_agree(name):
    """As two ranks must: nothing random comes from the process, and nothing from the order of a dictionary."""
    one = Run.make(name, "AdamW").train()
    two = Run.make(name, "AdamW")
    torch.manual_seed(1234)  # whatever else the other process has drawn
    two.train()
    assert_same_bits(one.bits(), two.bits())


@every_method
def test_the_model_stays_a_plain_one(name):
    run = Run.make(name, "AdamW")
    plain = Net()
    for step in range(TOTAL):
        run.train(step, step + 1)
        assert run.model.state_dict().keys() == plain.state_dict().keys()
    plain.load_state_dict(run.sparsifier.finish().sparse)
    assert [type(p) for p in run.model.parameters()] == [nn.Parameter] * len(list(plain.parameters()))


@every_method
@pytest.mark.parametrize("stop", [0, *STOPS, TOTAL])
def test_detaching_leaves_no_hooks(name, stop):
    run = Run.make(name, "AdamW").train(last=stop)
    run.sparsifier.detach()
    for param in run.model.parameters():
        assert not param._post_accumulate_grad_hooks
        assert not param._backward_hooks
    for module in run.model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
    assert not run.optimizer._optimizer_step_pre_hooks
    assert not run.optimizer._optimizer_step_post_hooks
    before = len(run.sparsifier.history)
    run.train(last=2)
    assert len(run.sparsifier.history) == before


@every_method
def test_knobs_are_plain_data(name):
    method = methods.build(name, **KNOBS.get(name, COMMON))
    assert json.loads(json.dumps(method.config())) == method.config()
    assert method.name == name
    assert methods.find(name) is type(method)


@every_method
def test_the_card_is_whole(name):
    title, _, rest = methods.card(name).partition("\n\n")
    assert title
    assert "\n" not in title
    assert [line.split()[0] for line in rest.split("\n\n")[0].splitlines() if not line.startswith(" ")] == [*PARTS]


# Two processes


def _train_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 16))
    torch.manual_seed(100 + rank)  # what the processes draw from here on differs
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    method = methods.build("rigl", sparsity=SPARSITY, epochs=EPOCHS, every="2st", end=1.0)
    sparsifier = acdc.attach(ddp, optimizer, method, steps_per_epoch=STEPS_PER_EPOCH)
    first = None
    for step in range(TOTAL):
        optimizer.zero_grad()
        x, y = batch(2 * step + rank)
        F.cross_entropy(ddp(x.cpu()), y.cpu()).backward()
        optimizer.step()
        first = first or {name: mask.clone() for name, mask in sparsifier.masks.items()}
    result = sparsifier.finish()
    torch.save({"first": first, "masks": result.masks, "sparse": result.sparse}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_ranks_agree(tmp_path):
    """RigL on two processes with different data: the gradients it grows by are those both have averaged."""
    call_on_two_ranks(_train_rank, str(tmp_path))
    one, two = (torch.load(Path(tmp_path) / f"{rank}.pt", weights_only=True) for rank in range(2))
    for part in ("first", "masks", "sparse"):
        assert_same_bits(one[part], two[part])
    assert any(not torch.equal(one["first"][name], mask) for name, mask in one["masks"].items()), (
        "weights were replaced"
    )


@every_method
def test_what_a_cuda_graph_reads_stays_where_it_is(name):
    """Weights, from step to step; and the masks of gradients, which the graph of a phase reads, while that lasts."""
    run = Run.make(name, "SGD momentum, Nesterov, weight decay")
    weights, masks, phase = {p.data_ptr() for p in run.model.parameters()}, {}, -1
    for step in range(TOTAL):
        run.train(step, step + 1)
        assert {p.data_ptr() for p in run.model.parameters()} == weights
        now = {layer: mask.data_ptr() for layer, mask in run.sparsifier._stepper.masking.gradients._masks.items()}
        if run.sparsifier.phase.index == phase:
            assert now == masks
        masks, phase = now, run.sparsifier.phase.index


def test_classes_by_their_names():
    assert methods.RigL is methods.find("rigl")
    assert {methods.find(name).__name__ for name in methods.names()} <= set(dir(methods))
    with pytest.raises(AttributeError, match=r"acdc.methods has no 'Rigl'; its methods are ACDC, .*RigL"):
        methods.Rigl  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
