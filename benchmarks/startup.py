"""The start-up cost of a run on a GPU, and what cuDNN's search for kernels gains.

A recipe's own steps on synthetic images, through dense, compressed, dense and compressed phases, in a separate process
for each limit of the search (torch.backends.cudnn.benchmark_limit; 0 tries every kernel, "off" takes cuDNN's guess):

    first step    seconds until it has run: the search, and the library's own start
    transitions   seconds of the first step after each change of phase; a second search would show here
    odd batch     seconds of the first step of another size, which ends an epoch: with a search, and as training does it
    evaluation    seconds of the first evaluation, and of the first in fp32, which fp16 falls back to on overflow: with
                  a search, and as evaluation does it
    step          median milliseconds of the steps after that
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import acdc
from acdc import models
from acdc.recipes import load
from acdc.train import experiment, optim
from acdc.train.execution import Execution, without_kernel_search
from acdc.train.precision import Scaler, autocast
from acdc.train.step import Step, Totals
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, append, environment
from benchmarks.tables import startup_table

SHAPES = {
    "imagenet-resnet50": (1000, 224),
    "imagenet-mobilenet": (1000, 224),
    "cifar100-wrn28-10": (100, 32),
    "cifar10-resnet20": (10, 32),
}
"""Classes and image size of each recipe's data."""
LIMITS = ("10", "0", "off")


def measure(
    name: str, limit: str, device: torch.device, steps: int, batch: int | None = None, compiled: bool = False
) -> dict[str, Any]:
    """Run in a process that has not used cuDNN before."""
    recipe = load.read(name)
    classes, side = SHAPES[name]
    batch = batch or recipe.train.batch_size
    torch.zeros(1, device=device)
    with experiment.reproducible(recipe, device):
        if device.type == "cuda":
            torch.backends.cudnn.benchmark = limit != "off"
            torch.backends.cudnn.benchmark_limit = 10 if limit == "off" else int(limit)
        layout = torch.channels_last if recipe.train.channels_last else torch.contiguous_format
        model = models.build(recipe.model.name, classes=classes, in_channels=3, seed=0, **recipe.model.options)
        model = model.to(device).to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        optimizer = optim.build(recipe.optimizer, model, device, recipe.train.precision)
        schedule = acdc.Schedule.from_phases([(kind, f"{steps}st") for kind in ("dense", "sparse") * 2])
        sparsifier = acdc.attach(model, optimizer, acdc.ACDC(sparsity=0.9, schedule=schedule))
        fp16 = recipe.train.precision == "fp16" and device.type == "cuda"
        scaler, graphs = Scaler(model, device) if fp16 else None, device.type == "cuda" and not fp16
        images = torch.randn(batch, 3, side, side, device=device).contiguous(memory_format=layout)
        labels = torch.randint(classes, (batch,), device=device)
        step = Step(
            model, recipe.train, Execution(compiled, graphs, ()), Totals(device),
            device=device, full=batch, scale=scaler.scale if scaler else None,
        )  # fmt: skip
        seconds, evaluations = [], {}

        def timed(act: Any) -> float:
            start = time.perf_counter()
            act()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return time.perf_counter() - start

        def train() -> None:
            sparsifier.begin_step()
            if scaler:
                scaler.begin()
            step(images, labels, sparsifier.phase.index)
            if scaler:
                scaler.step(optimizer)
                scaler.update()
                sparsifier.set_step(len(seconds) + 1)
            else:
                optimizer.step()

        def evaluate(images: torch.Tensor, precision: str) -> None:
            model.eval()
            with torch.no_grad(), autocast(precision, device):
                model(images)
            model.train()

        def odd(left_out: int, search: bool) -> float:
            """Run a step of gradients only, so that the sparsifier's steps stay those of the schedule."""
            fewer = images[:-left_out], labels[:-left_out]
            return timed(lambda: step._eager(model, *fewer) if search else step(*fewer, sparsifier.phase.index))

        for number in range(schedule.total_steps(None)):
            seconds.append(timed(train))
            if number == 2 * steps - 1:
                evaluations["full"] = timed(lambda: evaluate(images, recipe.train.precision))
                evaluations["fp32, searched"] = timed(lambda: evaluate(images, "fp32"))
                with without_kernel_search():
                    evaluations["fp32"] = timed(lambda: evaluate(images[:-1], "fp32"))
        odd_seconds = {"searched": odd(3, True), "as trained": odd(5, False)}
    return {
        "recipe": name,
        "batch_size": batch,
        "precision": recipe.train.precision,
        "limit": limit,
        "first_step_seconds": seconds[0],
        "transition_seconds": seconds[steps::steps],
        "odd_batch_seconds": odd_seconds,
        "first_evaluation_seconds": evaluations,
        "compiled": compiled,
        "step_milliseconds": 1000 * statistics.median(seconds[steps // 2 : steps] + seconds[-steps // 2 :]),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.startup", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--recipes", nargs="+", default=list(SHAPES), choices=SHAPES)
    parser.add_argument("--limits", nargs="+", default=list(LIMITS), choices=LIMITS)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=30, help="steps of each of the four phases")
    parser.add_argument("--batch", type=int, help="another batch size than the recipe's")
    parser.add_argument("--compile", action="store_true", help="compile the model, as long runs do")
    parser.add_argument("--results", type=Path, default=RESULTS / "startup.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # the process that measures
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if options.one:
        print(
            json.dumps(
                measure(options.recipes[0], options.limits[0], device, options.steps, options.batch, options.compile)
            )
        )
        return 0
    shared, rows = environment(device, options.commit), []
    pairs = [(name, limit) for name in options.recipes for limit in options.limits]
    with progress("start-up", len(pairs)) as begin:
        for name, limit in pairs:
            begin(f"{name}, limit {limit}")
            command = [sys.executable, "-m", "benchmarks.startup", "--one", "--recipes", name, "--limits", limit]
            command += ["--device", options.device, "--steps", str(options.steps)]
            command += ["--batch", str(options.batch)] if options.batch else []
            command += ["--compile"] if options.compile else []
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append({**shared, "benchmark": "startup", **json.loads(child.stdout.splitlines()[-1])})
            append(options.results, rows[-1:])
    print_table(*startup_table(rows))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
