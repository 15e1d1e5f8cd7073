"""The default beside its rivals on small problems of many kinds, nothing set but sparsity and epochs.

python -m benchmarks.broad --data DIR --text FILE --epochs 5 15 --sparsities 0.9 0.95 --seeds 0 1 2

Each row is one run: its score on the test data as it ends, and its training FLOPs by the paper's rule. Rows go to
results/broad.jsonl as they are measured; runs that are there are not repeated. docs/methods-compared.md shows them.
"""

import argparse
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

import acdc
from acdc import methods
from acdc.core.context import SparsityWarning
from acdc.core.method import Method
from acdc.flops.counting import weight_flops
from acdc.flops.training import training_flops
from acdc.flops.uses import forward_uses
from benchmarks import broad_problems
from benchmarks.broad_problems import EXPLORED, FRESH, HELD_OUT, NEED_IMAGES, Problem
from benchmarks.console import progress, run, say
from benchmarks.record import RESULTS, Row, append, environment, read

# The method of each column, and what is set of it.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("acdc", {}),
    "no floor": ("acdc", {"floor": 0.0}),
    "one rise": ("acdc", {"late_rise": 0.0}),
    "magnitude": ("acdc", {"criterion": "magnitude"}),
    "saliency": ("acdc", {"criterion": "saliency"}),
    "GMP": ("gmp", {}),
    "GMP, floor": ("gmp", {"floor": 0.75}),
    "GMP, preconditioned": ("gmp", {"criterion": "preconditioned"}),
    "RigL": ("rigl", {"every": "20st"}),  # its 100 leave few updates in runs this short
    "Top-KAST": ("top_kast", {}),
    "dense": ("dense", {}),
}
_RIVALS = ("GMP", "RigL", "Top-KAST")  # as they come; the others explain
Cell = tuple[str, str, float, int, int]


def build(variant: str, sparsity: float, epochs: int) -> Method | None:
    name, knobs = VARIANTS[variant]
    return None if name == "dense" else methods.build(name, sparsity=sparsity, epochs=epochs, **knobs)


@cache
def problem_of(name: str, data: Path | None, text: Path | None) -> Problem:
    return broad_problems.load(name, data, text)


def train(cell: Cell, data: Path | None, text: Path | None) -> Row:
    """Train one variant on one problem, and return what became of it."""
    name, variant, sparsity, epochs, seed = cell
    problem = problem_of(name, data, text)
    torch.manual_seed(seed)
    model, method = problem.new_model(), build(variant, sparsity, epochs)
    row = {"problem": name, "variant": variant, "sparsity": sparsity if method else 0.0, "epochs": epochs, "seed": seed}
    return row | fit(problem, model, problem.new_optimizer(model), method, epochs, seed)


def fit(problem: Problem, model: nn.Module, optimizer: Optimizer, method: Method | None, epochs: int, seed: int) -> Row:
    """Train a model, and return its score, its zeros and what its training cost."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SparsityWarning)
    each = problem.steps
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=each, quiet=True) if method else None
    method = sparsifier.method if sparsifier else None
    uses, generator = forward_uses(model, problem.train[0][:1]), torch.Generator().manual_seed(seed)
    weights = {weight.name: weight.param for weight in acdc.find_prunable(model).weights}
    rate = partial(broad_problems.rate, problem.shape, total=epochs * each)
    scheduler = None if problem.shape == "constant" else torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    costs = []
    for _ in range(epochs):
        for inputs, targets in problem.batches(generator):
            optimizer.zero_grad()
            problem.loss(model(inputs), targets).backward()
            optimizer.step()
            if scheduler:
                scheduler.step()
        counts = {name: int(param.count_nonzero()) for name, param in weights.items()}
        costs.append((sparsifier.phase.kind if sparsifier else "dense", weight_flops(counts, uses)))
    zeros = sparsifier.finish().sparsity if sparsifier else 0.0
    dense = weight_flops({name: param.numel() for name, param in weights.items()}, uses)
    flops = training_flops(costs, dense, sparse=method.sparse_flops if method else None)
    return {
        "steps": epochs * each,
        "score": problem.score(model),
        "zeros": zeros,
        "training": flops / (3 * dense * epochs),
        "config": method.config() if method else None,
    }


def key(row: Row) -> Cell:
    return row["problem"], row["variant"], row["sparsity"], row["epochs"], row["seed"]


# The table: a row for each problem, length and sparsity


def block(rows: Sequence[Row]) -> str:
    """Return the table in markdown, with how often the default is ahead, and where it was measured."""
    if not rows:
        return "\nNothing is kept yet.\n"
    names = [name for name in VARIANTS if any(row["variant"] == name for row in rows)]
    lines = [
        f"| problem | steps | zeros | {' | '.join(names)} | default − best rival |",
        "|---|---|---|" + "---|" * (len(names) + 1),
    ]
    gaps = dict[tuple[str, int, float], float]()
    for problem in (*EXPLORED, *HELD_OUT, *FRESH):
        for epochs, sparsity in sorted({(r["epochs"], r["sparsity"]) for r in rows if r["sparsity"]}):
            ahead = {name: _ahead(rows, (problem, epochs, sparsity), name) for name in _RIVALS}
            if not (known := [(lead, name) for name, lead in ahead.items() if lead is not None]):
                continue
            gaps[problem, epochs, sparsity], best = min(known)
            steps = next(r["steps"] for r in rows if (r["problem"], r["epochs"]) == (problem, epochs))
            scores = {name: _scores(rows, problem, epochs, sparsity, name) for name in names}
            cells = [_cell(scores[name], len(scores["default"])) for name in names]
            gap = f"{_signed(gaps[problem, epochs, sparsity])} ({best})"
            lines.append(f"| {problem} | {steps:,} | {sparsity:.0%} | {' | '.join(cells)} | {gap} |")
    costs = [f"{name} {_cost(rows, name)}" for name in names if name != "dense"]
    cpus, torches, commits = (
        " and ".join(dict.fromkeys(str(row[name]) for row in rows)) for name in ("device_name", "torch", "commit")
    )
    seeds = sorted({len(_scores(rows, *cell, "default")) for cell in gaps})
    note = (
        f"{cpus}, torch {torches}, acdc at {commits}; mean ± std over {' or '.join(map(str, seeds))} seeds, or as "
        "many as the brackets say; compared over the seeds that both have. "
        f"Training FLOPs on average, each over its own rows: {', '.join(costs)}."
    )
    groups = {"explored": EXPLORED, "held out": HELD_OUT, "fresh": FRESH}
    standings = [_standing(title, problems, gaps, rows) for title, problems in groups.items()]
    return "\n".join([*lines, "", *standings, "", f"<sub>{note}</sub>"]) + "\n"


def _standing(
    title: str, problems: Iterable[str], gaps: dict[tuple[str, int, float], float], rows: Sequence[Row]
) -> str:
    """Say in a line how the default stands on these problems."""
    cells = [cell for cell in gaps if cell[0] in problems]
    if not cells:
        return f"- **{title.capitalize()}**: not measured."
    ahead = {
        name: [lead for cell in cells if (lead := _ahead(rows, cell, name)) is not None]
        for name in ("no floor", "one rise", "magnitude", "saliency", *_RIVALS)
    }
    parts = [f"{name} in {sum(d > 0 for d in ds)} of {len(ds)}" for name, ds in ahead.items() if ds]
    best, where = [gaps[cell] for cell in cells], ", ".join(dict.fromkeys(cell[0] for cell in cells))
    return (
        f"- **{title.capitalize()}** ({where}): the default is above {', '.join(parts)} rows, above the best of the "
        f"rivals in {sum(d > 0 for d in best)}, lowest {_signed(min(best))}."
    )


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _ahead(rows: Sequence[Row], cell: tuple[str, int, float], variant: str) -> float | None:
    """Return by how much the default is ahead, over the seeds that both have; None if there are none."""
    ours, theirs = _scores(rows, *cell, "default"), _scores(rows, *cell, variant)
    leads = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    return statistics.fmean(leads) if leads else None


def _scores(rows: Sequence[Row], problem: str, epochs: int, sparsity: float, variant: str) -> dict[int, float]:
    wanted = (problem, variant, 0.0 if variant == "dense" else sparsity, epochs)
    return {row["seed"]: row["score"] for row in rows if key(row)[:4] == wanted}


def _cell(scores: dict[int, float], usual: int) -> str:
    """Return mean and deviation, and how many seeds they are over where that is not the usual number."""
    if not scores:
        return "–"
    spread = f" ± {statistics.stdev(scores.values()):.1f}" if len(scores) > 1 else ""
    seeds = f" ({len(scores)})" if len(scores) != usual else ""
    return f"{statistics.fmean(scores.values()):.1f}{spread}{seeds}".replace("-", "−")


def _cost(rows: Sequence[Row], name: str) -> str:
    return f"{statistics.fmean(row['training'] for row in rows if row['variant'] == name):.2f}x"


def _rows(wanted: Iterable[Cell], data: Path | None, text: Path | None, jobs: int) -> Iterator[Row]:
    """Train all cells and yield their rows as they end."""
    if jobs == 1:
        yield from (train(cell, data, text) for cell in wanted)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(train, cell, data, text) for cell in wanted]):
            yield future.result()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broad", description=(__doc__ or "").partition("\n")[0])
    every = (*EXPLORED, *HELD_OUT, *FRESH)
    parser.add_argument("--problems", nargs="+", choices=every, default=list(every), metavar="PROBLEM")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9, 0.95])
    parser.add_argument("--epochs", nargs="+", type=int, default=[5, 15])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10, for " + ", ".join(NEED_IMAGES))
    parser.add_argument("--text", type=Path, help="a text of 2 MB or more, for letters")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--results", type=Path, default=RESULTS / "broad.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lacking = [name for name in options.problems if name in NEED_IMAGES and options.data is None]
    lacking += ["letters"] if "letters" in options.problems and options.text is None else []
    if lacking:
        parser.error(f"{', '.join(lacking)} need --data or --text; or name other --problems")
    shared, done = environment(torch.device("cpu"), options.commit), {key(row) for row in read(options.results)}
    wanted = dict[Cell, None]()
    for seed in options.seeds:
        for problem in options.problems:
            for epochs in options.epochs:
                for sparsity in options.sparsities:
                    for variant in options.variants:
                        cell = (problem, variant, 0.0 if variant == "dense" else sparsity, epochs, seed)
                        if cell not in done:
                            wanted[cell] = None
    with progress("broad", len(wanted)) as begin:
        for row in _rows(wanted, options.data, options.text, options.jobs):
            begin(f"{row['problem']}, {row['variant']}, {row['sparsity']:.0%}, {row['epochs']} epochs")
            append(options.results, [{**shared, **row}])
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
