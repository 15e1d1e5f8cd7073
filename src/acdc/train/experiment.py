"""The default run: a dense baseline, AC/DC by the same recipe from the same weights, and AC/DC's dense twin."""

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from acdc.data.digits import Split
from acdc.measure.flops import inference_flops
from acdc.methods.acdc import ACDC
from acdc.sparsifier import attach
from acdc.train import environment, folder
from acdc.train.console import Console, Plan, Planned
from acdc.train.loop import Row, accuracy, sparsity, steps_per_epoch, train
from acdc.train.recipe import Recipe, make_optimizer
from acdc.twin import StateDict, finetune_dense, to_cpu, write_safetensors

TITLES = {"dense": "dense baseline", "acdc": "AC/DC", "finetune": "twin, fine-tuned"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A model of the final table."""

    model: str
    file: str
    test_accuracy: float
    sparsity: float
    flops: int
    dense_flops: int
    flops_ratio: float


def plan(recipe: Recipe, method: ACDC) -> Plan:
    """What will run. Fine-tuning the twin replaces the final compressed phase, so it takes as many epochs."""
    phases = method.schedule.phases
    kinds = tuple(phase.kind for phase in phases for _ in range(int(phase.length.value)))
    final = int(phases[-1].length.value)
    return {
        "dense": Planned(TITLES["dense"], 0, ("dense",) * recipe.epochs),
        "acdc": Planned(TITLES["acdc"], 0, kinds),
        "finetune": Planned(TITLES["finetune"], recipe.epochs - final, ("dense",) * final),
    }


def run(
    new_model: Callable[[], nn.Module],
    data: Split,
    recipe: Recipe,
    method: ACDC,
    out: Path,
    console: Console,
    settings: dict[str, Any],
) -> list[Outcome]:
    """Train all three and write the folder `out`. `new_model` gives the same initial weights at each call."""
    start, device = time.perf_counter(), data.images.device
    with reproducible(device):
        config = {
            **settings,
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "recipe": asdict(recipe),
            "method": {"name": method.name, **method.config()},
            "steps_per_epoch": steps_per_epoch(data, recipe),
            "data": {"train": len(data.labels), "test": len(data.test_labels)},
            **environment.describe(device),
        }
        folder.write_json(out / "config.json", config)
        outcomes = list(_outcomes(new_model, data, recipe, method, out, console))
    rows = [asdict(outcome) for outcome in outcomes]
    folder.write_json(out / "result.json", {"models": rows, "seconds": time.perf_counter() - start})
    return outcomes


def _outcomes(
    new_model: Callable[[], nn.Module], data: Split, recipe: Recipe, method: ACDC, out: Path, console: Console
) -> Iterator[Outcome]:
    device = data.images.device

    def log(rows: Iterator[Row]) -> None:
        for row in rows:
            folder.append_metrics(out, row)
            console.epoch(row)

    def measured(name: str, file: str, weights: StateDict) -> Outcome:
        """Of the weights as they are saved, in a plain new model."""
        model = new_model().to(device)
        model.load_state_dict(weights)
        flops = inference_flops(model, data.test_images[:1])
        return Outcome(
            model=name,
            file=file,
            test_accuracy=accuracy(model, data.test_images, data.test_labels),
            sparsity=sparsity(model),
            flops=flops.actual,
            dense_flops=flops.dense,
            flops_ratio=flops.ratio,
        )

    model = new_model().to(device)
    log(train("dense", model, make_optimizer(recipe, model), data, recipe))
    baseline = to_cpu(model.state_dict())
    write_safetensors({out / "baseline.safetensors": baseline})
    yield measured(TITLES["dense"], "baseline.safetensors", baseline)

    model = new_model().to(device)
    optimizer = make_optimizer(recipe, model)
    sparsifier = attach(model, optimizer, method, steps_per_epoch=steps_per_epoch(data, recipe))
    log(train("acdc", model, optimizer, data, recipe, sparsifier=sparsifier))
    result = sparsifier.finish()
    sparsifier.detach()
    result.save(out)
    yield measured("AC/DC, sparse", "sparse.safetensors", result.sparse)
    assert result.dense is not None, "AC/DC warms up densely, so there is a twin"
    yield measured("AC/DC, dense twin", "dense.safetensors", result.dense)

    steps, each = finetune_dense(result, model, optimizer), steps_per_epoch(data, recipe)
    epochs = range(steps.start // each, steps.stop // each)
    log(train("finetune", model, optimizer, data, recipe, epochs=epochs))
    finetuned = to_cpu(model.state_dict())
    write_safetensors({out / "finetuned.safetensors": finetuned})
    yield measured("dense twin, fine-tuned", "finetuned.safetensors", finetuned)


@contextlib.contextmanager
def reproducible(device: torch.device) -> Iterator[None]:
    """One CPU thread, and only deterministic convolutions on a GPU, for as long as this lasts.

    Images of 8 x 8 leave nothing to share between threads, which on a busy machine wait for each other; and sums then
    add up in the same order whatever the number of cores.
    """
    threads, cudnn = torch.get_num_threads(), torch.backends.cudnn
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        with cudnn.flags(enabled=cudnn.enabled, benchmark=False, deterministic=True):
            yield
    finally:
        torch.set_num_threads(threads)
