"""The cost of attaching acdc to a training step, in dense and in compressed phases.

Copies of one model train on the same batch: one plain, one with acdc in a dense phase, one with acdc in a compressed
phase, one masked by torch.nn.utils.prune. They take turns, every round in another order, and the ratios to the plain
copy are taken within each round, so that whatever slows the machine for a while slows all of them.

On a GPU dense kernels can run a little faster on weights that are mostly zero, because the chip draws less power: a
ratio below 1 says that, and nothing about acdc.
"""

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import prune

import acdc
from acdc.core.sparsifier import attached_to
from benchmarks import nets
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment
from benchmarks.tables import overhead_table

SPARSITY = 0.9
_LONG = "1000000st"
_STAYS_DENSE = acdc.Schedule.from_phases([("dense", _LONG), ("sparse", "1st")])
# Dense and sparse phases follow, so that the long one is not final: entering the final phase also copies the twin.
_COMPRESSES = acdc.Schedule.from_phases([("dense", "1st"), ("sparse", _LONG), ("dense", "1st"), ("sparse", "1st")])
_PLAIN, _DENSE, _COMPRESSED, _PRUNE = "plain", "acdc, dense phase", "acdc, compressed phase", "torch prune"


@dataclass(frozen=True)
class Net:
    """A network, a tiny one for a trial run, its inputs as (batch, …) on a CPU, on a GPU and for the trial."""

    build: Callable[[], nn.Module]
    tiny: Callable[[], nn.Module]
    cpu: tuple[int, ...]
    cuda: tuple[int, ...]
    quick: tuple[int, ...]
    classes: int
    adam: bool = False

    @property
    def is_conv(self) -> bool:
        return len(self.cpu) == 4

    def batch(self, shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """Draw random inputs and targets; for tokens the targets are the inputs shifted by one."""
        if self.is_conv:
            return torch.randn(shape, device=device), torch.randint(self.classes, shape[:1], device=device)
        tokens = torch.randint(self.classes, (shape[0], shape[1] + 1), device=device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.adam:
            return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=1e-4)


NETS = {
    "resnet20": Net(
        nets.resnet20,
        nets.resnet20,
        cpu=(128, 3, 32, 32),
        cuda=(128, 3, 32, 32),
        quick=(4, 3, 32, 32),
        classes=10,
    ),
    "gpt": Net(
        nets.GPT,
        lambda: nets.GPT(width=64, depth=2),
        cpu=(4, 256),
        cuda=(32, 512),
        quick=(1, 16),
        classes=1024,
        adam=True,
    ),
    "resnet50": Net(
        nets.resnet50,
        lambda: nets.resnet50(width=4),
        cpu=(8, 3, 224, 224),
        cuda=(256, 3, 224, 224),
        quick=(2, 3, 32, 32),
        classes=1000,
    ),
}


@dataclass
class Trainer:
    """A copy of the model and the loop around it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: Tensor
    targets: Tensor
    autocast: bool

    def step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.inputs.device.type, torch.bfloat16) if self.autocast else nullcontext():
            outputs = self.model(self.inputs)
            loss = functional.cross_entropy(outputs.flatten(0, -2), self.targets.flatten())
        loss.backward()
        self.optimizer.step()

    def seconds(self, steps: int) -> float:
        return _seconds(lambda: [self.step() for _ in range(steps)], self.inputs.device)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = True
    if options.threads:
        torch.set_num_threads(options.threads)
    shared = environment(device, options.commit)
    say(f"overhead: {shared['device_name']}, {shared['cores']} cores, torch {shared['torch']}, load {shared['load']}")
    for name in options.nets:
        rows = measure_net(name, device, options.rounds, quick=options.quick)
        rows = [{**shared, **row} for row in rows]
        append(options.results, rows)
        print_table(*overhead_table(rows))
    say(f"written to {options.results}")
    return 0


def measure_net(name: str, device: torch.device, rounds: int, *, quick: bool = False) -> list[Row]:
    net, on_gpu = NETS[name], device.type == "cuda"
    shape = net.quick if quick else net.cuda if on_gpu else net.cpu
    steps = 10 if on_gpu and not quick else 1  # a step ends before its kernels do: one alone would time the launches
    torch.manual_seed(0)
    warm_up = 1 if quick else 10 if on_gpu else 2
    trainers = _trainers(net.tiny() if quick else net.build(), net, shape, device)
    compression, twin = _compress(trainers, repeats=2 if quick else 7)
    times = _time_in_turns(name, trainers, rounds, steps, warm_up)
    _check_phases(trainers)

    model = trainers[_PLAIN].model
    common = {
        "benchmark": "overhead",
        "net": name,
        "quick": quick,
        "parameters": sum(p.numel() for p in model.parameters()),
        "prunable": acdc.find_prunable(model).size,
        "layers": len(acdc.find_prunable(model).weights),
        "batch": f"batch {shape[0]} of {' x '.join(map(str, shape[1:]))}",
        "optimizer": type(trainers[_PLAIN].optimizer).__name__,
        "precision": ("bf16 autocast" + ", channels last" * net.is_conv) if on_gpu else "fp32",
        "sparsity": SPARSITY,
        "steps_per_timing": steps,
        "plain_seconds": times[_PLAIN],
        "plain_median": statistics.median(times[_PLAIN]),
        "n": rounds,
    }
    rows = []
    for method in (_DENSE, _COMPRESSED, _PRUNE):
        ratios = [mine / plain for mine, plain in zip(times[method], times[_PLAIN], strict=True)]
        row = {**common, "method": method, "seconds": times[method], "ratios": ratios}
        row |= {"median": statistics.median(ratios), "quartiles": _quartiles(ratios)}
        if method == _COMPRESSED:
            row |= {"compression_seconds": compression, "twin_seconds": twin}
        rows.append(row)
    return rows


def _trainers(model: nn.Module, net: Net, shape: tuple[int, ...], device: torch.device) -> dict[str, Trainer]:
    """Build all copies before the first step, so that all find the allocator in the same state."""
    model = model.to(device)
    inputs, targets = net.batch(shape, device)
    on_gpu = device.type == "cuda"
    if on_gpu and net.is_conv:
        inputs = inputs.to(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    models = {name: copy.deepcopy(model) for name in (_PLAIN, _DENSE, _COMPRESSED, _PRUNE)}
    return {name: Trainer(m, net.optimizer(m), inputs, targets, autocast=on_gpu) for name, m in models.items()}


def _compress(trainers: dict[str, Trainer], repeats: int) -> tuple[list[float], list[float]]:
    """Attach, bring every copy to its phase, and time what happens once per phase and once per run."""
    dense, compressed, pruned = (trainers[name] for name in (_DENSE, _COMPRESSED, _PRUNE))
    acdc.attach(dense.model, dense.optimizer, acdc.ACDC(sparsity=SPARSITY, schedule=_STAYS_DENSE))
    method = acdc.ACDC(sparsity=SPARSITY, schedule=_COMPRESSES)
    sparsifier = acdc.attach(compressed.model, compressed.optimizer, method)
    compressed.step()
    before = copy.deepcopy(compressed.model.state_dict())
    sparsifier.begin_step()  # the first compression; it also allocates the masks
    device = compressed.inputs.device
    times = []
    for _ in range(repeats):
        compressed.model.load_state_dict(before)  # dense weights again, as a compression finds them
        times.append(_seconds(sparsifier.context.compress, device))
    twin = [_seconds(sparsifier.context.keep_twin, device) for _ in range(min(repeats, 3))]
    sparsifier.context.twin = None
    modules = dict(pruned.model.named_modules())
    for name, mask in sparsifier.masks.items():
        path, _, local = name.rpartition(".")
        prune.custom_from_mask(modules[path], local, mask)
    return times, twin


def _time_in_turns(
    name: str, trainers: dict[str, Trainer], rounds: int, steps: int, warm_up: int
) -> dict[str, list[float]]:
    """Measure the seconds per step of each copy in each round."""
    times: dict[str, list[float]] = {method: [] for method in trainers}
    order = random.Random(0)
    with progress(name, rounds + 1) as begin:
        begin("warm-up")
        for trainer in trainers.values():
            trainer.seconds(warm_up)
        for round_ in range(1, rounds + 1):
            begin(f"round {round_}")
            for method in order.sample(list(trainers), len(trainers)):
                times[method].append(trainers[method].seconds(steps) / steps)
    return times


def _check_phases(trainers: dict[str, Trainer]) -> None:
    """Check that each copy stayed in its phase; otherwise the timings would be meaningless."""
    for name, kind, sparsity in ((_DENSE, "dense", 0.0), (_COMPRESSED, "sparse", SPARSITY)):
        sparsifier = attached_to(trainers[name].model)
        assert sparsifier is not None
        assert sparsifier.phase.kind == kind, f"{name}: in {sparsifier.phase}"
        assert abs(sparsifier.sparsity - sparsity) < 1e-3, f"{name}: sparsity {sparsifier.sparsity}"


def _seconds(work: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, help="default 30, on a GPU 50, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="tiny inputs: a trial, not a measurement")
    parser.add_argument("--threads", type=int, help="CPU threads of torch, where the machine is shared")
    parser.add_argument("--results", type=Path, default=RESULTS / "overhead.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 2 if options.quick else 50 if options.device == "cuda" else 30
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected 1 or more")
    return options


if __name__ == "__main__":
    run(main)
