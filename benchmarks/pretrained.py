"""Pruning a trained net while it is fine-tuned: by magnitude, in Adam's metric and by saliency; AC/DC and GMP.

python -m benchmarks.pretrained --data DIR --seeds 0 1

A net of benchmarks.broad is trained densely for 15 epochs and then pruned in 5 more, by a new optimizer of the same
kind at .3 of the rate. Each row is one fine-tuning: the test score before it and after it. Rows go to
results/pretrained.jsonl as they are measured; runs that are there are not repeated. docs/decompression.md shows them.
"""

import argparse
import copy
import statistics
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch

from benchmarks import broad
from benchmarks.broad_problems import NEED_IMAGES
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment, read

PROBLEMS = ("sort", "mixer", "points", "tabular", "encoder", "vit")  # all under Adam and its kin
VARIANTS = ("default", "magnitude", "saliency", "GMP", "GMP, preconditioned")
_DENSE, _EPOCHS, _RATE = 15, 5, 0.3  # epochs before and of the fine-tuning, and its share of the learning rate
Key = tuple[str, str, float, int]


def train(start: tuple[str, int], wanted: Sequence[tuple[str, float]], data: Path | None) -> list[Row]:
    """Train a problem densely, and return what becomes of it by each variant at each sparsity."""
    (name, seed), rows = start, []
    problem = broad.problem_of(name, data, None)
    torch.manual_seed(seed)
    model = problem.new_model()
    dense = broad.fit(problem, model, problem.new_optimizer(model), None, _DENSE, seed)["score"]
    for variant, sparsity in wanted:
        pruned = copy.deepcopy(model)
        optimizer = problem.new_optimizer(pruned)
        for group in optimizer.param_groups:
            group["lr"] *= _RATE
        method = broad.build(variant, sparsity, _EPOCHS)
        row = {"problem": name, "variant": variant, "sparsity": sparsity, "seed": seed, "dense": dense}
        rows.append(row | broad.fit(problem, pruned, optimizer, method, _EPOCHS, seed + 1000))
    return rows


def key(row: Row) -> Key:
    return row["problem"], row["variant"], row["sparsity"], row["seed"]


def table(rows: Iterable[Row]) -> tuple[str, list[str], list[list[str]], str]:
    """Return a line for each problem and sparsity: the score before pruning, and after it by each variant."""
    rows = list(rows)
    header, cells = ["problem", "steps", "zeros", "dense, before", *VARIANTS], []
    for problem in PROBLEMS:
        for sparsity in sorted({row["sparsity"] for row in rows if row["problem"] == problem}):
            here = [row for row in rows if (row["problem"], row["sparsity"]) == (problem, sparsity)]
            before = _spread(list({row["seed"]: row["dense"] for row in here}.values()))
            after = [_spread([row["score"] for row in here if row["variant"] == name]) for name in VARIANTS]
            cells.append([problem, f"{here[0]['steps']:,}", f"{sparsity:.0%}", before, *after])
    devices, torches, commits = (
        " and ".join(dict.fromkeys(str(row[name]) for row in rows)) for name in ("device_name", "torch", "commit")
    )
    seeds = len({row["seed"] for row in rows})
    note = f"{devices}, torch {torches}, acdc at {commits}; mean ± std over {seeds} seed{'s' * (seeds > 1)}"
    return "Pruning a trained net", header, cells, note


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread}".replace("-", "−")


def main(arguments: Sequence[str] | None = None) -> int:
    title = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrained", description=title)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.8, 0.9])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--data", type=Path, help="folder of CIFAR-10, for mixer and vit")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--results", type=Path, default=RESULTS / "pretrained.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    if options.data is None and (lacking := [name for name in options.problems if name in NEED_IMAGES]):
        parser.error(f"{', '.join(lacking)} need --data; or name other --problems")
    shared, done = environment(torch.device("cpu"), options.commit), {key(row) for row in read(options.results)}
    starts = [(name, seed) for seed in options.seeds for name in options.problems]
    each = [(variant, sparsity) for sparsity in options.sparsities for variant in options.variants]
    wanted = [[(v, s) for v, s in each if (name, v, s, seed) not in done] for name, seed in starts]
    work = [(start, cells) for start, cells in zip(starts, wanted, strict=True) if cells]
    with progress("pretrained", len(work)) as begin, ProcessPoolExecutor(options.jobs) as pool:
        for rows in pool.map(partial(train, data=options.data), *zip(*work, strict=True)) if work else ():
            begin(f"{rows[0]['problem']}, seed {rows[0]['seed']}")
            append(options.results, [{**shared, **row} for row in rows])
    print_table(*table(read(options.results)))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
