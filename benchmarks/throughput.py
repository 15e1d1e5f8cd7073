"""Images per second of whole training runs, including augmentation, masks, optimizer and evaluation.

A recipe's model and settings on synthetic images of the data's size, through alternating phases of three epochs. In the
second epoch of each (the first compiles, or captures CUDA graphs; after the last of a dense phase, with a compression
due, evaluation is not compiled):

    images/s            of an epoch with its evaluation. The last batches count as in a real run at the default number
                        of images only, 50,000 and 10,000: smaller than the others, they run eagerly
    outside the step    share of that time not spent in forward, backward and optimizer on a batch that lies ready
    measuring           share of an epoch of 50,000 images that counting zeros takes, and describing a phase in 20
    compressed/dense    time of a training epoch in compressed phases against the dense phases beside them
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from acdc.measure.dynamics import nonzeros
from acdc.recipes import load
from acdc.recipes.fit import count_uses
from acdc.runs.records import EpochRow
from acdc.train import experiment, loading
from acdc.train.distributed import World
from acdc.train.execution import Setting, choose
from acdc.train.stage import Stage
from benchmarks.console import print_table, progress, run, say
from benchmarks.record import RESULTS, append, environment
from benchmarks.tables import throughput_table

RECIPES = ("cifar100-wrn28-10", "cifar10-resnet20")
CLASSES = {"cifar100-wrn28-10": 100, "cifar10-resnet20": 10}
PHASES = '{ warmup = "3ep", sparse = "3ep", dense = "3ep", last_dense = "3ep", final_sparse = "3ep", total = "18ep" }'


def measure(name: str, device: torch.device, images: int, compiled: str, changes: Sequence[str] = ()) -> dict:
    settings = [
        *changes,
        "data.name=synthetic", f"data.classes={CLASSES[name]}", f"data.train={images}", f"data.test={images // 5}",
        f"method.schedule={PHASES}", f'train.compile="{compiled}"', "run.checkpoint_every=1000ep",
    ]  # fmt: skip
    recipe = load.read(name, settings)
    problem = loading.load(recipe, device, world=World())
    steps = 100_000 if compiled == "auto" else 1  # as in a run of the recipe's own length
    execution = choose(recipe.train, device, steps=steps, world=1)
    with experiment.reproducible(recipe, device), tempfile.TemporaryDirectory() as folder:
        model = problem.new_model(recipe).to(device)
        if recipe.train.channels_last:
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        uses = count_uses(model, problem.facts)
        setting = Setting(device=device, execution=execution, checkpoints=Path(folder))
        stage = Stage(0, "acdc", model, problem.loaders, recipe, setting, uses=uses, method=recipe.build_method())
        stage.save = lambda: None  # checkpoints are another matter
        rows = list(stage.run())
        step_seconds = _step_seconds(stage, device)
        counting, describing = _measuring_seconds(stage, device)
    settled = [rows[i] for i in range(1, len(rows), 3)]
    train = {kind: [_train(row) for row in settled if row.kind == kind] for kind in ("dense", "sparse")}
    pairs = [_train(b) / _train(a) for a, b in zip(settled[::2], settled[1::2], strict=True)]
    whole = statistics.median(_train(row) + row.eval_seconds for row in settled)
    step = step_seconds * problem.loaders.train.steps
    return {
        "recipe": " ".join([name, *changes]),
        "images": images,
        "batch_size": recipe.train.batch_size,
        "precision": recipe.train.precision,
        "execution": list(execution.why),
        "images_per_second": images / whole,
        "train_images_per_second": {k: images / statistics.median(v) for k, v in train.items()},
        "outside_step": 1 - step / whole,
        "measuring": (counting + describing / 20) / (whole * 50_000 / images),
        "counting_seconds": counting,
        "describing_seconds": describing,
        "compressed_over_dense": statistics.median(pairs),
        "pairs": pairs,
        "step_milliseconds": 1000 * step_seconds,
        "epoch_seconds": [(row.kind, row.seconds, row.eval_seconds) for row in rows],
    }


def _train(row: EpochRow) -> float:
    return row.seconds - row.eval_seconds


def _step_seconds(stage: Stage, device: torch.device, rounds: int = 3) -> float:
    """Measure the seconds of one step on a batch that is already on the device, in the phase the run ended with."""
    images, labels = next(iter(stage.loaders.train.batches(0)))
    stage.model.train()
    count, times = max(3, min(100, stage.loaders.train.steps)), []
    for _ in range(rounds):
        _wait(device)
        start = time.perf_counter()
        for _ in range(count):
            stage._step(images, labels, stage.sparsifier.phase.index if stage.sparsifier else None)
            stage.optimizer.step()
        _wait(device)
        times.append((time.perf_counter() - start) / count)
    return statistics.median(times)


def _measuring_seconds(stage: Stage, device: torch.device, rounds: int = 5) -> tuple[float, float]:
    """Measure the seconds of counting zeros, as after every epoch, and of describing a phase, as at its end."""
    assert stage.sparsifier is not None
    masks = stage.sparsifier.masks
    phase = {"run": "acdc", "index": 1, "phase": "compressed", "kind": "sparse", "epoch": 0, "masks": masks}
    times: dict[str, list[float]] = {"count": [], "describe": []}
    for _ in range(rounds):
        for name, call in (
            ("count", lambda: nonzeros(stage._layers)),
            ("describe", lambda: stage.dynamics.phase_end(**phase)),
        ):
            _wait(device)
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return statistics.median(times["count"]), statistics.median(times["describe"])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.throughput", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--images", type=int, default=50_000, help="training images; one fifth as many are evaluated")
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=VALUE", help="change a setting of the recipe"
    )
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--results", type=Path, default=RESULTS / "throughput.jsonl", help="file to append to")
    parser.add_argument("--commit", help="commit to record, where the code is a copy outside git")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    shared, rows = environment(device, options.commit), []
    with progress("throughput", len(options.recipes)) as begin:
        for name in options.recipes:
            begin(name)
            rows.append(
                {
                    **shared,
                    "benchmark": "throughput",
                    **measure(name, device, options.images, options.compile, options.set),
                }
            )
    append(options.results, rows)
    print_table(*throughput_table(rows))
    say(f"written to {options.results}")
    return 0


if __name__ == "__main__":
    run(main)
