"""The dense twin after its fine-tuning: of the chosen phases, with and without a late dense phase, and of the paper's.

python -m benchmarks.twins --data DIR --seeds 0 1 2

Each row is one run: test accuracy of its sparse model, of the twin as it was kept, and of the twin after dense training
over the rest of the run, with the training FLOPs that each of them cost by the paper's rule. Rows go to
results/twins.jsonl as they are measured; runs that are there are not repeated. docs/decompression.md shows them.
"""

import argparse
import statistics
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc.core.context import SparsityWarning
from acdc.flops.counting import weight_flops
from acdc.flops.training import training_flops
from acdc.flops.uses import forward_uses
from benchmarks import small_problems
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment, read
from benchmarks.small_problems import Problem

VARIANTS = ("default", "default, twin late", "paper", "dense")
_EPOCHS = {"digits": 40, "mlp": 40, "cifar": 30}


def build(variant: str, sparsity: float, epochs: int) -> acdc.ACDC | None:
    if variant == "dense":
        return None
    if variant == "paper":
        return acdc.ACDC.paper(sparsity, epochs=epochs)
    return acdc.ACDC(sparsity=sparsity, epochs=epochs, twin="late" if variant.endswith("late") else "last")


def train(problem: Problem, variant: str, sparsity: float, epochs: int, seed: int) -> Row:
    """Train one variant and fine-tune its twin, and return what became of both."""
    model, each = problem.new_model(seed), problem.steps
    optimizer, method = problem.new_optimizer(model), build(variant, sparsity, epochs)
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=each, quiet=True) if method else None
    uses, generator = forward_uses(model, problem.train[0][:1]), torch.Generator().manual_seed(seed)
    weights = {weight.name: weight.param for weight in acdc.find_prunable(model).weights}
    base, costs = optimizer.param_groups[0]["lr"], list[tuple[str, int]]()

    def train_epoch(epoch: int) -> None:
        for step, (images, labels) in enumerate(problem.batches(generator), epoch * each):
            for group in optimizer.param_groups:
                group["lr"] = base * small_problems.rate(step, epochs * each)
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    for epoch in range(epochs):
        train_epoch(epoch)
        counts = {name: int(param.count_nonzero()) for name, param in weights.items()}
        costs.append((sparsifier.phase.kind if sparsifier else "dense", weight_flops(counts, uses)))
    dense = weight_flops({name: param.numel() for name, param in weights.items()}, uses)
    row: Row = {
        **{"problem": problem.name, "variant": variant, "epochs": epochs, "seed": seed},
        "sparsity": sparsity if method else 0.0,
        "accuracy": small_problems.evaluate(model, problem)[0],
        "training": training_flops(costs, dense) / (3 * dense * epochs),
        "config": sparsifier.method.config() if sparsifier else None,
    }
    if sparsifier is None:
        return row
    result = sparsifier.finish()
    sparsifier.detach()
    left = acdc.finetune_dense(result, model, optimizer)
    begin = left.start // each
    twin = small_problems.evaluate(model, problem)[0]
    for epoch in range(begin, epochs):
        train_epoch(epoch)
    spent = training_flops(costs[:begin] + [("dense", dense)] * (epochs - begin), dense)
    return row | {
        "twin": twin,
        "twin_epoch": begin,
        "finetuned": small_problems.evaluate(model, problem)[0],
        "finetuned_training": spent / (3 * dense * epochs),
    }


def key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("problem", "variant", "sparsity", "epochs", "seed"))


def table(rows: Iterable[Row]) -> tuple[str, list[str], list[list[str]], str]:
    """Return a line for each problem, sparsity and variant: mean ± deviation of accuracies, and what they cost."""
    rows = list(rows)
    header = ["problem", "zeros", "phases", "sparse model", "twin, at epoch", "twin, fine-tuned", "dense training"]
    cells, sparse_rows = [], [row for row in rows if row["sparsity"]]
    for problem, epochs, sparsity in sorted({(r["problem"], r["epochs"], r["sparsity"]) for r in sparse_rows}):
        here = [row for row in rows if (row["problem"], row["epochs"]) == (problem, epochs)]
        dense = _spread([row["accuracy"] for row in here if row["variant"] == "dense"])
        for name in VARIANTS:
            same = [row for row in here if row["variant"] == name and row["sparsity"] == sparsity]
            if same:
                twin = f"{_spread([row['twin'] for row in same])}, {same[0]['twin_epoch']} of {epochs}"
                sparse, tuned = _cell(same, "accuracy", "training"), _cell(same, "finetuned", "finetuned_training")
                cells.append([problem, f"{sparsity:.0%}", name, sparse, twin, tuned, dense])
    devices, torches, commits = (
        " and ".join(dict.fromkeys(str(row[name]) for row in rows)) for name in ("device_name", "torch", "commit")
    )
    seeds = len({row["seed"] for row in rows})
    note = (
        f"{devices}, torch {torches}, acdc at {commits}; test accuracy in %, mean ± std over "
        f"{seeds} seed{'s' * (seeds > 1)}; in brackets training FLOPs, of a fine-tuned twin those up to its epoch and "
        "of its fine-tuning"
    )
    return "The dense twin, fine-tuned", header, cells, note


def _cell(rows: list[Row], accuracy: str, cost: str) -> str:
    return f"{_spread([row[accuracy] for row in rows])} ({statistics.fmean(row[cost] for row in rows):.2f}x)"


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.fmean(values):.2f}" + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twins", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", nargs="+", choices=small_problems.NAMES, default=list(small_problems.NAMES))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9])
    parser.add_argument("--epochs", type=int, help="of every problem: 40, and 30 of cifar, unless given")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", help="folder of CIFAR-10, for cifar")
    parser.add_argument("--results", type=Path, default=RESULTS / "twins.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if "cifar" in options.problems and options.data is None:
        parser.error("cifar needs --data DIR, where CIFAR-10 lies; or name other --problems")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SparsityWarning)
    shared, done = environment(torch.device("cpu"), options.commit), {key(row) for row in read(options.results)}
    wanted = dict[tuple[str, str, float, int, int], None]()
    for seed in options.seeds:
        for problem in options.problems:
            for sparsity in options.sparsities:
                for variant in options.variants:
                    epochs = options.epochs or _EPOCHS[problem]
                    wanted[problem, variant, 0.0 if variant == "dense" else sparsity, epochs, seed] = None
    missing = [cell for cell in wanted if cell not in done]
    problems = {name: small_problems.load(name, options.data) for name in options.problems}
    with progress("twins", len(missing)) as begin:
        for problem, variant, sparsity, epochs, seed in missing:
            begin(f"{problem}, {variant}, seed {seed}")
            append(options.results, [{**shared, **train(problems[problem], variant, sparsity, epochs, seed)}])
    print_table(*table(read(options.results)))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
