"""Dropout in a sparse net: kept as it is, or lowered with the weights that are left; AC/DC and GMP.

python -m benchmarks.dropout --data DIR --seeds 0 1

Nets of benchmarks.broad, with dropout after their hidden layers, and a WRN-10-2 as in the paper's experiments, whose
dropout comes right before a batch norm. Each row is one run: its test score as it ends, and with batch norm's
statistics recomputed where there is one. Rows go to results/dropout.jsonl as they are measured; runs that are there are
not repeated. docs/decompression.md shows them.
"""

import argparse
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

import acdc
from acdc import methods
from acdc.core.method import Method
from acdc.models.wide_resnet import WideResNet
from benchmarks import broad, broad_problems
from benchmarks.broad_problems import NEED_IMAGES, Problem
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment, read

# The method of each column, and what is set of it.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("acdc", {}),
    "kept": ("acdc", {"dropout": "kept"}),
    "GMP, scaled": ("gmp", {"dropout": "scaled"}),
    "GMP": ("gmp", {}),
    "dense": ("dense", {}),
}
RATES = {"tabular": 0.3, "mixer": 0.2, "cnn": 0.2, "vit": 0.1, "dropout": 0.2, "wide": 0.3}  # of each problem's dropout
_AFTER: dict[str, type[nn.Module]] = {"tabular": nn.ReLU, "mixer": nn.GELU, "cnn": nn.ReLU}
Cell = tuple[str, str, float, int, int]


@cache
def problem_of(name: str, data: Path | None) -> Problem:
    """Return a problem of benchmarks.broad whose net has dropout."""
    if name == "wide":
        images = broad_problems.load("residual", data)
        return replace(images, name=name, new_model=lambda: WideResNet(10, 2, 10), new_optimizer=_sgd, shape="steps")
    problem = broad_problems.load(name, data)
    if kind := _AFTER.get(name):
        return replace(problem, new_model=lambda: _with_dropout(problem.new_model(), kind, RATES[name]))
    if name == "vit":
        return replace(problem, new_model=lambda: _at_rate(problem.new_model(), RATES[name]))
    return problem


def _sgd(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9, nesterov=True, weight_decay=5e-4)


def _with_dropout(model: nn.Module, kind: type[nn.Module], rate: float) -> nn.Module:
    """Put dropout after each activation of this kind."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, kind):
                setattr(module, name, nn.Sequential(child, nn.Dropout(rate)))
    return model


def _at_rate(model: nn.Module, rate: float) -> nn.Module:
    """Give the dropout that a transformer has a rate."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
    return model


def train(cell: Cell, data: Path | None) -> Row:
    """Train one variant on one problem, and return what became of it."""
    name, variant, sparsity, epochs, seed = cell
    problem = problem_of(name, data)
    torch.manual_seed(seed)
    model, (method, knobs) = problem.new_model(), VARIANTS[variant]
    built: Method | None = None
    if method != "dense":
        built = methods.build(method, sparsity=sparsity, epochs=epochs, **knobs)
    row = {"problem": name, "variant": variant, "sparsity": sparsity, "epochs": epochs, "seed": seed}
    row |= broad.fit(problem, model, problem.new_optimizer(model), built, epochs, seed)
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        acdc.recalibrate(model, problem.train[0].split(500))
        row["recalibrated"] = problem.score(model)
    return row


def key(row: Row) -> Cell:
    return row["problem"], row["variant"], row["sparsity"], row["epochs"], row["seed"]


def table(rows: Iterable[Row]) -> tuple[str, list[str], list[list[str]], str]:
    """Return a line for each problem, length and sparsity: the score of each variant, and recalibrated if it can be."""
    rows = list(rows)
    header, cells = ["problem", "steps", "zeros", *VARIANTS], []
    for problem in RATES:
        lengths = sorted({(r["epochs"], r["sparsity"]) for r in rows if r["problem"] == problem and r["sparsity"]})
        for epochs, sparsity in lengths:
            here = [r for r in rows if (r["problem"], r["epochs"]) == (problem, epochs)]
            scores = [[r for r in here if r["variant"] == v and r["sparsity"] in (sparsity, 0.0)] for v in VARIANTS]
            cells.append([problem, f"{here[0]['steps']:,}", f"{sparsity:.0%}", *map(_cell, scores)])
    devices, torches, commits = (
        " and ".join(dict.fromkeys(str(row[name]) for row in rows)) for name in ("device_name", "torch", "commit")
    )
    note = (
        f"{devices}, torch {torches}, acdc at {commits}; test accuracy in %, mean ± std over seeds, without ± one "
        "seed; in brackets with batch norm's statistics recomputed"
    )
    return "Dropout in a sparse net", header, cells, note


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return "–"
    text = _spread([row["score"] for row in rows])
    again = [row["recalibrated"] for row in rows if "recalibrated" in row]
    return f"{text} ({statistics.fmean(again):.1f})" if again else text


def _spread(values: Sequence[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}"


def cells_of(options: argparse.Namespace) -> list[Cell]:
    """Return the runs that were asked for; dense training has one for all sparsities."""
    return [
        (name, variant, 0.0 if variant == "dense" else sparsity, epochs, seed)
        for seed in options.seeds
        for epochs in options.epochs
        for name in options.problems
        for variant in options.variants
        for sparsity in (options.sparsities[:1] if variant == "dense" else options.sparsities)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    title: str = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dropout", description=title)
    parser.add_argument("--problems", nargs="+", choices=RATES, default=list(RATES), metavar="PROBLEM")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9, 0.95])
    parser.add_argument("--epochs", nargs="+", type=int, default=[12, 30])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10, for mixer, cnn, vit and wide")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--results", type=Path, default=RESULTS / "dropout.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if options.data is None and (lacking := [n for n in options.problems if n in (*NEED_IMAGES, "wide")]):
        parser.error(f"{', '.join(lacking)} need --data; or name other --problems")
    shared, done = environment(torch.device("cpu"), options.commit), {key(row) for row in read(options.results)}
    wanted = [cell for cell in cells_of(options) if cell not in done]
    with progress("dropout", len(wanted)) as begin, ProcessPoolExecutor(options.jobs) as pool:
        for future in as_completed([pool.submit(train, cell, options.data) for cell in wanted]):
            row = future.result()
            begin(f"{row['problem']}, {row['variant']}")
            append(options.results, [{**shared, **row}])
    print_table(*table(read(options.results)))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
