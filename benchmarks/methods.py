"""The cost of methods: an update of RigL and SET against a dense training step, and every method's steps in between.

Updates are timed on the weights of ResNet50, with random gradients in place, RigL's look at them included; the dense
step beside them is a plain copy's on the same machine in the same round. Between updates, a plain copy and one with the
method attached, in the sparse phase it spends its time in, take turns on the same batch. Ratios are within rounds.
"""

import argparse
import copy
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import acdc
from acdc import methods
from acdc.core.method import Method
from acdc.methods.dsd import EndsDense
from benchmarks.console import print_table, progress, run, say
from benchmarks.overhead import NETS, SPARSITY, Net, Trainer
from benchmarks.record import RESULTS, Row, append, environment
from benchmarks.tables import methods_table

UPDATES = ("rigl", "set")
_NEVER, _LONG = "1000000st", "2000000st"
_SPARSE = acdc.Schedule.from_phases([("sparse", _LONG)])
_SOON = acdc.Schedule.from_phases([("dense", "2st"), ("sparse", _LONG)])
_ENDS_DENSE = EndsDense.from_phases([("dense", "1st"), ("sparse", _LONG), ("dense", "1st")])
# Knobs that bring a method into its sparse phase at once and leave it there without an update.
KNOBS: dict[str, dict[str, Any]] = {
    "acdc": {"schedule": _SOON},
    "one_shot": {"schedule": _SOON},
    "gmp": {"schedule": _SOON, "initial": SPARSITY, "every": _NEVER},
    "dsd": {"schedule": _ENDS_DENSE},
    "jin": {"schedule": _ENDS_DENSE},
    "lottery": {"schedule": _SOON, "rounds": 2, "rewind": "1st"},
    "static": {"schedule": _SPARSE},
    "set": {"schedule": _SPARSE, "every": _NEVER},
    "deepr": {"schedule": _SPARSE, "every": "100st"},
    "snfs": {"schedule": _SPARSE, "every": _NEVER},
    "rigl": {"schedule": _SPARSE, "every": _NEVER},
    "top_kast": {"schedule": _SPARSE, "every": _NEVER},
    "str": {"schedule": _SPARSE, "sparsity": None},
    "dpf": {"schedule": _SOON, "initial": SPARSITY, "every": _NEVER},
    "sr_ste": {"schedule": _SPARSE, "sparsity": None},
    "sparse_vd": {"schedule": _SPARSE, "sparsity": None},
    "quantised": {"schedule": _SOON, "sparsity": None},
}
_WARM_UP = 3  # steps: past every dense phase above


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    shared = {**environment(torch.device("cpu"), options.commit), "benchmark": "methods", "quick": options.quick}
    shared |= {"sparsity": SPARSITY, "n": options.rounds}
    say(
        f"methods: {shared['device_name']}, {shared['threads']} threads, torch {shared['torch']}, load {shared['load']}"
    )
    rows: list[Row] = []
    if "updates" in options.parts:
        rows += measure_updates(options.rounds, quick=options.quick)
    if "between" in options.parts:
        for net in options.nets:
            for name in options.methods:
                rows.append(measure_between(net, name, options.rounds, quick=options.quick))
    rows = [{**shared, **row} for row in rows]
    append(options.results, rows)
    print_table(*methods_table(rows))
    say(f"written to {options.results}")
    return 0


def measure_updates(rounds: int, *, quick: bool = False) -> list[Row]:
    """Measure the seconds of an update of each method in UPDATES on ResNet50, and of a dense step."""
    net = NETS["resnet50"]
    plain = _trainer(net, quick)
    updated = {}
    for name in UPDATES:
        method = methods.build(name, sparsity=SPARSITY, schedule=_SPARSE, every=_NEVER)
        updated[name] = (trainer := _copy(plain, net), acdc.attach(trainer.model, trainer.optimizer, method))
        trainer.step()
    plain.step()
    work: dict[str, Callable[[], Any]] = {"plain": plain.step}
    work |= {name: _update(sparsifier.context) for name, (_, sparsifier) in updated.items()}

    def prepare() -> None:
        for trainer, _ in updated.values():
            for param in trainer.model.parameters():
                param.grad = torch.randn_like(param)

    times = _in_turns("updates", work, rounds, prepare)
    size = updated[UPDATES[0]][1].layers.size
    return [_row("update", "resnet50", name, size, net, quick, times) for name in UPDATES]


def measure_between(net_name: str, name: str, rounds: int, *, quick: bool = False) -> Row:
    """Measure the seconds of a step with a method attached, between its updates, and of a plain one."""
    net = NETS[net_name]
    plain = _trainer(net, quick)
    mine = _copy(plain, net)
    sparsifier = acdc.attach(mine.model, mine.optimizer, _build(name))
    for _ in range(_WARM_UP):
        mine.step()
        plain.step()
    times = _in_turns(f"{net_name}, {name}", {"plain": plain.step, name: mine.step}, rounds)
    assert sparsifier.phase.kind == "sparse", f"{name}: in {sparsifier.phase}"
    return _row("between", net_name, name, sparsifier.layers.size, net, quick, times)


def _build(name: str) -> Method:
    knobs = KNOBS.get(name, {"schedule": _SPARSE})
    return methods.build(name, **{"sparsity": SPARSITY, **knobs})


def _update(sparsifier: acdc.Sparsifier) -> Callable[[], None]:
    @torch.no_grad()
    def update() -> None:
        if sparsifier.method.name == "rigl":
            sparsifier.method.observe(sparsifier.context)
        sparsifier.method.update(sparsifier.context)

    return update


def _trainer(net: Net, quick: bool) -> Trainer:
    torch.manual_seed(0)
    model = net.tiny() if quick else net.build()
    inputs, targets = net.batch(net.quick if quick else net.cpu, torch.device("cpu"))
    return Trainer(model, net.optimizer(model), inputs, targets, autocast=False)


def _copy(trainer: Trainer, net: Net) -> Trainer:
    model = copy.deepcopy(trainer.model)
    return Trainer(model, net.optimizer(model), trainer.inputs, trainer.targets, autocast=False)


def _in_turns(
    title: str, work: dict[str, Callable[[], Any]], rounds: int, prepare: Callable[[], None] = lambda: None
) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in work}
    order = random.Random(0)
    with progress(title, rounds) as begin:
        for round_ in range(1, rounds + 1):
            begin(f"round {round_}")
            prepare()
            for name in order.sample(list(work), len(work)):
                start = time.perf_counter()
                work[name]()
                times[name].append(time.perf_counter() - start)
    return times


def _row(part: str, net_name: str, name: str, size: int, net: Net, quick: bool, times: dict[str, list[float]]) -> Row:
    ratios = [mine / plain for mine, plain in zip(times[name], times["plain"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    shape = net.quick if quick else net.cpu
    return {
        "part": part,
        "net": net_name,
        "method": name,
        "prunable": size,
        "batch": f"batch {shape[0]} of {' x '.join(map(str, shape[1:]))}",
        "seconds": times[name],
        "plain_seconds": times["plain"],
        "ratios": ratios,
        "median": statistics.median(ratios),
        "quartiles": (low, high),
    }


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.methods", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=["updates", "between"], default=["updates", "between"])
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=["resnet20"], help="for the steps between")
    parser.add_argument("--methods", nargs="+", choices=methods.names(), default=methods.names())
    parser.add_argument("--rounds", type=int, help="default 20, with --quick 2")
    parser.add_argument("--quick", action="store_true", help="tiny nets and inputs: a trial, not a measurement")
    parser.add_argument("--threads", type=int, help="CPU threads of torch, where the machine is shared")
    parser.add_argument("--results", type=Path, default=RESULTS / "methods.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds if options.rounds is not None else 2 if options.quick else 20
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: expected 1 or more")
    return options


if __name__ == "__main__":
    run(main)
