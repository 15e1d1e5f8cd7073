"""Remedies against the shock of a decompression, alone and together, on problems that a CPU trains in seconds.

python -m benchmarks.remedies --problems digits mlp --sparsities 0.95 0.98 --epochs 12 --seeds 0 1 2

Each row is one run: test accuracy as trained and with batch norm's statistics taken anew, and training FLOPs by the
paper's rule. Rows go to results/remedies.jsonl as they are measured; runs that are there are not repeated.
"""

import argparse
import statistics
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch.nn import functional as F  # noqa: N812

import acdc
from acdc import methods
from acdc.core.context import MethodContext, SparsityWarning
from acdc.core.method import Method
from acdc.flops.counting import weight_flops
from acdc.flops.training import training_flops
from acdc.flops.uses import forward_uses
from acdc.schedule import Phase
from benchmarks import small_problems
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, Row, append, environment, read
from benchmarks.small_problems import Problem

# Alone: the paper's phases with one thing added. Together: the default with one thing changed.
ALONE: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper + ramp": {"ramp": 0.2},
    "paper + ramp all through": {"ramp": 1.0},
    "paper + momentum kept": {"reset": "nothing"},
    "paper + ramp, momentum kept": {"ramp": 0.2, "reset": "nothing"},
    "paper + own timesteps": {"own_timesteps": True},
    "paper + norms restored": {"restore": True},
    "paper + rate rewarmed": {"rewarm": 1.0},
    "paper + gradual": {"gradual": True},
    "paper + rise": {"rise": 0.6},
    "paper + revive": {"revive": True},
    "no late decompressions": {"early": True, "rise": 0.0, "ramp": 0.0, "reset": "momentum", "criterion": "magnitude"},
}
TOGETHER: dict[str, dict[str, Any]] = {
    "default": {},
    "default, magnitude": {"criterion": "magnitude"},  # the same under SGD
    "default, no floor": {"floor": 0.0},  # as in longer runs
    "default, no cycles": {"cycles": 0},
    "default, at once": {"rise": 0.0},
    "default, rise by 75 %": {"rise": 0.75},  # as in longer runs
    "default, no ramp": {"ramp": 0.0},
    "default, ramp all through": {"ramp": 1.0},
    "default, momentum reset": {"reset": "momentum"},
    "default, neither": {"ramp": 0.0, "reset": "momentum"},
    "default + own timesteps": {"own_timesteps": True},
    "default + norms restored": {"restore": True},
    "default + rate rewarmed": {"rewarm": 0.5},
    "default + revive": {"revive": True},
}
OTHERS = ("dense", "gmp", "rigl", "static")
VARIANTS = (*ALONE, *TOGETHER, *OTHERS)


@dataclass(frozen=True, kw_only=True)
class RestoresNorms(acdc.ACDC):
    """Gives every filter the norm back that it had before the compression, as a dense phase begins.

    Where batch norm follows, that changes nothing of the function, and makes the next steps turn the filter less. It
    did not help (docs/decompression.md), and is not a knob of ACDC.
    """

    name: ClassVar[str] = "acdc"

    def enter(self, context: MethodContext, phase: Phase) -> None:
        weights = [weight for weight in context.layers.weights if weight.param.ndim == 4]
        if phase.kind == "sparse":
            context.memory["norms"] = {w.name: w.param.detach().flatten(1).norm(dim=1) for w in weights}
            super().enter(context, phase)
            return
        super().enter(context, phase)
        for weight in weights:
            filters = weight.param.detach().flatten(1)
            now = filters.norm(dim=1)
            ratio = torch.where(now > 0, context.memory["norms"][weight.name] / now.clamp_min(1e-12), 1.0)
            filters.mul_(ratio[:, None])

    def writes_weights(self, phase: Phase) -> bool:
        return True


def build(variant: str, sparsity: float, epochs: int) -> tuple[Method | None, float]:
    """Return a variant's method, and the epochs over which the rate is warmed up anew after each transition."""
    if variant in OTHERS:
        if variant == "dense":
            return None, 0.0
        return methods.build(
            variant, sparsity=sparsity, epochs=epochs, **({"every": "10st"} if variant == "rigl" else {})
        ), 0.0
    knobs = {**ALONE.get(variant, {}), **TOGETHER.get(variant, {})}
    rewarm, restore, early = knobs.pop("rewarm", 0.0), knobs.pop("restore", False), knobs.pop("early", False)
    kind = RestoresNorms if restore else acdc.ACDC
    if variant in ALONE and not early:
        return kind.paper(sparsity, epochs=epochs, **knobs), rewarm
    return kind(sparsity=sparsity, epochs=epochs, **knobs), rewarm


def train(problem: Problem, variant: str, sparsity: float, epochs: int, seed: int) -> Row:
    """Train one variant, and return what became of it."""
    torch.manual_seed(seed)
    model, each = problem.new_model(seed), problem.steps
    optimizer, (method, rewarm) = problem.new_optimizer(model), build(variant, sparsity, epochs)
    sparsifier = acdc.attach(model, optimizer, method, steps_per_epoch=each, quiet=True) if method else None
    method = sparsifier.method if sparsifier else None
    starts = [start for start, _ in method.schedule.starts(each)][1:] if method else []
    uses, generator = forward_uses(model, problem.train[0][:1]), torch.Generator().manual_seed(seed)
    weights = {weight.name: weight.param for weight in acdc.find_prunable(model).weights}
    base, costs, step = optimizer.param_groups[0]["lr"], [], 0
    for _ in range(epochs):
        for images, labels in problem.batches(generator):
            began = max((start for start in starts if start <= step), default=None)
            again = min(1.0, (step - began + 1) / (rewarm * each)) if began is not None and rewarm else 1.0
            for group in optimizer.param_groups:
                group["lr"] = base * small_problems.rate(step, epochs * each) * again
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
            step += 1
        counts = {name: int(param.count_nonzero()) for name, param in weights.items()}
        costs.append((sparsifier.phase.kind if sparsifier else "dense", weight_flops(counts, uses)))
    zeros = sparsifier.finish().sparsity if sparsifier else 0.0
    accuracy, loss = small_problems.evaluate(model, problem)
    anew = small_problems.recalibrate(model, problem)
    dense = weight_flops({name: param.numel() for name, param in weights.items()}, uses)
    total = training_flops(costs, dense, sparse=method.sparse_flops if method else None)
    return {
        "problem": problem.name,
        "variant": variant,
        "sparsity": sparsity if method else 0.0,
        "epochs": epochs,
        "seed": seed,
        "steps": step,
        "accuracy": accuracy,
        "loss": loss,
        "recalibrated": small_problems.evaluate(model, problem)[0] if anew else None,
        "zeros": zeros,
        "training": total / (3 * dense * epochs),
        "config": method.config() if method else None,
    }


def key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("problem", "variant", "sparsity", "epochs", "seed"))


def table(rows: Iterable[Row]) -> tuple[str, list[str], list[list[str]], str]:
    """Return mean ± deviation of test accuracy for each variant, a column for each problem, length and sparsity."""
    rows = list(rows)
    columns = sorted({(r["problem"], r["epochs"], r["sparsity"]) for r in rows if r["sparsity"]})
    names = [name for name in VARIANTS if any(r["variant"] == name for r in rows)]
    cells = []
    for name in names:
        line = [name]
        for problem, epochs, sparsity in columns:
            same = [r for r in rows if (r["problem"], r["epochs"], r["variant"]) == (problem, epochs, name)]
            found = [r for r in same if r["sparsity"] == (sparsity if name != "dense" else 0.0)]
            line.append(_cell(found))
        cells.append(line)
    header = ["test accuracy, % (training FLOPs)"]
    several = len({problem for problem, _, _ in columns}) > 1
    header += [f"{f'{problem}, ' * several}{epochs} epochs, {sparsity:.0%}" for problem, epochs, sparsity in columns]
    first, commits = rows[-1], " and ".join(dict.fromkeys(str(row["commit"]) for row in rows))
    note = (
        f"{first['device_name']}, torch {first['torch']}, acdc at {commits}; mean ± std over seeds, without ± one seed"
    )
    return ", ".join(dict.fromkeys(row["problem"] for row in rows)), header, cells, note


def _cell(rows: list[Row]) -> str:
    if not rows:
        return "–"
    accuracies, cost = [row["accuracy"] for row in rows], statistics.fmean(row["training"] for row in rows)
    spread = f" ± {statistics.stdev(accuracies):.1f}" if len(rows) > 1 else ""
    return f"{statistics.fmean(accuracies):.1f}{spread} ({cost:.2f}x)"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.remedies", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--problems", nargs="+", choices=small_problems.NAMES, default=["digits", "mlp"])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--sparsities", nargs="+", type=float, default=[0.9, 0.95, 0.98])
    parser.add_argument("--epochs", nargs="+", type=int, default=[12])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", help="folder of CIFAR-10, for cifar")
    parser.add_argument("--results", type=Path, default=RESULTS / "remedies.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SparsityWarning)
    shared, before = environment(torch.device("cpu"), options.commit), read(options.results)
    done, wanted = {key(row) for row in before}, list[tuple[str, str, float, int, int]]()
    for seed in options.seeds:
        for problem in options.problems:
            for epochs in options.epochs:
                for sparsity in options.sparsities:
                    for variant in options.variants:
                        cell = (problem, variant, 0.0 if variant == "dense" else sparsity, epochs, seed)
                        if cell not in done and cell not in wanted:
                            wanted.append(cell)
    problems = {name: small_problems.load(name, options.data) for name in options.problems}
    with progress("remedies", len(wanted)) as begin:
        for problem, variant, sparsity, epochs, seed in wanted:
            begin(f"{problem}, {variant}, {sparsity:.0%}, {epochs} epochs, seed {seed}")
            append(options.results, [{**shared, **train(problems[problem], variant, sparsity, epochs, seed)}])
    print_table(*table(read(options.results)))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
