"""What happens in the first 200 steps after a decompression, by measurement.

python -m benchmarks.shock        train, write results/shock.jsonl and draw docs/shock-*.svg
python -m benchmarks.shock --draw draw what results/shock.jsonl holds

A net trains densely at a constant learning rate, is compressed, trains on, and is decompressed as in the paper or with
one remedy. Before every step these are measured: the loss of the batch; the loss of 250 fixed images with the batch's
own statistics ("probe") and with the running ones ("evaluated"); and around the step, of survivors and of weights that
come back, the norms of gradient, step and momentum, the filters' norm and the angle by which a step turns them.
"""

import argparse
import copy
import math
import statistics
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer

import acdc
from acdc.core.context import SparsityWarning
from acdc.core.hooks import FIRST_MOMENTS
from benchmarks import small_problems
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, ROOT, Row, append, environment, read
from benchmarks.remedies import RestoresNorms
from benchmarks.small_problems import Problem

STEPS = 200  # after the decompression, in which the phase lasts
_WARM_UP, _SPARSE, _BEFORE = 200, 150, 20  # steps: dense, compressed, and measured before the decompression
_CLOSELY, _EVERY = 40, 4  # every step is measured up to the first, later ones this far apart
_PROBE = 250
RATES = {"high": 1.0, "low": 0.1}  # of the problem's highest
REMEDIES: dict[str, dict[str, Any]] = {
    "paper": {},
    "momentum kept": {"reset": "nothing"},
    "ramp": {"ramp": 1.0},
    "ramp, momentum kept": {"ramp": 1.0, "reset": "nothing"},
    "own timesteps": {"own_timesteps": True},
    "norms restored": {},
}


def measure(problem: Problem, rate: str, remedies: list[str], sparsity: float, seed: int) -> list[Row]:
    """Train up to the first compression once, and from there with each remedy; return a row for each measured step."""
    torch.manual_seed(seed)
    model = problem.new_model(seed)
    optimizer = _slower(problem.new_optimizer(model), rate)
    for images, labels in _endless(problem, seed, _WARM_UP):
        _train(model, optimizer, images, labels)
    trained, state, rows = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict()), list[Row]()
    for remedy in remedies:
        model.load_state_dict(trained)
        optimizer = problem.new_optimizer(model)
        optimizer.load_state_dict(copy.deepcopy(state))
        shared = {"problem": problem.name, "rate": rate, "remedy": remedy, "sparsity": sparsity, "seed": seed}
        rows += [{**shared, **row} for row in _decompress(problem, model, optimizer, remedy, sparsity, seed)]
    return rows


def _decompress(
    problem: Problem, model: nn.Module, optimizer: Optimizer, remedy: str, sparsity: float, seed: int
) -> list[Row]:
    phases = [("sparse", f"{_SPARSE}st"), ("dense", f"{STEPS}st"), ("sparse", "1st")]
    kind = RestoresNorms if remedy == "norms restored" else acdc.ACDC
    method = kind(sparsity=sparsity, schedule=acdc.Schedule.from_phases(phases), **REMEDIES[remedy])
    sparsifier, masks, rows = acdc.attach(model, optimizer, method), dict[str, Tensor](), list[Row]()
    for images, labels in _endless(problem, seed + 1000, _SPARSE + STEPS):
        step = sparsifier.step - _SPARSE
        sparsifier.begin_step()
        masks = sparsifier.masks or masks
        if -_BEFORE <= step < _CLOSELY or (step >= 0 and step % _EVERY == 0):
            rows.append({"step": step, **_around(model, optimizer, problem, masks, images, labels)})
        else:
            _train(model, optimizer, images, labels)
    sparsifier.detach()
    return rows


def _slower(optimizer: Optimizer, rate: str) -> Optimizer:
    for group in optimizer.param_groups:
        group["lr"] *= RATES[rate]
    return optimizer


def _endless(problem: Problem, seed: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    epochs = iter(lambda: problem.batches(generator), None)
    yield from islice(chain.from_iterable(epochs), steps)


def _train(model: nn.Module, optimizer: Optimizer, images: Tensor, labels: Tensor) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def _around(
    model: nn.Module, optimizer: Optimizer, problem: Problem, masks: dict[str, Tensor], images: Tensor, labels: Tensor
) -> Row:
    """Take one step, and measure what surrounds it."""
    probe, evaluated = _probe(model, problem, training=True), _probe(model, problem, training=False)
    params = {name: param for name, param in model.named_parameters() if name in masks}
    before = {name: param.detach().clone() for name, param in params.items()}
    loss = _train(model, optimizer, images, labels)
    sums = {f"{what}_{who}": 0.0 for what in ("gradient", "step", "momentum") for who in ("survivors", "returning")}
    norms, angles = list[float](), list[float]()
    for name, param in params.items():
        moments = [m for key in FIRST_MOMENTS if isinstance(m := optimizer.state[param].get(key), Tensor)]
        found = {
            "gradient": param.grad,
            "step": param.detach() - before[name],
            "momentum": moments[0] if moments else None,
        }
        for what, tensor in found.items():
            if tensor is not None:
                sums[f"{what}_survivors"] += float(tensor[masks[name]].square().sum())
                sums[f"{what}_returning"] += float(tensor[~masks[name]].square().sum())
        one, other = before[name].flatten(1), param.detach().flatten(1)
        norm = one.norm(dim=1)
        alive = norm > 0
        cosines = F.cosine_similarity(one[alive], other[alive]).clamp(-1, 1)
        norms += norm[alive].tolist()
        angles += torch.rad2deg(torch.arccos(cosines)).tolist()
    rooted = {key: math.sqrt(value) for key, value in sums.items()}
    return {
        "loss": loss, "probe": probe, "evaluated": evaluated, **rooted,
        "filter_norm": statistics.fmean(norms), "angle": statistics.fmean(angles),
    }  # fmt: skip


@torch.no_grad()
def _probe(model: nn.Module, problem: Problem, *, training: bool) -> float:
    """Return the loss of fixed training images. Running statistics stay as they are: batch norm's momentum is 0."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    kept = [module.momentum for module in norms]
    for module in norms:
        module.momentum = 0.0
    model.train(training)
    images, labels = problem.train
    loss = F.cross_entropy(model(images[:_PROBE]), labels[:_PROBE]).item()
    for module, momentum in zip(norms, kept, strict=True):
        module.momentum = momentum
    model.train()
    return loss


def recovery(rows: list[Row]) -> tuple[float, float, int | None]:
    """Return the probe's loss before, its highest after, and the first step from which it is back for good.

    Back is the mean of ten steps at 1.1 times the mean of those before the decompression, or less.
    """
    before = statistics.fmean(row["probe"] for row in rows if row["step"] < 0)
    after = [row["probe"] for row in rows if row["step"] > 0]
    smooth = [statistics.fmean(after[max(0, index - 9) : index + 1]) for index in range(len(after))]
    high = [index for index, value in enumerate(smooth) if value > 1.1 * before]
    back = None if high and high[-1] == len(smooth) - 1 else (high[-1] + 2 if high else 0)
    return before, max(after), back


def table(rows: list[Row]) -> tuple[str, list[str], list[list[str]], str]:
    """Return the height of each shock and how long it lasts."""
    cells = []
    for problem, rate, remedy in dict.fromkeys((r["problem"], r["rate"], r["remedy"]) for r in rows):
        chosen = [r for r in rows if (r["problem"], r["rate"], r["remedy"]) == (problem, rate, remedy)]
        seeds = sorted({r["seed"] for r in chosen})
        each = [recovery([r for r in chosen if r["seed"] == seed]) for seed in seeds]
        first = [next(r for r in chosen if r["seed"] == seed and r["step"] == 0) for seed in seeds]
        back = [str(steps) if steps is not None else f"over {STEPS}" for _, _, steps in each]
        losses = [statistics.fmean(values) for values in list(zip(*each, strict=True))[:2]]
        moved = [statistics.fmean(r[key] for r in first) for key in ("step_survivors", "step_returning", "angle")]
        numbers = [f"{value:.3f}" for value in losses]
        cells.append(
            [f"{problem}, {rate} rate", remedy, *numbers, ", ".join(back), *(f"{value:.3g}" for value in moved)]
        )
    header = ["problem", "decompression", "loss before", "highest after", "steps until back"]
    header += ["first step, survivors", "returning", "degrees a filter turns"]
    note = f"{rows[-1]['device_name']}, torch {rows[-1]['torch']}, acdc at {rows[-1]['commit']}; seeds side by side"
    return "After a decompression", header, cells, note


def draw(rows: list[Row], folder: Path) -> list[Path]:
    """Draw a figure for each problem: loss, steps, angles and momentum, at both rates."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "acdc"
    from matplotlib import pyplot

    written = []
    curves = {
        "probe": "loss of 250 images",
        "step_returning": "step of returning weights",
        "angle": "degrees a filter turns",
    }
    for problem in dict.fromkeys(r["problem"] for r in rows):
        figure, axes = pyplot.subplots(len(RATES), len(curves), figsize=(11, 5.5), sharex=True, squeeze=False)
        for line, rate in zip(axes, RATES, strict=True):
            for axis, (key, title) in zip(line, curves.items(), strict=True):
                for remedy in REMEDIES:
                    seeds = [r for r in rows if (r["problem"], r["rate"], r["remedy"]) == (problem, rate, remedy)]
                    steps = sorted({r["step"] for r in seeds})
                    means = [statistics.fmean(r[key] for r in seeds if r["step"] == step) for step in steps]
                    axis.plot(steps, means, label=remedy, linewidth=1)
                axis.axvline(0, color="grey", linewidth=0.5)
                axis.set_title(f"{title}, {rate} rate", fontsize=9)
                if key == "step_returning":  # 0 before
                    axis.set_yscale("symlog", linthresh=1e-3)
                    axis.set_ylim(bottom=0)
                else:
                    axis.set_yscale("log")
        axes[1][0].legend(fontsize=7)
        for axis in axes[-1]:
            axis.set_xlabel("steps after the decompression")
        figure.tight_layout()
        path = folder / f"shock-{problem}.svg"
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        written.append(path)
    return written


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shock", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--problems", nargs="+", choices=small_problems.NAMES, default=["digits", "mlp"])
    parser.add_argument("--remedies", nargs="+", choices=list(REMEDIES), default=list(REMEDIES))
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--data", help="folder of CIFAR-10, for cifar")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw what there is")
    parser.add_argument("--results", type=Path, default=RESULTS / "shock.jsonl", help="file to write")
    parser.add_argument("--figures", type=Path, default=ROOT / "docs", help="folder of the figures")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SparsityWarning)
    if not options.draw:
        shared = environment(torch.device("cpu"), options.commit)
        cells = [(p, r, s) for s in options.seeds for p in options.problems for r in RATES]
        problems = {name: small_problems.load(name, options.data) for name in options.problems}
        done = {(r["problem"], r["rate"], r["remedy"], r["seed"]) for r in read(options.results)}
        with progress("shock", len(cells)) as begin:
            for problem, rate, seed in cells:
                begin(f"{problem}, {rate} rate, seed {seed}")
                missing = [one for one in options.remedies if (problem, rate, one, seed) not in done]
                rows = measure(problems[problem], rate, missing, options.sparsity, seed) if missing else []
                append(options.results, [{**shared, **line} for line in _lines(rows)])
    rows = rows_of(options.results)
    print_table(*table(rows))
    say(f"written: {options.results}, {', '.join(map(str, draw(rows, options.figures)))}")
    return 0


def rows_of(path: Path) -> list[Row]:
    """Read the measurements, a row for each step."""
    return [row for line in read(path) for row in _steps(line)]


_RUN = ("problem", "rate", "remedy", "sparsity", "seed")


def _lines(rows: list[Row]) -> list[Row]:
    """Return one line for each run: a list of each quantity over the steps."""
    lines = []
    for run_key in dict.fromkeys(tuple(row[key] for key in _RUN) for row in rows):
        same = [row for row in rows if tuple(row[key] for key in _RUN) == run_key]
        series = {key: [_rounded(row[key]) for row in same] for key in same[0] if key not in _RUN}
        lines.append({**dict(zip(_RUN, run_key, strict=True)), "series": series})
    return lines


def _steps(line: Row) -> Iterator[Row]:
    """Yield a row for each step of a line."""
    series = line["series"]
    shared = {key: value for key, value in line.items() if key != "series"}
    for values in zip(*series.values(), strict=True):
        yield {**shared, **dict(zip(series, values, strict=True))}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if isinstance(value, float) else value


if __name__ == "__main__":
    run(main)
